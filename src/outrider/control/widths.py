"""How wide the passes of a drafter are: the rows of one request in each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_CLAIMS = (0.02, 0.05, 0.1, 0.2, 0.4)
_RATE = 1 / 64


class Widths:
    """Rows that one request has in a pass behind the first: the nodes of the level before that are likely enough. Known
    by how likely that is, for it depends on what passes are worth: trees are wide for few requests, narrow for many."""

    def __init__(self) -> None:
        self._rows = [2.0, 2.0, 1.5, 1.5, 1.0]
        """By the least of `_CLAIMS`; a guess at first."""

    def observe(self, claims: Sequence[float]) -> None:
        """Of the nodes of one level: how likely they were said to be."""
        rising, count = sorted(claims), len(claims)
        rows = [count - bisect_left(rising, least) or 1 for least in _CLAIMS]
        self._rows = [before + _RATE * (now - before) for before, now in zip(self._rows, rows, strict=True)]

    def at(self, least: float) -> float:
        """Where only nodes so likely are followed up."""
        return self._rows[min(bisect_left(_CLAIMS, least), len(_CLAIMS) - 1)]


def followed_up(levels: Sequence[int], claims: Sequence[float], passes: int) -> list[list[float]]:
    """Of a draft that took so many passes, whose nodes are at these levels: by level that a pass was made behind, how
    likely its nodes were said to be."""
    found: list[list[float]] = [[] for _ in range(passes - 1)]
    for level, claim in zip(levels, claims, strict=True):
        if level < passes - 1:
            found[level].append(claim)
    return found
