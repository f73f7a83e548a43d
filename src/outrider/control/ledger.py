"""The ledger: what drafting has cost a request and brought it. It keeps "never slower" whatever the estimates believe.

In passes of plain decoding. Drafts are charged what they added to the steps, and credited with the passes that their
accepted tokens saved. On top of what it has earned a request may lose a small share of its plain time, and something
to begin with; where that is used up, nothing is drafted for it.
"""

from __future__ import annotations

SHARE = 0.015
"""Of plain time that drafting may lose."""
_START = 1.0
"""Passes that may be lost before any time has gone by: nobody earns who has never tried."""
_MOST = 6.0
"""Earlier gains that count: who has gained much must not lose as much before it is noticed."""
PATIENCE = 0.06
"""Of plain time that a request may lose by the drafts of others: a step takes as long for all in it."""


class Ledger:
    """Of one request: what its own drafts may still lose, and how much longer than plain ones its steps may still take
    for tokens that go to others."""

    __slots__ = ("left", "lost", "patience")

    def __init__(self) -> None:
        self.left = _START
        self.lost = 0.0
        """Everything charged less everything credited."""
        self.patience = _START

    def step(self, charge: float, gained: int, stretch: float) -> None:
        """One step is over: its drafts cost `charge` passes and brought `gained` tokens, each of which saved one, and
        all the drafts of the batch together made it take 1 + `stretch` passes."""
        self.lost += charge - gained
        self.left = min(_MOST, self.left + SHARE + gained - charge)
        self.patience = min(_MOST, self.patience + PATIENCE + gained - stretch)

    def affords(self, charge: float) -> bool:
        """Whether so much may be lost now; after a loss, not before the time since has paid for it."""
        return self.left >= charge
