"""Progress bars on stderr, for the work `outrider.models` reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from outrider.cli.screen import notes

if TYPE_CHECKING:
    from outrider.models.checkpoints.progress import Advance

_PATIENCE = 2.0
"""Seconds of silence before a log file hears about a task."""


class RichProgress:
    """One bar per task, gone when it is done; where stderr is no terminal, one line per slow task."""

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Advance]:
        if not sys.stderr.isatty():
            yield _log_if_slow(description)
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=notes(), transient=True) as bars:
            bar = bars.add_task(description, total=total)
            yield lambda amount: bars.advance(bar, amount)


def _log_if_slow(description: str) -> Advance:
    started: float | None = monotonic()

    def advance(amount: int) -> None:
        nonlocal started
        if started is not None and monotonic() - started > _PATIENCE:
            started = None
            print(f"{description} …", file=sys.stderr, flush=True)

    return advance
