"""The pace: how fast the machine is now, and where the cost table is a little wrong.

A shared machine easily changes its speed by half within minutes, but two passes made moments apart still compare. So
seconds = level × table × correction: the level follows at once, a correction slowly, and only from passes that were
made next to passes of other sizes. While all passes are alike, a change is the machine's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import exp, log
from operator import add, mul
from statistics import median
from typing import NamedTuple

from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.isotonic import isotonic

_WINDOW = 8
_MOST = log(1.3)
"""A pass further than this from what was measured tells of something else than its rows, and counts no more. Where
it is so far from all passes around it, and was the last time, with others between, what was measured is wrong."""
_APART = _WINDOW // 2
"""After so many passes on a machine that has become faster or slower, that is what they are compared with."""
_LEAST_RATE = 0.03
_GUESSED = 1e-3
"""Comparisons that what was never seen counts for: it gives way to what was."""
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
        self._surprises = [(0, 0.0)] * len(ROWS)
        """The last comparison of each: of which pass, and how far beyond the others it was."""
        self._passes = 0
        self._run: set[int] = set()
        """Those of which there was a pass."""
        self._level: float | None = None
        self._buckets = [min(bisect_left(ROWS, r), len(ROWS) - 1) for r in range(most + 1)]
        self._context = -1e9
        self._line: list[float] = []
        self._further = 0.0
        """What each request but one adds to it."""
        self._drawn: list[float] = []

    def observe(self, rows: int, context: float, seconds: float, requests: int = 1) -> float | None:
        """A step of so many rows, at most `most`, of so many requests took so long. How much less or more than expected
        that is beside any of the passes of other sizes around it (log); None where there were too few of those."""
        self._look(context)
        bucket = self._buckets[rows]
        off, beyond = log(seconds / (self._line[rows] + (requests - 1) * self._further)), None
        others = [value - self._corrections[b] for b, value in self._recent if b != bucket]
        self._passes += 1
        self._run.add(bucket)
        # The minority learns from the majority: one odd pass must not correct its many neighbours.
        if others and 2 * len(others) >= len(self._recent):
            mine = off - self._corrections[bucket]
            beyond = min(0.0, mine - min(others)) + max(0.0, mine - max(others))
            surprise, excess = mine - median(others), 0.0
            if bucket and not self._table.measured:
                # Dearer than its rows one by one is no pass worth making: what is beyond that is not its own.
                most = log(rows * self._line[1] / self._line[rows]) + self._corrections[0] - self._corrections[bucket]
                excess = max(0.0, surprise - max(0.0, most))
            self._correct(bucket, surprise - excess, beyond if len(others) >= _APART else 0.0)
            off -= excess
        self._recent.append((bucket, off))
        self._level = None
        return beyond

    def _correct(self, bucket: int, surprise: float, beyond: float) -> None:
        now, (when, last) = self._passes, self._surprises[bucket]
        self._surprises[bucket] = now, beyond
        if self._table.measured:
            if now - when > _APART and min(abs(beyond), abs(last)) > _MOST and beyond * last > 0:
                self._seen[bucket] = 0.0
            else:
                surprise = min(_MOST, max(-_MOST, surprise))
        self._seen[bucket] += 1
        self._corrections[bucket] += max(_LEAST_RATE, 1 / self._seen[bucket]) * surprise
        self._drawn = []

    @property
    def level(self) -> float:
        """How many times the table's seconds things take now."""
        if self._level is None:
            off = [value - self._corrections[b] for b, value in self._recent]
            self._level = exp(median(off)) if off else 1.0
        return self._level

    def costs(self, context: float, requests: int = 1) -> Sequence[float]:
        """At [r]: what a step of r rows of so many requests costs, in the table's seconds. To be read, not changed."""
        self._look(context)
        if not self._drawn:
            factors = [exp(correction) for correction in self._all_corrections()]
            corrected = [seconds * factors[b] for seconds, b in zip(self._line, self._buckets, strict=True)]
            self._drawn = isotonic(corrected, [_GUESSED + self._seen[b] for b in self._buckets])
        more = (requests - 1) * self._further
        return [cost + more for cost in self._drawn] if more else self._drawn

    def _all_corrections(self) -> list[float]:
        """What was never run is taken to be as wrong as its neighbours: straight between those that were."""
        if not self._run:
            return self._corrections
        known, found = sorted(self._run), []
        for bucket, row in enumerate(ROWS):
            place = bisect_left(known, bucket)
            low, high = known[max(0, place - 1)], known[min(place, len(known) - 1)]
            part = min(1.0, max(0.0, (row - ROWS[low]) / max(1, ROWS[high] - ROWS[low])))
            found.append((1 - part) * self._corrections[low] + part * self._corrections[high])
        return found

    def _look(self, context: float) -> None:
        """Read the table again where the context has changed by much."""
        if abs(context - self._context) >= _NEAR:
            self._context = context
            self._line, self._drawn = self._table.pass_seconds(self._most, context), []
            self._further = self._table.further_request(context)


LONG_PAUSE = 32
"""Steps after which a drafter has as much to catch up with as it ever will."""


_FOR_EVER = 0.02
"""Of what the table counts for at first, that never fades."""
_HICCUP = 1.5
"""How many times as long as an ordinary draft one counts, at most, where none of the last `_WINDOW` took as long."""


_LATE = 0.3
"""How much what it took to catch up before the last draft counts."""
_CHEAP = 0.7
"""Of what drafts take without catching up: less is not by chance, and whoever took less did not catch up for long."""
_FEW_PAUSES = 0.25
"""Tokens to catch up with, in long pauses, up to which a draft tells of levels and rows as well."""
_FAR_LESS = 0.25
"""Of the same: where the first draft after a pause takes no more, what was believed before is given up."""


