"""Progress bars on stderr, for the work `outrider.models` reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from outrider.cli.screen import note, notes

if TYPE_CHECKING:
    from outrider.models.checkpoints.progress import Advance

_PATIENCE = 2.0
"""Seconds of silence before a log file hears about a task."""
_EVERY = 20.0
"""Seconds between two lines about a long task in a log file."""


class RichProgress:
    """One bar per task, gone when it is done; where stderr is no terminal, one line per slow task."""

    def note(self, message: str) -> None:
        note(message)

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


class TimedProgress(RichProgress):
    """For hours of work: a log file, too, hears every now and then how far it is and when it will be done."""

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Advance]:
        if sys.stderr.isatty() or total is None:
            with super().task(description, total) as advance:
                yield advance
            return
        yield _log_now_and_then(description, total)


def _log_now_and_then(description: str, total: int) -> Advance:
    started = said = monotonic()
    done = 0

    def advance(amount: int) -> None:
        nonlocal said, done
        done += amount
        now = monotonic()
        if now - said > _EVERY:
            said = now
            left = (now - started) / done * (total - done)
            print(f"{description}: {done} of {total}, {_duration(left)} left", file=sys.stderr, flush=True)

    return advance


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _log_if_slow(description: str) -> Advance:
    started: float | None = monotonic()

    def advance(amount: int) -> None:
        nonlocal started
        if started is not None and monotonic() - started > _PATIENCE:
            started = None
            print(f"{description} …", file=sys.stderr, flush=True)

    return advance
