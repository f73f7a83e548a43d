"""What is said about a finished answer: one JSON object, or a summary a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.cli import trace
from outrider.cli.screen import rich_colour

if TYPE_CHECKING:
    from rich.console import RenderableType

    from outrider.core.request import Completion, TokenLogprob


def as_json(done: Completion, *, model: str, drafter: str, word: trace.Word, steps: bool) -> dict[str, Any]:
    """The fields are a contract: scripts read them. `seconds` and `tokens_per_second` are decoding alone."""
    report: dict[str, Any] = {
        "text": done.text,
        "token_ids": list(done.token_ids),
        "origins": list(done.origins),
        "finish_reason": done.finish_reason,
        "seconds": done.seconds,
        "prefill_seconds": done.prefill_seconds,
        "tokens_per_second": done.tokens_per_second,
        "steps": done.steps,
        "drafted": done.drafted,
        "accepted": done.accepted,
        "mean_acceptance_length": done.mean_acceptance_length,
        "drafter": drafter,
        "model": model,
        "prompt_tokens": done.prompt_tokens,
        "seed": done.seed,
    }
    if done.logprobs is not None:
        report["logprobs"] = [_logprob(entry, word) for entry in done.logprobs]
    if steps:
        report["trace"] = trace.as_json(done.trace, word)
    return report


def summary(done: Completion, drafter: str, colour: bool) -> list[RenderableType]:
    """Speed, tokens per target pass, acceptance, drafter and seed, then what the colours mean."""
    from rich.text import Text

    limit = " (limit)" if done.finish_reason == "length" else ""
    speed = [
        f"{count(len(done.token_ids), 'token')}{limit} in {done.seconds:.2f} s",
        f"{done.tokens_per_second:.1f} tokens/s",
        f"{done.mean_acceptance_length:.2f} tokens per target pass",
    ]
    about = [f"drafter {drafter}", _acceptance(done), f"seed {done.seed}"]
    lines: list[RenderableType] = [Text(" · ".join(facts), style="dim") for facts in (speed, about)]
    if colour:
        lines.append(_legend(done))
    return lines


def comparison(done: Completion, plain: Completion, drafter: str, line: str) -> list[RenderableType]:
    """Both arms side by side, and the verdict in one `line`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    arms = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "tokens", "seconds", "tokens/s", "target passes", "tokens per pass"):
        arms.add_column(heading, justify="right" if heading else "left")
    for name, arm in ((drafter, done), ("plain", plain)):
        arms.add_row(
            name,
            str(len(arm.token_ids)),
            f"{arm.seconds:.2f}",
            f"{arm.tokens_per_second:.1f}",
            str(arm.steps),
            f"{arm.mean_acceptance_length:.2f}",
        )
    return [arms, Text(line, style="bold")]


def verdict(done: Completion, plain: Completion, verify: str, why: str = "") -> str:
    """'2.4x faster, same 128 tokens', or whatever is true instead."""
    return f"{_speed(done, plain)}, {sameness(done, plain, verify)}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _speed(done: Completion, plain: Completion) -> str:
    if not done.tokens_per_second or not plain.tokens_per_second:
        return "too short to time"
    ratio = done.tokens_per_second / plain.tokens_per_second
    if 0.95 < ratio < 1.05:
        return "as fast as plain decoding"
    return f"{ratio:.1f}x faster" if ratio > 1 else f"{1 / ratio:.1f}x slower"


def sameness(done: Completion, plain: Completion, verify: str) -> str:
    if done.token_ids == plain.token_ids:
        return f"same {count(len(done.token_ids), 'token')}"
    pairs = zip(done.token_ids, plain.token_ids, strict=False)
    shared = min(len(done.token_ids), len(plain.token_ids))
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shared)
    if verify == "rejection":
        why = "--verify rejection keeps the distribution, not the tokens"
    else:
        why = "rounding at a near tie; --bitwise removes that"
    return f"DIFFERENT from token {first + 1} on ({why})"


def _acceptance(done: Completion) -> str:
    if not done.drafted:
        return "nothing drafted"
    return f"accepted {done.accepted} of {done.drafted} drafted ({done.accepted / done.drafted:.0%})"


def _legend(done: Completion) -> RenderableType:
    from rich.text import Text

    legend = Text()
    for origin in sorted(set(done.origins) - {"target"}):
        legend.append("■ ", rich_colour(origin)).append(f"drafted by {origin}, accepted  ")
    return legend.append("■ written by the target" if "target" in done.origins else "")


def _logprob(entry: TokenLogprob, word: trace.Word) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "token": word(entry.token_id),
        "logprob": entry.logprob,
        "top": [{"token_id": token, "logprob": logprob} for token, logprob in entry.top],
    }
