"""How deep a drafter should draft for each request of a step: the levels that gain all of them most. Pure functions.

A drafter's passes are shared, and so is the target's: what a row adds depends on how many there are. So it is decided
for all at once: with so many passes of the drafter, which rows would be worth verifying, and what is left of their
worth when all is paid for?
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple, Protocol

from outrider.control.choice import Worth, selected

_SELDOM = 0.25
"""Of drafts that reach a level: no less is reckoned with, for a budget is spread over all levels allowed."""
_DEPTHS = frozenset((1, 2, 3, 4, 6, 8, 12))
"""Levels that are looked at, beside the most: it takes time, and one more or less hardly matters among many."""


class DraftCosts(Protocol):
    """What one drafter takes: to begin drafts, and for a level of so many rows."""

    @property
    def fixed(self) -> float: ...

    def level(self, rows: float) -> float: ...


class Prospect(NamedTuple):
    """What a drafter's levels are expected to bring one request, beside what was found for it; by level, as many as may
    be drafted."""

    patience: float
    """How much longer than a plain one the step may take for what this request does not gain by, in plain passes."""
    found: Sequence[float] = ()
    """How likely each node of that is, as far as it may be worth a row."""
    tokens: Sequence[float] = ()
    rows: Sequence[float] = ()
    """That those tokens take."""
    runs: Sequence[float] = ()
    """How likely a pass is made."""
    first: float = 0.0
    """Seconds that it takes before the first one, to catch up."""
    wide: float = 1.0
    """Rows that it has in a pass behind the first, which has one."""


def together(
    prospects: Sequence[Prospect], costs: Sequence[float], price: float, drafting: DraftCosts, margin: float
) -> list[int]:
    """The levels of each that are expected to gain most; none where that is not more than what was found gains by
    itself, and `margin` times the root of the number of requests drafted for: errors of many partly cancel.

    `costs[r]`: of a pass of r rows. `price`: what a token is worth."""
    worth = _by_worth(prospects)
    patience, most = [mine.patience for mine in prospects], [len(mine.tokens) for mine in prospects]
    best, found, spent = 0.0, [0] * len(prospects), 0.0
    ideal = selected(worth, costs, price, [float("inf")] * len(prospects)).gain
    last = max(most, default=0)
    for deepest in range(last + 1):
        if deepest:
            spent += _level(prospects, most, deepest - 1, drafting)
            if best >= ideal - spent:  # nothing deeper gains more, whoever bears it
                break
            if deepest not in _DEPTHS and deepest < last:
                continue
        given = [each for each in worth if each[3] <= deepest]
        verified = selected(given, costs, price, patience, spent)
        if verified.gain > best:
            levels = [0] * len(prospects)
            for place in verified.places:
                _, _, request, passes = given[place]
                levels[request] = max(levels[request], passes)
            net = verified.gain - sum([_level(prospects, levels, level, drafting) for level in range(max(levels))])
            net -= margin * (len(levels) - levels.count(0)) ** 0.5
            if net > best:
                best, found = net, levels
    return found


def gain_of_many(
    mine: Prospect, requests: int, costs: Sequence[float], price: float, drafting: DraftCosts, margin: float
) -> tuple[float, float]:
    """Tokens that a step brings each of so many requests like this one, and seconds that it saves all of them: as
    `together`, where all draft as deep."""
    everybody, best, found = [mine] * requests, 0.0, 0.0
    tokens, rows, spent = 0.0, float(requests), margin * requests**0.5
    for level, (more, further) in enumerate(zip(mine.tokens, mine.rows, strict=True)):
        tokens, rows = tokens + more, rows + requests * further
        if rows > len(costs) - 1:
            break
        spent += _level(everybody, [level + 1] * requests, level, drafting)
        saved = requests * tokens * price - (costs[ceil(rows)] - costs[requests]) - spent
        if saved > best:
            best, found = saved, tokens
    return found, best


def _by_worth(prospects: Sequence[Prospect]) -> list[Worth]:
    """Of all levels and of what was found, what brings more for a row first; of what brings the same, what takes fewer
    passes."""
    worth: list[tuple[float, int, int, float, float]] = []
    for request, mine in enumerate(prospects):
        for chance in mine.found:
            worth.append((-chance, 0, request, chance, 1.0))
        of_row = 1.0
        for passes, (tokens, rows) in enumerate(zip(mine.tokens, mine.rows, strict=True), 1):
            if tokens <= 0 or rows <= 0:
                break
            if tokens < of_row * rows:  # a level is verified only behind those before it
                of_row = tokens / rows
            worth.append((-of_row, passes, request, tokens, rows))
    worth.sort()
    return [(tokens, rows, request, passes) for _, passes, request, tokens, rows in worth]


def _level(prospects: Sequence[Prospect], levels: Sequence[int], level: int, drafting: DraftCosts) -> float:
    """Seconds that one level takes, where so many of each are drafted."""
    some = [mine for mine, count in zip(prospects, levels, strict=True) if count > level]
    running = [max(mine.runs[level], _SELDOM) for mine in some]
    made, rows = min(1.0, sum(running)), sum(running)
    if level:
        rows = sum([share * mine.wide for share, mine in zip(running, some, strict=True)])
    seconds = made * drafting.level(max(1.0, rows))
    return seconds if level or not some else seconds + drafting.fixed + sum([mine.first for mine in some])
