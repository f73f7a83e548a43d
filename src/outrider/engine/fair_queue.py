"""Who waits, and who is next: principals take turns, whatever each of them has asked for. No torch here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar


class Owned(Protocol):
    """What a queue knows of those in it."""

    @property
    def principal(self) -> str:
        """Whose it is."""
        ...

    @property
    def priority(self) -> int:
        """Of two of one principal, the lower goes first. Nobody gains on another principal by it."""
        ...


S = TypeVar("S", bound=Owned)


class FairQueue(Generic[S]):
    """A line for each principal, in order of priority and arrival. Next is the first in the line of whoever holds the
    fewest places, and among those, of whoever was served longest ago."""

    def __init__(self) -> None:
        self._lines: dict[str, list[S]] = {}  # never empty ones; the one served longest ago first

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, one: S) -> bool:
        return one in self._lines.get(one.principal, ())

    def add(self, one: S) -> None:
        line = self._lines.setdefault(one.principal, [])
        line.insert(bisect_right(line, one.priority, key=_priority), one)

    def put_back(self, one: S) -> None:
        """One that was served already: before all others of its priority."""
        line = self._lines.setdefault(one.principal, [])
        line.insert(bisect_left(line, one.priority, key=_priority), one)

    def remove(self, one: S) -> None:
        line = self._lines[one.principal]
        line.remove(one)
        if not line:
            del self._lines[one.principal]

    def next(self, places: Mapping[str, int]) -> S | None:
        """Who is to be served next, where principals hold so many places."""
        if not self._lines:
            return None
        return self._lines[min(self._lines, key=lambda name: places.get(name, 0))][0]

    def serve(self, one: S) -> None:
        """It is its turn: it leaves, and its principal's turn comes last again."""
        self.remove(one)
        if (line := self._lines.pop(one.principal, None)) is not None:
            self._lines[one.principal] = line


def places(running: list[S]) -> Counter[str]:
    """How many each principal holds."""
    return Counter([one.principal for one in running])


def _priority(one: Owned) -> int:
    return one.priority
