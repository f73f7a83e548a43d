"""How long work reports that it moves, without knowing who draws the bar."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

log = logging.getLogger("outrider")

Advance = Callable[[int], None]
"""Adds so many units (bytes, parameters) to what is done."""


class Progress(Protocol):
    """Shows tasks to a person. `total` is None where the end is not known beforehand."""

    def task(self, description: str, total: int | None) -> AbstractContextManager[Advance]: ...
    def note(self, message: str) -> None:
        """One line that the person should read, whether or not they watch the tasks."""
        ...


class SilentProgress:
    """Shows no tasks, and leaves notes to Python's logging: for libraries and tests."""

    def note(self, message: str) -> None:
        log.warning("%s", message)

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Advance]:
        yield lambda amount: None
