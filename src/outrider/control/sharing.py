"""What passes of one paid drafter cost in a step, where several requests share them."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.control.choice import floor
from outrider.control.ledger import Ledger
from outrider.control.pace import DraftPace
from outrider.control.prices import Prices

_FEW = 2
"""Levels that are drafted where they cost more than is staked: of one alone little can be had."""
_SPARE = 1
"""Levels that are looked at beyond those for which a step has rows, were all alike."""


class Shared:
    """What passes of one drafter cost in the step at hand, where so many requests may share them."""

    __slots__ = (
        "_fixed",
        "_level",
        "_most",
        "_pass",
        "cost",
        "could_pay",
        "floor",
        "least",
        "requests",
        "row",
        "truth",
    )

    def __init__(self, cost: DraftPace, requests: int, prices: Prices, truth: float) -> None:
        """`truth`: as `Calibration.truth`, of its nodes."""
        self.cost, self.requests, self.truth = cost, requests, truth
        self.floor = floor(prices.row, prices.token, max(1.0, truth))
        """What a node must claim at least."""
        self.row = usual_row(prices)
        """What verifying one of its nodes costs, of a token."""
        self.least = prices.row / prices.token
        """How likely a node must be at least to be worth its row."""
        self.could_pay = prices.most_gained > cost.fixed + cost.level(requests)
        """Whether drafts that are always right would."""
        self._pass = prices.plain_token * requests
        self._fixed, self._level = cost.fixed, cost.level(requests) + requests * self.row * prices.token
        self._most = _SPARE + (len(prices.passes) - 1) // requests  # a step has so many rows

    def levels(self, ledger: Ledger, catching_up: float) -> int:
        """As deep as one may cost, with rows to verify it: by what its levels stake of what is left beside beginning it
        and catching up, which is lost once and gained by for some steps; or a few, where that is left for them."""
        if not self._level:
            return self._most
        left = (ledger.may_lose * self._pass - self._fixed - catching_up) / self._level
        return min(self._most, max(int(left * ledger.stake(self.requests)), min(int(left), _FEW)))

    def worthwhile(self, levels: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Tokens and rows of the first levels, up to one that is not worth its rows."""
        tokens, rows = [], []
        for more, further in levels:
            if more <= self.least * further:
                break
            tokens.append(more)
            rows.append(further)
        return tokens, rows


def usual_row(prices: Prices) -> float:
    """What a row of drafts costs, of a token."""
    return (prices.usual_row or prices.row) / prices.token
