"""The survey: fills the cost table, piece by piece between steps, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from math import inf
from statistics import median
from time import perf_counter
from typing import Protocol

from outrider.control.costs import ROWS, CostTable, DraftCost, straight

_FIRST_SHARE, _SHARE = 0.5, 0.04
"""Of a step, at most, that measuring takes after it (but one piece at least): until there is a table, which is what
drafts wait for, and of all steps since then, until there is a better one."""
_NEAR, _FAR = 64, 1024
"""Contexts measured; costs are drawn straight through both."""
_FAR_ROWS = (1, 4, 16)
_ROUGH_ROWS = (1, 2, 4, 8, 16)
"""Of the passes that are timed first; between them and beyond them costs are drawn straight until the others are."""
_SOME_ROWS = 8
"""Rows of a drafter's pass that is measured beside one of a single row; drawn straight through both."""
_BEGIN_ROWS, _RESUME_ROWS = 2, 32
"""Rows that a drafter has to read before it begins a draft, beyond the last: those accepted meanwhile, and after a
pause."""
_DEARER = 1.25
"""How many times as long as its rows take in passes of fewer a pass must take to be timed once more: then something
came between."""
_ROUNDS, _PASSES = 6, 3
"""How often everything is timed, at most, and how many passes of one row that may take beyond the first two times: of
noisy timings more are needed, and where rows cost little, more take little."""
_SOME_STEPS = 3
"""Steps that a table is to rest on which is kept: one that was disturbed has time for everything after it."""
STEADY = 0.2
"""A table whose repetitions differ by more, in the median, is used but not kept."""


class Measurable(Protocol):
    """A network, as far as a survey has to do with it."""

    def measure(self, rows: int, context: int) -> float:
        """As `CachedNetwork.measure`."""
        ...


_Piece = tuple[Measurable, int, int]


