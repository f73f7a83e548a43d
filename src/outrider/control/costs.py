"""The cost table: what a pass costs by its rows and what drafting costs, measured on this machine.

It estimates the *shape* of costs. How fast the machine is at the moment is another matter (`pace`).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import accumulate

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 64)
"""Row counts that are measured; between them costs are drawn straight, beyond them as the last two go on. 17: many
kernels multiply rows by sixteens, so that one more is a step, just where sixteen requests begin to draft."""


_SHORTEST, _LONGEST = 1e-12, 1e4
"""Seconds that nothing takes: so little, unless it is nothing, and so much."""
_LONGEST_CONTEXT = 1 << 30


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of a draft: `fixed` for beginning one, `per_level` for every level of it, of one node, and `row` for each
    node more; `resume` for beginning one after a long pause, when the drafter has to catch up first."""

    fixed: float
    per_level: float
    resume: float = 0.0
    row: float = 0.0


@dataclass(frozen=True, slots=True)
class CostTable:
    """`seconds[c][i]`: of a pass of `rows[i]` rows of one request behind `contexts[c]` tokens. Rows cost alike,
    whosever they are, but for `attending`: what each further request adds to a pass behind the last of the contexts
    beyond the first, however many rows it has, for its past is read once. `overhead`: what a step takes besides its
    pass. `drafting`: by the drafter's name."""

    rows: Sequence[int]
    contexts: Sequence[int]
    seconds: Sequence[Sequence[float]]
    overhead: float = 0.0
    drafting: Mapping[str, DraftCost] = field(default_factory=dict)
    measured: bool = True
    attending: float = 0.0
    spread: float = 0.0
    """How far timings of the same differed, in the median; much where a machine did other things meanwhile."""

    def pass_seconds(self, most: int, context: float) -> list[float]:
        """At [r]: of a step of r rows of one request, up to `most`; never falls as rows grow ([0] is [1])."""
        wanted = [max(r, 1) for r in range(most + 1)]
        near, far = (straight(self.rows, line, wanted) for line in (self.seconds[0], self.seconds[-1]))
        part = self._part(context)
        line = [a + part * max(0.0, b - a) + self.overhead for a, b in zip(near, far, strict=True)]
        return list(accumulate(line, max))

    def further_request(self, context: float) -> float:
        """What each request of a step but one adds to that, besides its rows."""
        return self._part(context) * self.attending

    def _part(self, context: float) -> float:
        """How far behind the first of the contexts, where the last one is at 1."""
        span = self.contexts[-1] - self.contexts[0]
        return max(0.0, (context - self.contexts[0]) / span) if span else 0.0

    @property
    def first(self) -> float:
        """Seconds of a pass of one row, behind a short context."""
        return self.pass_seconds(1, self.contexts[0])[1]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> CostTable:
        """Raises ValueError, KeyError, TypeError, AttributeError or RecursionError where it is none that can have been
        measured."""
        read = json.loads(text)
        drafting = {
            name: DraftCost(cost["fixed"], cost["per_level"], cost["resume"], cost["row"])
            for name, cost in read.pop("drafting").items()
        }
        table = CostTable(drafting=drafting, **read)
        if tuple(table.rows) != ROWS or len(table.contexts) != 2 or not _are_contexts(*table.contexts):
            raise ValueError("other rows or contexts than are measured")
        if [len(line) for line in table.seconds] != [len(ROWS)] * 2:
            raise ValueError("not a line for each context")
        costs = [number for cost in drafting.values() for number in astuple(cost)]
        if not all(_SHORTEST < number < _LONGEST for line in table.seconds for number in line):
            raise ValueError("a pass takes some time, and not for ever")
        others = (table.overhead, table.attending, table.spread, *costs)
        if not all(number == 0 or _SHORTEST < number < _LONGEST for number in others):
            raise ValueError("nothing takes less than no time")
        return table


def _are_contexts(near: float, far: float) -> bool:
    return 1 <= near <= far <= _LONGEST_CONTEXT


def straight(rows: Sequence[int], seconds: Sequence[float], wanted: Sequence[int]) -> list[float]:
    """Seconds of so many rows each, where those of two `rows` at least are known: between them drawn straight, beyond
    them as the last two go on."""
    line = []
    for r in wanted:
        right = min(max(bisect_left(rows, r), 1), len(rows) - 1)
        low, high = rows[right - 1], rows[right]
        slope = (seconds[right] - seconds[right - 1]) / (high - low)
        line.append(seconds[right - 1] + slope * (r - low))
    return line


def assumed(row: float) -> CostTable:
    """Where nothing can be measured: each further row costs `row` of the first, in a unit nobody knows."""
    line = [1 + row * (r - 1) for r in ROWS]
    return CostTable(ROWS, (0, 0), (line, line), measured=False)
