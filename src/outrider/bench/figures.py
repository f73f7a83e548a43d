"""A result as PNG charts, from the JSON document alone. Needs matplotlib (the [bench] extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from outrider.bench.table import asked, model_label

matplotlib.use("Agg")

_COLOURS = (
    "#8a8f98",
    "#2b7de9",
    "#12a37a",
    "#e0792b",
    "#9a5fd0",
    "#c9433f",
    "#b59a1c",
    "#2aa5b8",
    "#d0589a",
    "#5b6bd6",
)
_DPI = 144


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `arms.png`, `categories.png` and, where something was drafted, `acceptance.png`; of several requests at a
    time `never_slower.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    arms = document["arms"]
    colours = {entry["arm"]: _COLOURS[i % len(_COLOURS)] for i, entry in enumerate(arms)}
    charts: dict[str, Any] = {}
    if document["measurements"]:
        charts |= {"arms": _arms(arms, colours), "categories": _categories(arms, colours)}
    drafting = [entry for entry in arms if entry["acceptance_per_position"]]
    if drafting:
        charts["acceptance"] = _acceptance(drafting, colours)
    if document["never_slower"]:
        charts["never_slower"] = _never_slower(document["never_slower"], colours)
    written = []
    for name, figure in charts.items():
        figure.text(0.01, 0.01, _caption(document), fontsize=7, color="#777777")
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=_DPI)
    return written


def _caption(document: Mapping[str, Any]) -> str:
    settings, origin = document["settings"], document["provenance"]
    commit = (origin["commit"] or "")[:10]
    return (
        f"{model_label(settings)}, {', '.join(asked(document))} · "
        f"{origin['gpu'] or origin['cpu']}, {origin['threads']} threads · "
        f"{origin['date'][:10]} {commit}{'' if document['complete'] else ' · incomplete'}"
    )


def _arms(arms: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Any:
    """Decode rate from totals as bars; the line spans the quartiles of single answers."""
    figure, axes = _sheet(7.5, 1.3 + 0.42 * len(arms))
    places = range(len(arms))
    rates = [entry["decode_tokens_per_second"] for entry in arms]
    axes.barh(places, rates, color=[colours[entry["arm"]] for entry in arms], height=0.66)
    for place, entry in zip(places, arms, strict=True):
        low, high = entry["decode_tokens_per_second_quartiles"]
        axes.plot([low, high], [place, place], color="#222222", linewidth=1.2, marker="|", markersize=6)
        axes.annotate(
            f"{entry['decode_tokens_per_second']:.1f}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(30, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(places, [entry["arm"] for entry in arms])
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    _plain_style(axes, "x")
    axes.set_xlabel(
        "decode, tokens/s (bar: total tokens over total time; line: quartiles of single answers)", fontsize=8
    )
    return figure


def _categories(arms: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Any:
    categories = list(arms[0]["categories"])
    figure, axes = _sheet(max(7.5, 0.8 + len(categories) * (0.35 + 0.16 * len(arms))), 3.9)
    width = 0.8 / len(arms)
    for i, entry in enumerate(arms):
        rates = [entry["categories"][category]["decode_tokens_per_second"] for category in categories]
        places = [at - 0.4 + (i + 0.5) * width for at in range(len(categories))]
        axes.bar(places, rates, width * 0.92, color=colours[entry["arm"]], label=entry["arm"])
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylabel("decode, tokens/s", fontsize=8)
    _plain_style(axes, "y")
    figure.legend(loc="outside upper center", ncols=min(5, len(arms)), frameon=False, fontsize=8)
    return figure


def _acceptance(arms: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Any:
    figure, axes = _sheet(7.5, 3.6)
    for entry in arms:
        shares = entry["acceptance_per_position"]
        label = f"{entry['arm']} ({entry['mean_acceptance_length']:.2f} tokens per pass)"
        axes.plot(range(1, len(shares) + 1), shares, marker="o", ms=3.5, color=colours[entry["arm"]], label=label)
    axes.set_xlabel("drafted tokens accepted, at least", fontsize=8)
    axes.set_ylabel("share of target passes", fontsize=8)
    axes.set_ylim(0, None)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _plain_style(axes, "y")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _never_slower(entries: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Any:
    """The ratio of every cell with its 95% interval, beside plain decoding at 1."""
    figure, axes = _sheet(7.5, 1.3 + 0.36 * len(entries))
    for place, entry in enumerate(entries):
        colour = colours[entry["arm"]]
        axes.plot([entry["low"], entry["high"]], [place, place], color=colour, linewidth=2, marker="|", markersize=8)
        axes.plot([entry["ratio"]], [place], color=colour, marker="o", markersize=6)
    axes.axvline(1.0, color="#222222", linewidth=1)
    names = [f"{entry['concurrency']} {entry['sampling']}, {entry['arm']}" for entry in entries]
    axes.set_yticks(range(len(entries)), names)
    axes.set_ylim(len(entries) - 0.5, -0.5)
    _plain_style(axes, "x")
    axes.set_xlabel("tokens/s over plain decoding, by requests in flight and sampling (line: 95% interval)", fontsize=8)
    return figure


def _sheet(width: float, height: float) -> tuple[Any, Any]:
    """A figure with one plot, and room for the caption below. `Any`: matplotlib's types are narrower than its use."""
    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))
    return figure, figure.subplots()


def _plain_style(axes: Any, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
