"""A result as tables a person reads in the terminal, from the JSON document alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The arms over all questions, then without looping answers, then category by category, then what was skipped."""
    from rich.text import Text

    arms = document["arms"]
    yield from _headline(document)
    yield _arms(arms)
    whole, kept = ((arms[0][view]["answers"] if view else arms[0]["answers"]) for view in ("", "without_loops"))
    if kept and kept < whole:
        yield Text(f"Without the {whole - kept} of {whole} answers that repeat an 8-gram three times:")
        yield _arms([{"arm": entry["arm"], **entry["without_loops"]} for entry in arms])
    if len(arms[0]["categories"]) > 1:
        yield Text("By category, decode tokens/s (tokens per target pass):")
        yield _categories(arms)
    for entry in document["skipped"]:
        yield Text(f"skipped {entry['arm']}: {entry['why']}", style="yellow")


def _headline(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    settings, origin = document["settings"], document["provenance"]
    where = origin["gpu"] or origin["cpu"]
    facts = [
        model_label(settings),
        f"{settings['suite']} suite, {document['arms'][0]['answers']} answers of {settings['max_tokens']} tokens",
        f"temperature {settings['temperature']:g}",
        f"{where}, {origin['threads']} threads",
    ]
    yield Text(" · ".join(facts), style="dim")
    if not document["complete"]:
        yield Text("incomplete: only the questions every arm has answered are counted", style="yellow")
    if settings.get("synthetic_acceptance") is not None:
        yield Text("drafts accepted by the die, for speed alone: the text is not the model's", style="yellow")
    if note := disturbance(document):
        yield Text(note, style="yellow")


def model_label(settings: Mapping[str, Any]) -> str:
    """The model as every report names it; a cost twin is always called one."""
    twin = f"{settings['twin']} twin of " if settings.get("twin") else ""
    return f"{twin}{settings['model']} {settings['dtype']}"


def disturbance(document: Mapping[str, Any]) -> str:
    """What other work on the machine did to the result, in a sentence; empty: nothing."""
    asked = document["disturbed"]["questions"]
    if not asked:
        return ""
    if document["disturbed"]["left_out"]:
        return f"other work ran on the machine during {len(asked)} questions; they are left out, for all arms"
    return f"other work ran on the machine during most questions ({len(asked)}): these figures say little"


def _arms(entries: list[dict[str, Any]]) -> Table:
    table = _table("arm", "decode tok/s", "quartiles", "e2e", "× plain", "prefill s", "per pass", "identical")
    for entry in entries:
        low, high = entry["decode_tokens_per_second_quartiles"]
        table.add_row(
            entry["arm"],
            f"{entry['decode_tokens_per_second']:.1f}",
            f"{low:.0f}-{high:.0f}",
            f"{entry['e2e_tokens_per_second']:.1f}",
            speedup(entry),
            f"{entry['prefill_seconds']:.3f}",
            number(entry["mean_acceptance_length"]),
            identical(entry),
        )
    return table


def _categories(arms: list[dict[str, Any]]) -> Table:
    categories = list(arms[0]["categories"])
    table = _table("arm", *categories)
    for entry in arms:
        cells = [entry["categories"][category] for category in categories]
        table.add_row(
            entry["arm"],
            *(f"{cell['decode_tokens_per_second']:.0f} ({number(cell['mean_acceptance_length'])})" for cell in cells),
        )
    return table


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def speedup(entry: Mapping[str, Any]) -> str:
    """'1.82 (1.60-2.05)', and over which arm where that is not our plain."""
    found = entry["speedup"]
    if found is None or entry.get("arm") == entry["reference"]:
        return ""
    over = "" if entry["reference"] == "plain" else f" {entry['reference']}"
    return f"{found['total']:.2f} ({found['low']:.2f}-{found['high']:.2f}){over}"


def identical(entry: Mapping[str, Any]) -> str:
    same = entry["identical_to_plain"]
    return "" if same is None or entry.get("arm") == entry["reference"] else f"{same} of {entry['answers']}"


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "arm" else "right", overflow="fold")
    return table
