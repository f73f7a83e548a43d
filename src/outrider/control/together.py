"""How deep a drafter should draft in a step: one depth for all its requests, the one that gains them most. Pure
functions.

A drafter's passes are shared, and so is the target's: what a row adds depends on how many there are, and who drafts
less does not wait less for the others. So it is decided for all at once; of what was drafted, the likeliest is verified
(`choice`), whosever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple, Protocol

_SELDOM = 0.25
"""Of drafts that reach a level: no less is reckoned with, for a budget is spread over all levels allowed."""


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
    """The levels of each, as deep for all as is expected to gain most, where each has so many; none where that is not
    more than `margin`.

    `costs[r]`: of a pass of r rows. `price`: what a token is worth."""
    plain, most = len(prospects), [len(mine.tokens) for mine in prospects]
    bears = [mine.patience for mine in prospects]
    best, depth, tokens, rows, spent = margin, 0, 0.0, 0.0, 0.0
    for level in range(max(most, default=0)):
        some = [mine for mine in prospects if len(mine.tokens) > level]
        tokens += sum([mine.tokens[level] for mine in some])
        rows += sum([mine.rows[level] for mine in some])
        spent += _level(some, level, drafting)
        bears = [
            able + mine.tokens[level] if len(mine.tokens) > level else able
            for able, mine in zip(bears, prospects, strict=True)
        ]
        saved, verified = _verified(tokens, rows, plain, costs, price)
        if saved - spent > best and (costs[verified] + spent) / costs[plain] - 1 <= min(bears):
            best, depth = saved - spent, level + 1
    return [min(depth, levels) for levels in most]


def gain_of_many(
    mine: Prospect, requests: int, costs: Sequence[float], price: float, drafting: DraftCosts, margin: float
) -> tuple[float, float]:
    """Tokens that a step brings each of so many requests like this one, and seconds that it saves all of them: as
    `together`."""
    everybody, best, found = [mine] * requests, 0.0, 0.0
    tokens, rows, spent = 0.0, 0.0, margin
    for level, (more, further) in enumerate(zip(mine.tokens, mine.rows, strict=True)):
        tokens, rows = tokens + requests * more, rows + requests * further
        spent += _level(everybody, level, drafting)
        saved, verified = _verified(tokens, rows, requests, costs, price)
        if saved - spent > best:
            best, found = saved - spent, tokens * _share(verified - requests, rows) / requests
    return found, best


def _verified(tokens: float, rows: float, plain: int, costs: Sequence[float], price: float) -> tuple[float, int]:
    """What so many tokens of so many rows save beyond what those add to a pass of `plain` rows, where as many are
    verified as save most; and the rows of that pass. Whose they are shows afterwards."""
    best, found, base = 0.0, plain, costs[plain]
    for more in range(1, min(len(costs) - 1 - plain, ceil(rows)) + 1):
        saved = (more / rows if more < rows else 1.0) * tokens * price - (costs[plain + more] - base)
        if saved > best:
            best, found = saved, plain + more
    return best, found


def _share(verified: int, rows: float) -> float:
    return min(1.0, verified / rows)


def _level(some: Sequence[Prospect], level: int, drafting: DraftCosts) -> float:
    """Seconds that one level takes, where these reach it."""
    running = [max(mine.runs[level], _SELDOM) for mine in some]
    made, rows = min(1.0, sum(running)), sum(running)
    if level:
        rows = sum([share * mine.wide for share, mine in zip(running, some, strict=True)])
    seconds = made * drafting.level(max(1.0, rows))
    return seconds if level or not some else seconds + drafting.fixed + sum([mine.first for mine in some])
