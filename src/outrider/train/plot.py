"""The course of a run as a picture, from its log alone. Needs matplotlib (the [bench] extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from outrider.train.files import explained, replace

FILE = "training.png"
_BLUE, _GREEN, _GREY = "#2b7de9", "#12a37a", "#777777"


def possible() -> bool:
    return find_spec("matplotlib") is not None


def draw(history: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Loss on the left, acceptance on the right: lines while training, dots on held-out text."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.use("Agg")
    figure: Any = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, key, label in ((left, "loss", "loss"), (right, "acceptance_length", "tokens per target pass")):
        for event, style in (("progress", "-"), ("evaluation", "o")):
            points = [(line["step"], line[key]) for line in history if line["event"] == event and key in line]
            name = "training" if event == "progress" else "held-out"
            if points:
                axes.plot(*zip(*points, strict=True), style, color=_BLUE if event == "progress" else _GREEN, label=name)
        axes.set_xlabel("step")
        axes.set_title(label, fontsize=10)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=9, color=_GREY)
    picture = BytesIO()
    figure.savefig(picture, dpi=144, format="png")
    with explained(path.parent):
        replace(path, lambda file: file.write(picture.getvalue()))