_UNKNOWN_LEVEL = 0.3
"""What a level is taken to cost, of a pass, by a drafter that the table does not have: so that it is asked for little
before that is known."""


class DraftRun(NamedTuple):
    """What drafting ran in a step: passes one after the other, and rows in all of them, whosever they are."""

    levels: int
    rows: int


class DraftPace:
    """What one drafter costs, in the table's seconds: the table's word, corrected by what its drafts took, least
    squares with a fading memory.

    While all drafts have the same depth, or as many rows, the split is unknowable, and stays about as it was measured.
    It goes by rows, not by requests: trees are wide for few requests and narrow for many.
    """

    _FADE = 0.96

    def __init__(self, known: DraftCost) -> None:
        self.fixed, self.per_level, self.row = known.fixed, known.per_level, known.row
        self._catching_up = max(0.0, known.resume - known.fixed)
        self.reading = self._catching_up / LONG_PAUSE
        """What reading a token takes, where many are read at once."""
        self._is_first = True
        self._off: deque[float] = deque(maxlen=_WINDOW)
        """How many times as long as expected the last drafts took."""
        self._sums = [[0.0] * 4 for _ in range(3)]
        """Of each of three coefficients with each of them and the seconds: normal equations."""
        for levels in (1, 4):  # the table counts like a few drafts
            for rows in (2, 8):
                self._add(DraftRun(levels, levels * rows), self.fixed + levels * self.level(rows))
        # ... and a little for ever, so that what no draft tells apart has an answer.
        self._known = [[value * _FOR_EVER for value in line] for line in self._sums]

    def observe(self, run: DraftRun, seconds: float, behind: int = 0) -> None:
        """Drafts took so long that ran this, behind catching up with so many tokens. A hiccup counts, but for little
        more than an ordinary draft, and the first draft of all, which finds nothing ready, not at all: what looks too
        dear is hardly asked again, and that would stay. What takes as long twice within a few drafts is none."""
        if self._is_first:
            self._is_first = False
            return
        usual, late, fade, pauses = self.seconds(run), self.catching_up(behind), self._FADE, behind / LONG_PAUSE
        if usual + late > 0:
            most = max([_HICCUP, *self._off])
            self._off.append(seconds / (usual + late))
            seconds = min(seconds, most * (usual + late))
        caught_up = behind and seconds > _CHEAP * usual
        if caught_up:  # of a few tokens little is learned: what is not theirs would count for as many times more
            error = (seconds - usual - late) * min(pauses, 1 / pauses)
            self._catching_up = max(0.0, self._catching_up + _LATE * error)
        elif behind and seconds < _FAR_LESS * usual:
            fade, self._catching_up = (seconds / usual) ** 2, min(self._catching_up, seconds)
        self._sums = [[fade * value for value in line] for line in self._sums]
        if not caught_up:
            self._add(run, seconds)
        elif pauses < _FEW_PAUSES:
            self._add(run, max(0.0, seconds - late))
        sums = [list(map(add, *lines)) for lines in zip(self._sums, self._known, strict=True)]
        _, per_level, row = _solved(sums)
        weight, all_levels, all_rows, all_seconds = sums[0]
        self.per_level, self.row = max(0.0, per_level), max(0.0, row)
        spent = self.per_level * all_levels + self.row * all_rows
        self.fixed = max(0.0, (all_seconds - spent) / weight)
        if spent > all_seconds:  # where beginning one would take less than nothing, levels take less
            self.per_level *= all_seconds / spent
            self.row *= all_seconds / spent

    def seconds(self, run: DraftRun) -> float:
        """What drafts take that run so much."""
        return self.fixed + run.levels * self.per_level + (run.rows - run.levels) * self.row

    def level(self, rows: float) -> float:
        """Of so many rows; `fixed` before the first, whose pass reads what was accepted meanwhile."""
        return self.per_level + self.row * (rows - 1)

    def catching_up(self, behind: int) -> float:
        """What it takes before drafts of requests that are so many tokens behind, all together."""
        return self._catching_up * behind / LONG_PAUSE

    def _add(self, run: DraftRun, seconds: float) -> None:
        told = (1.0, run.levels, run.rows - run.levels, seconds)
        for line, one in zip(self._sums, told, strict=False):
            for i, other in enumerate(told):
                line[i] += one * other


class DraftPaces:
    """Of the drafters thought of so far, by name."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.known: dict[str, DraftPace] = {}

    def reprice(self, table: CostTable) -> None:
        """Costs were measured better: nothing that was learned beside the old ones holds."""
        self.table, self.known = table, {}

    def of(self, name: str) -> DraftPace:
        pace = self.known.get(name)
        if pace is None:
            cost = self.table.drafting.get(name) or DraftCost(0.0, _UNKNOWN_LEVEL * self.table.first)
            pace = self.known[name] = DraftPace(cost)
        return pace


def _solved(lines: list[list[float]]) -> list[float]:
    """Linear equations, coefficients and what they come to: positive definite, so none is divided by nothing."""
    lines = [line.copy() for line in lines]
    for i, line in enumerate(lines):
        for other in lines[i + 1 :]:
            factor = other[i] / line[i]
            for k in range(i, len(line)):
                other[k] -= factor * line[k]
    found = [0.0] * len(lines)
    for i in reversed(range(len(lines))):
        found[i] = (lines[i][-1] - sum(map(mul, lines[i][i + 1 : -1], found[i + 1 :]))) / lines[i][i]
    return found
