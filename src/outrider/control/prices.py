"""Prices: what a row and a token cost in the step at hand, from the cost table at the machine's present pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.control.costs import CostTable, assumed
from outrider.control.pace import Pace
from outrider.control.steps import evenly
from outrider.control.survey import Survey
from outrider.core.step import StepShape

_CHEAP_ROW = 0.02
"""What a row is taken to cost, of a pass, where costs cannot be measured."""
_PLAIN_SOON, _PLAIN_EVERY = 8, 128
"""Drafting steps in a row before a plain one: what that takes, all else is compared with. At first, and where it came
out other than expected, and at most: every time that it came out so, twice as many."""
_LATELY = 1 / 32
"""How much a step counts at least."""
_EXPECTED = 0.2
"""What a plain step may differ from what was expected beside any of the others (log)."""


class Prices:
    """In the table's seconds, followed from step to step. Until there is a table they are guessed, for the few who
    cannot wait."""

    def __init__(self, rows: int, table: CostTable | None, survey: Survey | None) -> None:
        """Steps of at most `rows` rows. The table is given, or will be by the `survey`; with neither it is assumed, and
        corrected by what steps take."""
        self._rows = rows
        self.table = table or (None if survey else assumed(_CHEAP_ROW))
        self.row = 0.0
        """What one more row adds to the step: on average of as many as add least, for one alone may be a step up that
        others then share; and once some are chosen, on average of those."""
        self.usual_row = 0.0
        """What each row of drafts added on average when some were last chosen from, 0 before; one pass more or less
        cannot be told from noise."""
        self.token = 0.0
        """What a token is worth: what it costs now."""
        self.plain_step = self.plain_token = 0.0
        """What the step costs without drafts, and a token then."""
        self.most_gained = 0.0
        """By drafts in the step, were every row of them right."""
        self.passes: Sequence[float] = ()
        """At [r]: what a pass of r rows costs, as of the last step that might have drafted."""
        self.efficiency = 1.0
        """What a token costs now, of what it costs plainly."""
        self.unpaid = 1.0
        """What it would cost if nothing but what is looked up were drafted, at most 1."""
        self._survey = survey
        self._pace = Pace(self.table or assumed(_CHEAP_ROW), rows)
        self._since_plain = _PLAIN_EVERY
        self._plain_every = _PLAIN_SOON

    def survey(self, rows: int, requests: int, context: float, seconds: float) -> CostTable | None:
        """After a step: measure a little more, where that is still to do; a table, when there is a better one."""
        if self._survey is None:
            return None
        table = self._survey.advance(rows, requests, context, seconds)
        if self._survey.over:
            self._survey = None
        if table is not None:
            self.table, self._pace = table, Pace(table, self._rows)
        return table

    def plain_due(self) -> bool:
        """Before a step: whether it should be a plain one."""
        self._since_plain += 1
        return self._since_plain > self._plain_every

    def step(self, requests: int, context: float, seconds: Mapping[StepShape, float] | None = None) -> Sequence[float]:
        """Before a step that may draft: at [r], what it costs with r rows, one for each request at least. `seconds`: of
        steps of so many requests on a device, by their shapes, if it is one of those."""
        costs, most = self._pace.costs(context, requests), self._rows
        if requests >= len(costs):
            costs = [*costs, *[costs[-1]] * (requests + 1 - len(costs))]
        if seconds:
            costs = evenly(seconds, requests, costs[requests])
            most = len(costs) - 1
        self.passes = costs
        plain = self.plain_step = costs[requests]
        self.plain_token = plain / requests
        self.token = min(1.0, self.efficiency) * self.plain_token
        added = [cost - plain for cost in costs[requests + 1 : most + 1]]
        self.row = min([more / rows for rows, more in enumerate(added, 1)], default=plain)
        self.most_gained = max([rows * self.plain_token - more for rows, more in enumerate(added, 1)], default=0.0)
        return costs

    def rested(self) -> None:
        """A plain step is over that tells nothing."""
        self._since_plain = 0

    def observe(self, requests: int, rows: int, context: float, seconds: float) -> None:
        """A step took so long, without drafting. Only once there is a table."""
        beyond = self._pace.observe(rows, context, seconds, requests) if rows <= self._rows else None
        if rows > requests:
            return
        self._since_plain = 0
        if beyond is not None:
            is_expected = abs(beyond) < _EXPECTED
            self._plain_every = min(_PLAIN_EVERY, 2 * self._plain_every) if is_expected else _PLAIN_SOON

    def value(self, requests: int, charged: float, expected: float, steps: int) -> None:
        """After step number `steps`, what a token costs: its drafts took `charged` plain passes of one request, and
        `expected` tokens were expected of them."""
        # By what was expected, not by what came: luck must not make everything look dear.
        relative = (requests + charged) / (requests + expected)
        self.efficiency += max(_LATELY, 1 / (steps + 1)) * (relative - self.efficiency)

    def found(self, requests: int, chances: Sequence[Sequence[float]]) -> None:
        """What would be worth its row in this step, of what costs nothing to find."""
        least = self.row / self.token
        worth = sorted([chance for mine in chances for chance in mine if chance > least], reverse=True)
        worth = worth[: max(0, len(self.passes) - 1 - requests)]
        relative = (requests + len(worth) * self.row / self.plain_token) / (requests + sum(worth))
        self.unpaid += _LATELY * (min(1.0, relative) - self.unpaid)

    @property
    def level(self) -> float:
        """How many times the table's seconds things take now."""
        return self._pace.level
