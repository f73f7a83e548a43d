"""What a pass costs by its number of rows, and what drafting costs, both learned while running.

Everything is a ratio to the cost of the passes made just now: a shared machine easily changes its speed by
half within minutes, but two passes made moments apart still compare.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import exp, log
from statistics import median

from outrider.control.isotonic import isotonic

EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)
"""Passes are told apart by the smallest of these that is at least their rows; matrix kernels cost by the tile
too."""


def _prior(rows: int) -> float:
    """Before anything is measured: weights are read once per pass, so up to 16 rows cost hardly more than
    one."""
    if rows <= 16:
        return 1 + 0.004 * (rows - 1)
    return 1.06 + 0.02 * (rows - 16)


class CostCurve:
    """Seconds of a pass = level (how fast the machine is now) × shape (how passes of different rows compare).

    `level` is the median over the last few passes, so it follows the machine at once and ignores a hiccup.
    The shape of a size is the median of its last comparisons with passes of *other* sizes in that same short
    window: while passes of one size alone are seen, a change is the machine's, and nothing is learned about
    the shape. A size not seen for long, and the sooner the less it had been seen, is forgotten: nobody would
    look again at what one unlucky pass made appear expensive.
    """

    _WINDOW = 8
    _SAMPLES = 25
    _KEEP = 64
    """Steps a comparison is remembered without another one; a full set, `_SAMPLES` times as long."""

    _REFRESH = 4
    """The curve is drawn anew every so many passes; it changes slowly, and drawing costs more than
    looking."""

    def __init__(self, rows: int) -> None:
        """`rows`: the largest number of rows `costs` will be asked for."""
        self._buckets = [self._bucket(r) for r in range(rows + 1)]
        self._recent: deque[tuple[int, float]] = deque(maxlen=self._WINDOW)  # (bucket, log seconds)
        self._shape = [log(_prior(rows)) for rows in EDGES]
        self._samples: list[deque[float]] = [deque(maxlen=self._SAMPLES) for _ in EDGES]
        self._seen_at = [-(10**9)] * len(EDGES)
        self._steps = 0
        self._costs: list[float] = []
        self._drawn: list[int] = []  # the buckets that the costs now rest on
        self.surprise = 0.0
        """How far (in log seconds) the last comparison was off; 0 when the last pass allowed none."""

    @staticmethod
    def _bucket(rows: int) -> int:
        return min(bisect_left(EDGES, rows), len(EDGES) - 1)

    def observe(self, rows: int, seconds: float) -> None:
        if seconds <= 0:
            return
        bucket, value = self._bucket(rows), log(seconds)
        others = [x - self._shape[b] for b, x in self._recent if b != bucket]
        self.surprise = 0.0
        # The minority learns from the majority: one odd pass must not correct its many neighbours.
        if others and 2 * len(others) >= len(self._recent):
            sample = value - median(others)
            self.surprise = sample - self._shape[bucket]
            self._samples[bucket].append(sample)
            self._shape[bucket] = median(self._samples[bucket])
        self._steps += 1
        self._seen_at[bucket] = self._steps
        self._recent.append((bucket, value))
        if self._steps % self._REFRESH == 0 or bucket not in self._drawn or abs(self.surprise) > 0.15:
            self._costs = []

    @property
    def level(self) -> float:
        """Seconds of a pass of relative cost 1, now; 1.0 before the first pass."""
        if not self._recent:
            return 1.0
        return exp(median([x - self._shape[b] for b, x in self._recent]))

    def costs(self) -> list[float]:
        """Cost of a pass of r rows at [r], in units of `level`; never falls as rows grow."""
        if not self._costs:
            curve = self._monotone() if self._steps else [_prior(rows) for rows in EDGES]
            # Beyond the last edge a pass is bound by arithmetic, and that is proportional to its rows.
            self._costs = [curve[b] * max(1.0, r / EDGES[-1]) for r, b in enumerate(self._buckets)]
        return self._costs

    @property
    def widest(self) -> int:
        """The largest known number of rows; 0 before the first pass."""
        return EDGES[max(self._known())] if self._steps else 0

    def _known(self) -> list[int]:
        return [
            b
            for b, samples in enumerate(self._samples)
            if self._steps - self._seen_at[b] < self._KEEP * (1 + len(samples))
        ]

    def _monotone(self) -> list[float]:
        """Measured sizes made monotone, the others filled in: linearly between two of them, below the first
        by the prior, beyond the last by the prior or the average slope so far, whichever is dearer."""
        self._drawn = seen = self._known()
        weights = [1 + len(samples) for samples in self._samples]
        fitted = isotonic([exp(self._shape[b]) for b in seen], [weights[b] for b in seen])
        span = EDGES[seen[-1]] - EDGES[seen[0]]
        rise = (fitted[-1] - fitted[0]) / span if span else 0.0
        curve: list[float] = []
        for b, rows in enumerate(EDGES):
            right = bisect_left(seen, b)
            if 0 < right < len(seen):
                low, high = EDGES[seen[right - 1]], EDGES[seen[right]]
                part = (rows - low) / (high - low)
                curve.append(fitted[right - 1] + part * (fitted[right] - fitted[right - 1]))
            else:
                near = min(right, len(seen) - 1)
                measured = EDGES[seen[near]]
                by_prior = fitted[near] * _prior(rows) / _prior(measured)
                curve.append(max(by_prior, fitted[near] + rise * (rows - measured)) if right else by_prior)
        return curve


class DraftCost:
    """Cost of drafting = fixed + per_level × (depth of the deepest draft), least squares with a fading
    memory.

    A drafter that is itself a model pays per level (one pass each), a lookup next to nothing. While all
    drafts have the same depth the split is unknowable; a weak pull of `fixed` towards 0 then charges it all
    to the levels.
    """

    _FADE = 0.96
    _PULL = 0.5

    def __init__(self) -> None:
        self.fixed = 0.0
        self.per_level = 0.01
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # weight, x, y, xx, xy

    def observe(self, levels: int, cost: float) -> None:
        n, x, y, xx, xy = (self._FADE * value for value in self._sums)
        if n > 3:  # a hiccup counts, but not for more than a few ordinary drafts
            cost = min(cost, 3 * (self.fixed + self.per_level * max(1, levels)) + 1e-3)
        n, x, y, xx, xy = n + 1, x + levels, y + cost, xx + levels * levels, xy + levels * cost
        self._sums = (n, x, y, xx, xy)
        a, ridge = n + self._PULL, xx + 1e-6
        slope = (a * xy - x * y) / (a * ridge - x * x)
        if slope <= 0:
            self.fixed, self.per_level = y / n, 0.0
        else:
            self.per_level = slope
            self.fixed = max(0.0, (y - slope * x) / a)
            if self.fixed == 0.0:
                self.per_level = xy / ridge
