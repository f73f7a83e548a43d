"""A result as tables a person reads in the terminal, from the JSON document alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench.never_slower import FAILS, HOLDS, LEAST

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The arms over all questions, then without looping answers, then category by category; then every cell of several
    requests at a time; then what was skipped."""
    from rich.text import Text

    yield from _headline(document)
    if document["measurements"]:
        yield from _one_by_one(document["arms"])
    if document["never_slower"]:
        yield from _cells(document["never_slower"])
    for entry in document["skipped"]:
        yield Text(f"skipped {entry['arm']}: {entry['why']}", style="yellow")


def _one_by_one(arms: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from rich.text import Text

    yield _arms(arms)
    whole, kept = ((arms[0][view]["answers"] if view else arms[0]["answers"]) for view in ("", "without_loops"))
    if kept and kept < whole:
        yield Text(f"Without the {whole - kept} of {whole} answers that repeat an 8-gram three times:")
        yield _arms([{"arm": entry["arm"], **entry["without_loops"]} for entry in arms])
    if len(arms[0]["categories"]) > 1:
        yield Text("By category, decode tokens/s (tokens per target pass):")
        yield _categories(arms)


def _cells(entries: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(
        f"Never slower? Several requests in flight; a cell fails where all of its 95% interval is below {LEAST}:"
    )
    styles = {HOLDS: "green", FAILS: "bold red"}
    table = _table(*CELL_HEADINGS)
    for entry in entries:
        *figures, verdict = cell_row(entry)
        table.add_row(*figures, Text(verdict, style=styles.get(entry["verdict"], "yellow")))
    yield table
    yield Text("Requests from asking to the last token (5th percentile · median · 95th):")
    table = _table(*REQUEST_HEADINGS)
    for row in request_rows(entries):
        table.add_row(*row)
    yield table


CELL_HEADINGS = ("in flight", "sampling", "arm", "× plain", "worst", "per pass", "identical", "verdict")
REQUEST_HEADINGS = ("in flight", "sampling", "arm", "tok/s in all", "tok/s of a request", "first token, s")


def cell_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the never-slower table; the last field is the verdict."""
    return (
        str(entry["concurrency"]),
        entry["sampling"],
        entry["arm"],
        f"{entry['ratio']:.2f} ± {entry['half_width']:.2f}",
        f"{entry['worst_request']['ratio']:.2f}",
        number(entry["tokens_per_pass"]),
        f"{entry['identical']} of {entry['answers']}",
        "FAILS" if entry["verdict"] == FAILS else entry["verdict"],
    )


def request_rows(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Speed and time to the first token of single requests: each cell's plain arm once, then those held against it."""
    shown = set()
    for entry in entries:
        cell = (str(entry["concurrency"]), entry["sampling"])
        for arm, figures in ((entry["reference"], "reference_figures"), (entry["arm"], "figures")):
            if (*cell, arm) in shown:
                continue
            shown.add((*cell, arm))
            of_arm = entry[figures]
            speeds, first = of_arm["request_tokens_per_second"], of_arm["first_token_seconds"]
            yield (*cell, arm, f"{of_arm['tokens_per_second']:.1f}", _three(speeds, 1), _three(first, 3))


def _three(values: Mapping[str, float], digits: int) -> str:
    return " · ".join(f"{values[name]:.{digits}f}" for name in ("p5", "p50", "p95"))


def _headline(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    settings, origin = document["settings"], document["provenance"]
    where = origin["gpu"] or origin["cpu"]
    facts = [model_label(settings), *asked(document), f"{where}, {origin['threads']} threads"]
    yield Text(" · ".join(facts), style="dim")
    if not document["complete"]:
        yield Text("incomplete: only what every arm has finished is counted", style="yellow")
    if settings.get("synthetic_acceptance") is not None:
        yield Text("drafts accepted by the die, for speed alone: the text is not the model's", style="yellow")
    if note := disturbance(document):
        yield Text(note, style="yellow")


def model_label(settings: Mapping[str, Any]) -> str:
    """The model as every report names it; a cost twin is always called one."""
    twin = f"{settings['twin']} twin of " if settings.get("twin") else ""
    return f"{twin}{settings['model']} {settings['dtype']}"


def asked(document: Mapping[str, Any]) -> list[str]:
    """What every arm was asked, in a few words each."""
    settings = document["settings"]
    suite, most = f"{settings['suite']} suite", settings["max_tokens"]
    if not document["measurements"]:
        return [suite, f"answers of up to {most} tokens"]
    return [
        f"{suite}, {document['arms'][0]['answers']} answers of {most} tokens",
        f"temperature {settings['temperature']:g}",
    ]


def disturbance(document: Mapping[str, Any]) -> str:
    """What other work on the machine did to the result, in a sentence; empty: nothing."""
    questions = document["disturbed"]["questions"]
    cells = {(entry["concurrency"], entry["sampling"]): entry for entry in document["never_slower"]}.values()
    rounds, left_out = (sum(entry[name] for entry in cells) for name in ("disturbed", "left_out"))
    parts = []
    if questions and document["disturbed"]["left_out"]:
        parts.append(f"{len(questions)} questions; they are left out, for all arms")
    elif questions:
        parts.append(f"most questions ({len(questions)}): these figures say little")
    if rounds and left_out == rounds:
        parts.append(f"{rounds} rounds; they are left out, for all arms")
    elif rounds:
        parts.append(f"{rounds} rounds, in some cells most of them: these figures say little")
    return "; ".join(f"other work ran on the machine during {part}" for part in parts)


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
        table.add_column(heading, justify="left" if heading in ("arm", "sampling") else "right", overflow="fold")
    return table
