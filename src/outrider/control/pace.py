"""The pace: how fast the machine is now, and where the cost table is a little wrong.

A shared machine easily changes its speed by half within minutes, but two passes made moments apart still compare. So
seconds = level × table × correction: the level follows at once, a correction slowly, and only from passes that were
made next to passes of other sizes. While all passes are alike, a change is the machine's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log
from statistics import median

from outrider.control.costs import ROWS, CostTable, DraftCost

_WINDOW = 8
_MOST = log(1.3)
"""A pass further than this from what was measured tells of something else than its rows, and counts no more."""
_LEAST_RATE = 0.03
_NEAR = 64
"""Contexts that differ by less cost the same."""


class Pace:
    def __init__(self, table: CostTable, most: int) -> None:
        """`most`: the largest number of rows `costs` will be asked for."""
        self._table = table
        self._most = most
        self._corrections = [0.0] * len(ROWS)  # log
        self._seen = [4.0 if table.measured else 0.0] * len(ROWS)
        """Comparisons that each correction rests on; what was measured counts like some."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # (bucket, log of seconds / table)
        self._level: float | None = None
        self._buckets = [min(bisect_left(ROWS, r), len(ROWS) - 1) for r in range(most + 1)]
        self._context = -1e9
        self._line: list[float] = []
        self._drawn: list[float] = []

    def observe(self, rows: int, context: float, seconds: float) -> None:
        """A step of so many rows, at most `most`, took so long."""
        self._look(context)
        bucket = self._buckets[rows]
        off = log(seconds / self._line[rows])
        others = [value - self._corrections[b] for b, value in self._recent if b != bucket]
        # The minority learns from the majority: one odd pass must not correct its many neighbours.
        if others and 2 * len(others) >= len(self._recent):
            surprise = off - median(others) - self._corrections[bucket]
            if self._table.measured:
                surprise = min(_MOST, max(-_MOST, surprise))
            self._seen[bucket] += 1
            self._corrections[bucket] += max(_LEAST_RATE, 1 / self._seen[bucket]) * surprise
            self._drawn = []
        self._recent.append((bucket, off))
        self._level = None

    @property
    def level(self) -> float:
        """How many times the table's seconds things take now."""
        if self._level is None:
            off = [value - self._corrections[b] for b, value in self._recent]
            self._level = exp(median(off)) if off else 1.0
        return self._level

    def costs(self, context: float) -> Sequence[float]:
        """At [r]: what a step of r rows costs, in the table's seconds. To be read, not changed."""
        self._look(context)
        if not self._drawn:
            factors = [exp(correction) for correction in self._corrections]
            corrected = (seconds * factors[b] for seconds, b in zip(self._line, self._buckets, strict=True))
            self._drawn = list(accumulate(corrected, max))
        return self._drawn

    def _look(self, context: float) -> None:
        """Read the table again where the context has changed by much."""
        if abs(context - self._context) >= _NEAR:
            self._context = context
            self._line, self._drawn = self._table.pass_seconds(self._most, context), []


LONG_PAUSE = 32
"""Steps after which a drafter has as much to catch up with as it ever will."""


_NODES = 2
"""Of a level, about, and rows to read before a draft."""


class DraftPace:
    """What one drafter costs, in the table's seconds: the table's word, corrected by what its drafts took, least
    squares with a fading memory.

    While all drafts have the same depth the split is unknowable, and stays as it was measured.
    """

    _FADE = 0.96

    def __init__(self, known: DraftCost) -> None:
        fixed, per_level = known.fixed, known.per_level + (_NODES - 1) * known.row
        self.fixed, self.per_level, self.row = fixed, per_level, known.row
        self._catching_up = max(0.0, known.resume - known.fixed)
        self.reading = self._catching_up / LONG_PAUSE
        """What reading a token takes, where many are read at once."""
        self._sums = [0.0] * 5  # weight, x, y, xx, xy
        for levels in (1, 4):  # the table counts like a few drafts
            self._add(levels, fixed + levels * per_level, 2.0)

    def observe(self, levels: int, sharing: int, seconds: float) -> None:
        """Drafts of so many levels took so long, for so many requests. A hiccup counts, but for no more than a few
        ordinary drafts."""
        usual = self.fixed + self.per_level * levels
        alone = max(0.0, seconds - (1 + levels) * self._others(sharing))
        self._sums = [self._FADE * value for value in self._sums]
        self._add(levels, min(alone, 3 * usual) if usual > 0 else alone, 1.0)
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-6 else self.per_level
        self.per_level = min(max(0.0, slope), xy / xx)
        self.fixed = max(0.0, (y - self.per_level * x) / n)

    def beginning(self, sharing: int) -> float:
        """Of drafts for so many requests."""
        return self.fixed + self._others(sharing)

    def level(self, sharing: int) -> float:
        """Of drafts for so many requests."""
        return self.per_level + self._others(sharing)

    def catching_up(self, idle: int) -> float:
        """What it takes before a draft after so many steps without one."""
        return self._catching_up * min(1.0, idle / LONG_PAUSE)

    def _others(self, sharing: int) -> float:
        """What their rows add to a pass."""
        return _NODES * self.row * (sharing - 1)

    def _add(self, levels: int, seconds: float, weight: float) -> None:
        for i, value in enumerate((1.0, levels, seconds, levels * levels, levels * seconds)):
            self._sums[i] += weight * value
