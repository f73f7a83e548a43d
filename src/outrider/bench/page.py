"""A result as one HTML file, from the JSON document alone: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from outrider.bench.never_slower import LEAST
from outrider.bench.table import (
    CELL_HEADINGS,
    REQUEST_HEADINGS,
    asked,
    cell_row,
    disturbance,
    identical,
    model_label,
    number,
    request_rows,
    speedup,
)

_COLOURS = 10

Entry = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    style = (files("outrider.bench") / "page.css").read_text(encoding="utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>outrider bench: {escape(document['settings']['model'])}</title><style>{style}</style></head><body>",
        *_head(document),
        *(_one_by_one(document["arms"]) if document["measurements"] else ()),
        *(_never_slower(document["never_slower"]) if document["never_slower"] else ()),
        *_provenance(document),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    settings, origin = document["settings"], document["provenance"]
    yield "<h1>Decoding speed</h1>"
    where = f"{origin['gpu'] or origin['cpu']}, {origin['threads']} threads"
    facts = [model_label(settings), *asked(document), where, origin["date"][:10]]
    yield f'<p class="dim">{escape(" · ".join(facts))}</p>'
    if not document["complete"]:
        yield '<p class="warn">Incomplete: the run was stopped; only what every arm has finished is counted.</p>'
    if note := disturbance(document):
        yield f'<p class="warn">{escape(note.capitalize())}.</p>'
    for entry in document["skipped"]:
        yield f'<p class="warn">Skipped {escape(entry["arm"])}: {escape(entry["why"])}</p>'


def _one_by_one(arms: Sequence[Entry]) -> Iterator[str]:
    yield from _speed(arms)
    yield from _tables(arms)
    yield from _categories(arms)
    yield from _acceptance(arms)


def _never_slower(entries: Sequence[Entry]) -> Iterator[str]:
    yield "<h2>Never slower: several requests in flight</h2>"
    yield '<p class="dim">Bar: tokens per second over plain decoding of the same requests, prompts included. Line: its'
    yield f"95% interval. Mark: plain itself. A cell fails where the whole interval is below {LEAST}.</p>"
    most = max(1.0, *(entry["high"] for entry in entries))
    yield '<div class="bars">'
    for entry in entries:
        name = f"{entry['concurrency']} {entry['sampling']}, {entry['arm']}"
        line = f"left:{_share(entry['low'], most)};width:{_share(entry['high'] - entry['low'], most)}"
        yield (
            f'<div class="name">{escape(name)}</div><div class="track"><div class="bar {entry["verdict"]}" '
            f'style="width:{_share(entry["ratio"], most)}"></div><div class="range" style="{line}"></div>'
            f'<div class="one" style="left:{_share(1, most)}"></div></div><div class="value">{entry["ratio"]:.2f}</div>'
        )
    yield "</div>"
    yield _grid(CELL_HEADINGS, [cell_row(entry) for entry in entries], [entry["verdict"] for entry in entries])
    yield "<h2>Requests</h2>"
    yield '<p class="dim">From asking to the last token; 5th percentile · median · 95th over requests.</p>'
    yield _grid(REQUEST_HEADINGS, list(request_rows(entries)))


def _speed(arms: Sequence[Entry]) -> Iterator[str]:
    yield "<h2>Decode, tokens per second</h2>"
    yield '<p class="dim">Bar: total tokens over total time. Line: the middle half of single answers.</p>'
    most = max(max(e["decode_tokens_per_second"], e["decode_tokens_per_second_quartiles"][1]) for e in arms)
    yield _bars(arms, arms, most, quartiles=True)


def _bars(arms: Sequence[Entry], parts: Sequence[Entry], most: float, quartiles: bool = False) -> str:
    """Of each arm, the figures in its part."""
    rows = ['<div class="bars">']
    for colour, (entry, figures) in enumerate(zip(arms, parts, strict=True)):
        rate = figures["decode_tokens_per_second"]
        low, high = figures["decode_tokens_per_second_quartiles"]
        line = ""
        if quartiles:
            line = f'<div class="range" style="left:{_share(low, most)};width:{_share(high - low, most)}"></div>'
        rows.append(
            f'<div class="name">{escape(entry["arm"])}</div><div class="track"><div class="bar" '
            f'style="width:{_share(rate, most)};background:{_colour(colour)}"></div>{line}</div>'
            f'<div class="value">{rate:.1f}</div>'
        )
    return "".join(rows) + "</div>"


def _tables(arms: Sequence[Entry]) -> Iterator[str]:
    yield "<h2>All figures</h2>"
    yield _table(arms)
    kept, whole = arms[0]["without_loops"]["answers"], arms[0]["answers"]
    if 0 < kept < whole:
        yield f"<h2>Without answers that loop ({kept} of {whole})</h2>"
        yield '<p class="dim">A small model that repeats itself flatters every drafter: here without the answers in'
        yield "which plain decoding writes some 8 tokens three times.</p>"
        yield _table([{"arm": entry["arm"], **entry["without_loops"]} for entry in arms])


def _table(entries: Sequence[Entry]) -> str:
    headings = ("arm", "decode tok/s", "median", "end to end", "× plain", "prefill s", "tokens/pass", "identical")
    rows = [
        (
            entry["arm"],
            f"{entry['decode_tokens_per_second']:.1f}",
            f"{entry['decode_tokens_per_second_median']:.1f}",
            f"{entry['e2e_tokens_per_second']:.1f}",
            speedup(entry),
            f"{entry['prefill_seconds']:.3f}",
            number(entry["mean_acceptance_length"]),
            identical(entry),
        )
        for entry in entries
    ]
    return _grid(headings, rows)


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str] | None = None) -> str:
    """A table; `kinds`: a class per row."""
    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    body = "".join(
        f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row, kind in zip(rows, kinds or [""] * len(rows), strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _categories(arms: Sequence[Entry]) -> Iterator[str]:
    names = list(arms[0]["categories"])
    if len(names) < 2:
        return
    yield "<h2>By category, decode tokens per second</h2>"
    most = max(entry["categories"][name]["decode_tokens_per_second"] for entry in arms for name in names)
    yield '<div class="groups">'
    for name in names:
        bars = _bars(arms, [entry["categories"][name] for entry in arms], most)
        yield f"<div><h3>{escape(name)}</h3>{bars}</div>"
    yield "</div>"


def _acceptance(arms: Sequence[Entry]) -> Iterator[str]:
    drafting = [(i, entry) for i, entry in enumerate(arms) if entry["acceptance_per_position"]]
    if not drafting:
        return
    yield "<h2>Acceptance per position</h2>"
    yield '<p class="dim">In what share of the target passes at least so many drafted tokens were accepted.</p>'
    deepest = max(len(entry["acceptance_per_position"]) for _, entry in drafting)
    most = max(max(entry["acceptance_per_position"]) for _, entry in drafting)
    left, top, width, height = 40, 10, 640, 220

    def at(position: int, share: float) -> str:
        x = left + (position - 1) / max(1, deepest - 1) * width
        return f"{x:.1f},{top + height - share / most * height:.1f}"

    lines = [f'<svg viewBox="0 0 {left + width + 20} {top + height + 34}" role="img">']
    for step in range(5):
        share = most * step / 4
        y = top + height - step / 4 * height
        lines.append(f'<line class="grid" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for position in range(1, deepest + 1):
        x = at(position, 0).split(",")[0]
        lines.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle">{position}</text>')
    for i, entry in drafting:
        points = " ".join(at(k, share) for k, share in enumerate(entry["acceptance_per_position"], 1))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{_colour(i)}" stroke-width="2"/>')
    yield "".join(lines) + "</svg>"
    for i, entry in drafting:
        told = f"{entry['arm']}: {entry['mean_acceptance_length']:.2f} tokens per pass"
        yield f'<p><span class="key" style="background:{_colour(i)}"></span>{escape(told)}</p>'


def _provenance(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Where this comes from</h2><dl>"
    for source in (document["settings"], document["provenance"]):
        for name, value in source.items():
            if name in ("versions", "arms", "resumed_from") and isinstance(value, dict):
                value = "; ".join(f"{key} {_words(inner)}" for key, inner in value.items())
            yield f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_words(value))}</dd>"
    yield "</dl>"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {inner}" for key, inner in value.items()) + ")"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


def _share(value: float, most: float) -> str:
    return f"{100 * value / most if most else 0:.2f}%"


def _colour(index: int) -> str:
    return f"var(--c{index % _COLOURS})"