class Survey:
    """Of one target and its drafters. Decoding goes on meanwhile, plainly until a few passes were timed once: that
    makes a rough table, good enough to draft by, for as long as one pass takes, about. All are timed several times
    then, while nobody notices, and make the table that is kept. Each is timed on a part of it."""

    def __init__(
        self,
        target: Measurable,
        drafters: Mapping[str, Measurable],
        max_context: int,
        keep: Callable[[CostTable], None] = lambda table: None,
    ) -> None:
        """`keep` is given the table once it is complete, if it was measured in peace."""
        self._target = target
        self._drafters = drafters
        self._near, self._far = contexts(max_context)
        self._keep = keep
        self._samples: dict[_Piece, list[float]] = {}
        self._spent = 0.0
        """Seconds, on timing."""
        self._first, self._all = iter(self._near_pieces(_ROUGH_ROWS)), self._all_pieces()
        self._interrupted: _Piece | None = None
        """Being timed, or to be timed again (Ctrl-C)."""
        self._is_known = False
        """Whether there is a table, be it rough."""
        self.over = False
        """Whether the last table has been given."""
        self._steps = 0
        self._plain: list[tuple[int, float, float]] = []
        """Steps: their rows, as many as requests, contexts and seconds."""
        self._owed = 0.0
        """Seconds that measuring may take by now, after the rough table."""

    def advance(self, rows: int, requests: int, context: float, seconds: float) -> CostTable | None:
        """A step of so many rows took so long: measure a little more; a table whenever there is a better one, the last
        time when this is `over`."""
        if self.over:
            return None
        self._steps += 1
        if rows == requests:
            self._plain.append((rows, context, seconds))
        if not self._is_known:
            if not self._measure(self._first, _FIRST_SHARE * seconds):
                return None
            table, self._is_known = self._table(), True
            return table
        self._owed += _SHARE * seconds
        before = self._spent
        done = self._owed > 0 and self._measure(self._all, self._owed)
        self._owed -= self._spent - before
        return self._last_table() if done else None

    def whole(self) -> CostTable:
        """Everything that is left at once, for people who want to see it."""
        self._measure(self._first, inf)
        self._measure(self._all, inf)
        return self._last_table()

    def finish(self, seconds: float) -> None:
        """What is left to be timed, as nobody waits, but no longer than this and a piece. A table that this completes
        is kept, and the next step is given it, whatever measuring may take then."""
        if self._is_known and not self.over and self._measure(self._all, seconds):
            self._owed = inf
            self._kept()

    def _measure(self, pieces: Iterator[_Piece], seconds: float) -> bool:
        """One piece at least, and no more once so long has passed. Whether none is left."""
        started = perf_counter()
        while (piece := self._interrupted or next(pieces, None)) is not None:
            self._interrupted = piece
            self._time(piece)
            self._interrupted = None
            if perf_counter() - started > seconds:
                return False
        return True

    def _last_table(self) -> CostTable:
        self.over = True
        return self._kept()

    def _kept(self) -> CostTable:
        """The table, which is kept if it was measured in peace."""
        table = self._table()
        if table.spread <= STEADY and self._steps not in range(1, _SOME_STEPS):
            self._keep(table)
        return table

    def _time(self, piece: _Piece) -> None:
        model, rows, context = piece
        started = perf_counter()
        seconds = model.measure(rows, context)
        self._samples.setdefault(piece, []).append(seconds)
        self._spent += perf_counter() - started

    def _all_pieces(self) -> Iterator[_Piece]:
        near = self._near_pieces(ROWS)
        far: list[_Piece] = [(self._target, rows, self._far) for rows in _FAR_ROWS]
        for _ in range(2):  # the first pass of so many rows takes a sixth longer than those that follow
            yield from near
            yield from far
        yield from (piece for piece in near if self._is_disturbed(piece))
        again = int(_PASSES * self._least(near[0]) / (self._spent / 2)) if self._spent > 0 else _ROUNDS
        for _ in range(min(_ROUNDS - 2, again)):
            yield from (*far, *near)

    def _near_pieces(self, rows: Sequence[int]) -> list[_Piece]:
        drafters = [(drafter, some, self._near) for drafter in self._drafters.values() for some in (1, _SOME_ROWS)]
        return [(self._target, some, self._near) for some in rows] + drafters

    def _least(self, piece: _Piece) -> float:
        return min(self._samples[piece])  # what disturbs only ever takes longer

    def _is_disturbed(self, piece: _Piece) -> bool:
        return self._least(piece) > _DEARER * self._in_parts(piece)

    def _in_parts(self, piece: _Piece) -> float:
        """What its rows take in passes of fewer: more than that no pass needs to take."""
        model, rows, context = piece
        fewer = [other for other in self._samples if other[0] is model and other[2] == context and other[1] < rows]
        return min([-(-rows // other[1]) * self._least(other) for other in fewer], default=float("inf"))

    def _table(self) -> CostTable:
        def of(model: Measurable, rows: int) -> float:
            piece = (model, rows, self._near)
            return self._in_parts(piece) if self._is_disturbed(piece) else self._least(piece)

        timed = [rows for rows in ROWS if (self._target, rows, self._near) in self._samples]
        near = straight(timed, _undisturbed([of(self._target, rows) for rows in timed]), ROWS)
        far_rows = [rows for rows in _FAR_ROWS if (self._target, rows, self._far) in self._samples]
        added = [self._least((self._target, rows, self._far)) - near[ROWS.index(rows)] for rows in far_rows]
        row, attending = _each_and_all(far_rows, added)
        far = [seconds + attending + rows * row for rows, seconds in zip(ROWS, near, strict=True)]
        drafting = {}
        for name, drafter in self._drafters.items():
            one, some = (of(drafter, rows) for rows in (1, _SOME_ROWS))
            row = max(0.0, some - one) / (_SOME_ROWS - 1)
            drafting[name] = DraftCost(_BEGIN_ROWS * row, one, some + row * (_RESUME_ROWS - _SOME_ROWS), row)
        contexts = self._near, self._far
        table = CostTable(ROWS, contexts, (near, far), 0.0, drafting, attending=attending, spread=self._spread())
        if not self._plain:
            return table
        passes = [table.pass_seconds(r, c)[r] + (r - 1) * table.further_request(c) for r, c, _ in self._plain]
        overhead = min([seconds - taken for (_, _, seconds), taken in zip(self._plain, passes, strict=True)])
        return replace(table, overhead=max(0.0, overhead))

    def _spread(self) -> float:
        """How far the two least repetitions differ, in the median: how well what is believed was seen again."""
        least = [sorted(seconds)[:2] for seconds in self._samples.values() if len(seconds) > 1]
        return median([(second - first) / (second or 1.0) for first, second in least]) if least else 0.0


def contexts(max_context: int) -> tuple[int, int]:
    """Those that are measured where a request may have so many tokens; one twice where no straight line is to be drawn
    through two so close together."""
    far = max(2, min(_FAR, max_context - max(_FAR_ROWS)))
    near = min(_NEAR, far)
    return near, near if far < 2 * near else far


def _each_and_all(rows: Sequence[int], added: Sequence[float]) -> tuple[float, float]:
    """What each row adds and what all of them together do, by what so many rows added. By medians: a disturbed timing
    counts for nothing."""
    points = list(zip(rows, added, strict=True))
    if len(points) < 2:
        return 0.0, 0.0
    each = max(0.0, median([(b - a) / (s - r) for (r, a), (s, b) in combinations(points, 2)]))
    return each, max(0.0, median([more - each * r for r, more in points]))


def _undisturbed(line: Sequence[float]) -> list[float]:
    """What takes longer than a wider pass was disturbed."""
    return list(accumulate(reversed(line), min))[::-1]
