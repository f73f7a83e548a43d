"""The model card: what was trained, from what, how, and how good it came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.provenance import versions
from outrider.train.settings import TrainConfig, option
from outrider.train.student import Evaluation

FILE = "README.md"
UNKNOWN = "unknown"
"""In the place of a corpus's prompts, where it does not say."""
_CURVE = 12
"""Lines of the loss curve in the card; the log has all."""


def about(
    settings: TrainConfig,
    kind: str,
    start: Mapping[str, Any] | None,
    data: Mapping[str, Any],
    trained: Mapping[str, Any],
    held_out: Evaluation,
) -> dict[str, Any]:
    """What goes into the config of what is exported: no paths of the machine it was made on."""
    return {
        "target": short_name(settings.model),
        "kind": kind,
        **({} if start is None else {"started_from": dict(start)}),
        "data": dict(data),
        "trained": dict(trained),
        "held_out": asdict(held_out),
        "command": settings.command,
        "seed": settings.seed,
        "versions": versions(),
    }


def short_name(model: str) -> str:
    """A model's name; the last part of a path."""
    return Path(model).name if Path(model).is_absolute() or Path(model).expanduser().exists() else model


def page(settings: TrainConfig, facts: Mapping[str, Any], history: Sequence[Mapping[str, Any]], plotted: bool) -> str:
    """`facts`: what `about` gives."""
    held_out = facts["held_out"]
    target = facts["target"]
    chosen = [(f"`{option(name)}`", _shown(value)) for name, value in settings.shown().items()]
    use = "head:DIR" if not settings.draft_model else "model:DIR"
    parts = [
        f"# A {facts['kind']} for {target}",
        f'Drafts for `{target}`: `outrider generate --model {target} --drafter {use} "…"`. '
        "The text stays the target's own; this only makes it come sooner.",
        "## How good it is",
        "On held-out answers that the target wrote greedily, never trained on: "
        f"{held_out['acceptance_length']:.2f} tokens per target pass (a chain of {len(held_out['per_position'])} "
        f"drafted tokens, the target's own token included), loss {held_out['loss']:.4f}. The weights are those of the "
        "best of the evaluations below."
        + (" What training started from may have seen some of these answers." if "started_from" in facts else ""),
        _table(
            ("Drafted position", "Accepted, all before it being so"),
            [(str(i), f"{share:.1%}") for i, share in enumerate(held_out["per_position"], 1)],
        ),
        "## Data",
        _written(facts, earlier=settings.data is not None),
        _table(
            ("What", "How much"),
            [(name, _shown(value)) for name, value in facts["data"].items() if name not in _SAID],
        ),
        "## Training",
        _begun(facts.get("started_from")),
        "```\n" + settings.command + "\n```",
        _table(("Setting", "Value"), chosen),
        _table(("Came to", ""), [(name, _shown(value)) for name, value in facts["trained"].items()]),
        "![The course of training](training.png)" if plotted else "",
        _table(
            ("Step", "Where", "Loss", "Tokens per pass"),
            [
                (
                    str(line["step"]),
                    "held-out" if line["event"] == "evaluation" else "training",
                    f"{line['loss']:.4f}",
                    f"{line.get('acceptance_length', float('nan')):.3f}",
                )
                for line in _thinned(history)
            ],
        ),
        "## Made with",
        ", ".join(f"{name} {number}" for name, number in facts["versions"].items()) + ".",
        "## Licence",
        f"Derived from `{target}` (its weights start this one's, and it wrote the data): the licence of `{target}` "
        "applies, and that of the prompts where a file was given.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_SAID = ("target", "prompts")
"""Of the data, in words instead of in the table."""


def _written(facts: Mapping[str, Any], earlier: bool) -> str:
    """By whom and from which prompts the data was made, as the corpus itself has it."""
    data = facts["data"]
    author = "the target itself" if data["target"] in (None, facts["target"]) else f"`{data['target']}`"
    match data["prompts"]:
        case None:
            prompts = "invented by the target from its chat template"
        case {"file": name, "sha256": digest}:
            prompts = f"those of `{name}` (SHA-256 `{digest}`), beside what the target invented"
        case str(other) if other != UNKNOWN:
            prompts = f"those of a file with SHA-256 `{other}`, beside what the target invented"
        case _:
            prompts = "those of an earlier run's corpus, which does not say where they are from"
    return f"Written by {author}{' in an earlier run' if earlier else ''}. The prompts are {prompts}."


def _begun(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return ""
    before = f", which came of\n\n```\n{start['command']}\n```" if "command" in start else "."
    return f"Training went on from `{start['name']}` (weights SHA-256 `{start['sha256']}`){before}"


def _thinned(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All evaluations, and about as many lines of training between them."""
    lines = [line for line in history if line["event"] == "progress"]
    every = max(1, -(-len(lines) // _CURVE))
    kept = {id(line) for line in lines[::-1][::every]}
    return [line for line in history if line["event"] == "evaluation" or id(line) in kept]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    return f"`{value}`"
