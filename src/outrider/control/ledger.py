"""The ledger: what drafting has cost a request and brought it. It keeps "never slower" whatever the estimates believe.

In passes of plain decoding. Drafts are charged what they added to the steps, and credited with the passes that their
accepted tokens saved. On top of what it has earned a request may lose a small share of its plain time, and something
to begin with; where that is used up, nothing is drafted for it.
"""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 0.015
"""Of plain time that drafting may lose."""
_START = 2.0
"""Passes that a request's own drafts may lose before any time has gone by: nobody earns who has never tried, and with
less two drafts without luck, as come to every other request, end drafting that would have paid."""
_LENT = 2.0
"""Passes beyond what it may lose that a request is lent by those it shares steps with."""
_PATIENT = 1.0
"""Passes that it may lose by others' before any time has gone by."""
_UNEVEN = 3.0
"""Passes beyond its patience that it may lose where each step's drafts are decided by what they are expected to bring
whom: that goes up and down from step to step, and whoever of sixteen could bear no more would stop all."""
_STAKE = 0.35
"""Of what it may lose, that the levels of one draft of a request by itself may cost: before anything is known of it the
deepest look best, and one without luck would end drafting for a hundred steps."""
_MOST = 6.0
"""Earlier gains that count: who has gained much must not lose as much before it is noticed."""
_RATE, _OVER = 1 / 4, 2.0
"""What a step counts for in what drafting costs beyond what was expected, and how many times that at most."""
PATIENCE = 0.1
"""Of plain time that a request may lose by the drafts of others: a step takes as long for all in it."""


class Ledger:
    """Of one request: what its own drafts may still lose, and how much longer than plain ones its steps may still take
    for tokens that go to others."""

    __slots__ = ("left", "lent", "patience")

    def __init__(self) -> None:
        self.left = _START
        self.lent = 0.0
        """What it may lose besides (`lend`)."""
        self.patience = _PATIENT

    def step(self, charge: float, gained: int, worth: float) -> None:
        """One step is over: its drafts cost `charge` passes and brought `gained` tokens, each of which saved one.
        `worth`: what such steps are expected to bring this request, less what the drafts of the whole batch have added
        to this one. Who has only been unlucky loses no patience: the next step is worth as much to it."""
        left, patience = self.left + SHARE + gained - charge, self.patience + PATIENCE + worth
        self.left = left if left < _MOST else _MOST
        self.patience = patience if patience < _MOST else _MOST

    def rest(self, steps: int) -> None:
        """So many steps without drafts are over."""
        self.left = min(_MOST, self.left + SHARE * steps)
        self.patience = min(_MOST, self.patience + PATIENCE * steps)

    @property
    def bears(self) -> float:
        """How much longer than a plain one a step on the host may take for what others gain."""
        return self.patience + _UNEVEN

    @property
    def may_lose(self) -> float:
        """After a loss, nothing before the time since has paid for it, or others lend."""
        return self.left + self.lent

    @staticmethod
    def stake(requests: int) -> float:
        """The part of what it may lose that one draft's levels may cost, where so many share steps: several lend to
        each other."""
        return 1.0 if requests > 1 else _STAKE

    def affords(self, charge: float) -> bool:
        """Whether so much may be lost now."""
        return self.may_lose >= charge


def lend(ledgers: Sequence[Ledger]) -> None:
    """Before a step of these requests: who has less left than they have on average is lent the difference, up to a
    limit. Drafts that are expected to pay and were only unlucky would else not be made again for a hundred steps, and
    who gains nothing by drafts bears none of the others', who share its steps. What all of them lose is as before."""
    mean = sum([ledger.left for ledger in ledgers]) / len(ledgers)
    for ledger in ledgers:
        ledger.lent = min(_LENT, max(0.0, mean - ledger.left))


class Overrun:
    """How many times what was expected drafting adds to the steps, lately. Of a single step nobody can tell: what else
    a machine does adds as much, and taken from a request step by step that would use up what it may lose."""

    def __init__(self) -> None:
        self.scale = 1.0

    def observe(self, added: float, expected: float) -> None:
        """Drafting has added so much to a step."""
        if expected > 0:
            self.scale += _RATE * (min(_OVER, max(1 / _OVER, added / expected)) - self.scale)


def charges(
    nodes: Sequence[int], paid: Sequence[bool], drafting: float, rows: int, costs: Sequence[float]
) -> list[float]:
    """What drafting is expected to add to a step for each of its requests, in plain passes of one, by what each has of
    it. `nodes`: rows of its draft. `paid`: whether it pays for the passes of drafters, which take `drafting` in all.
    `costs[r]`: of a step of r rows. All in the table's seconds."""
    plain = len(nodes)
    if plain >= len(costs):
        return [0.0] * plain
    base = costs[plain]
    row = (costs[min(rows, len(costs) - 1)] - base) / max(1, sum(nodes))
    own, each = base / plain, drafting / max(1, sum(paid))
    return [(mine * row + (each if asked else 0.0)) / own for mine, asked in zip(nodes, paid, strict=True)]
