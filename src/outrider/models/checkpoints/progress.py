"""How long work reports that it moves, without knowing who draws the bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
"""Adds so many units (bytes, parameters) to what is done."""


class Progress(Protocol):
    """Shows tasks to a person. `total` is None where the end is not known beforehand."""

    def task(self, description: str, total: int | None) -> AbstractContextManager[Advance]: ...


class SilentProgress:
    """Shows nothing: for libraries, servers and tests."""

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Advance]:
        yield lambda amount: None
