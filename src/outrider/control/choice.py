"""The choice: the drafts that maximise expected tokens per second, for known chances and known costs. Pure functions.

A token is worth what it costs now. With that price, taking every node whose chance × price exceeds what its row adds
to the pass is what maximises tokens per second, plain decoding included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple

from outrider.control.ledger import Ledger
from outrider.core.draft import Draft

_SLACK, _FEW_LEVELS = 0.7, 8
"""Drafters leave out what claims less than this share of what is worth a row (what exactly is, is chosen afterwards);
those that are too modest, less by as much as that makes over a few levels."""
_SHARES = (1.0, 0.75, 0.5, 0.25)
"""Of the rows that would gain most, that are looked at where somebody cannot bear so many."""


Node = tuple[float, int]
"""One that could be verified: how likely it is, and whose. A tuple, as many are made for every step."""


def selected(nodes: Sequence[Node], costs: Sequence[float], price: float, patience: Sequence[float]) -> Sequence[int]:
    """Which of these, the likeliest first, gain most together; their places.

    `costs[r]`: of a pass of r rows; `price`: what a token is worth. `patience[i]`: how much longer than a plain pass
    the step may take for what request i does not itself gain, in plain passes."""
    requests, plain = len(patience), costs[len(patience)]
    best, count, tokens = 0.0, 0, 0.0
    for rows, (chance, _) in enumerate(nodes[: len(costs) - 1 - requests], 1):
        tokens += chance
        gain = tokens * price - (costs[requests + rows] - plain)
        if gain > best:
            best, count = gain, rows
    takes = costs[requests + count] / plain - 1
    if not count or takes <= min(patience) or takes <= min(_bears(nodes[:count], patience)):
        return range(count)
    bearable = min(_bears(nodes, patience))
    for share in _SHARES:
        rows = int(share * count)
        added = costs[requests + rows] - plain
        if added / plain <= bearable and (fair := _fair(nodes, rows, added / plain, patience)):
            return fair if sum([nodes[place][0] for place in fair]) * price > added else ()
    return ()


def _bears(taken: Sequence[Node], patience: Sequence[float]) -> list[float]:
    """How much longer the step may take for each of them, with what it gains by what is taken."""
    bears = list(patience)
    for chance, request in taken:
        bears[request] += chance
    return bears


def _fair(nodes: Sequence[Node], rows: int, takes: float, patience: Sequence[float]) -> list[int]:
    """At most so many, first those by which each request gains what it cannot bear, where the step `takes` so much
    longer; nothing where those are more. Places in `nodes`."""
    owed = [takes - bearable for bearable in patience]
    taken, others = list[int](), list[int]()
    for place, (chance, request) in enumerate(nodes):
        (taken if owed[request] > 0 else others).append(place)
        owed[request] -= chance
    return sorted([*taken, *others[: rows - len(taken)]]) if len(taken) <= rows else []


class Chosen(NamedTuple):
    sizes: list[int]
    """Nodes kept of each request, its likeliest."""
    row: float
    """What each of them adds to the pass, on average; 0 where none is kept."""


def chosen(
    chances: Sequence[Sequence[float]], costs: Sequence[float], price: float, patience: Sequence[float]
) -> Chosen:
    """How many of each request's nodes to verify, its likeliest. As `selected`."""
    plain = len(chances)
    nodes = [(chance, i) for i, mine in enumerate(chances) for chance in mine]
    nodes.sort(reverse=True)
    places = selected(nodes, costs, price, patience) if plain < len(costs) else ()
    sizes = [0] * plain
    for place in places:
        sizes[nodes[place][1]] += 1
    count = len(places)
    return Chosen(sizes, (costs[plain + count] - costs[plain]) / count if count else 0.0)


def level(
    chances: Sequence[Sequence[float]], costs: Sequence[float], price: float, patience: Sequence[float]
) -> Chosen:
    """As `chosen`, where the step verifies as many nodes for each, the first of its chain: shorter ones take as
    long."""
    plain, none = len(chances), Chosen([0] * len(chances), 0.0)
    best, found, tokens, bears = 0.0, none, 0.0, list(patience)
    for length in range(1, min(max(map(len, chances), default=0), (len(costs) - 1) // plain - 1) + 1):
        gained = [mine[length - 1] if len(mine) >= length else 0.0 for mine in chances]
        tokens, bears = tokens + sum(gained), list(map(add, bears, gained))
        added = costs[plain * (length + 1)] - costs[plain]
        if tokens * price - added > best and added / costs[plain] <= min(bears):
            best, sizes = tokens * price - added, [min(length, len(mine)) for mine in chances]
            found = Chosen(sizes, added / sum(sizes))
    return found


class Kept(NamedTuple):
    nodes: list[Sequence[int]]
    """Of each draft, the likeliest first; all of one that was drawn."""
    row: float
    """What each of those chosen adds to the pass, on average; 0 where none is."""


def kept(
    drafts: Sequence[Draft],
    chances: Sequence[Sequence[float]],
    most: Sequence[int],
    owed: Sequence[int],
    costs: Sequence[float],
    price: float,
    ledgers: Sequence[Ledger],
    choose: Callable[..., Chosen] = chosen,
) -> Kept:
    """The nodes of each request's draft to verify: those worth their row that its ledger can bear; at least `owed[i]`
    and never more than `most[i]`. A draft with `q` was drawn to be verified whole, and is. `choose`: `chosen` or
    `level`."""
    drawn = sum([len(draft.tokens) for draft in drafts if draft.q is not None])
    lines: list[Sequence[float]] = []
    for draft, mine, limit in zip(drafts, chances, most, strict=True):
        if draft.q is not None:
            lines.append(())
        else:
            lines.append(mine if len(mine) <= limit else sorted(mine, reverse=True)[:limit])
    patience = [ledger.bears for ledger in ledgers]
    left = max(len(drafts) + 1, len(costs) - drawn)  # what was drawn may be more than a step has room for
    sizes, row = choose(lines, costs[:left], price, patience)
    own = costs[len(drafts)] / len(drafts)
    nodes: list[Sequence[int]] = []
    for draft, mine, size, least, limit, ledger in zip(drafts, chances, sizes, owed, most, ledgers, strict=True):
        while size and not ledger.affords(size * row / own):
            size -= 1
        if draft.q is not None:
            nodes.append(range(len(mine)))
        elif size or least:  # of nodes that are as likely the first: sorting keeps their order
            order = sorted(range(len(mine)), key=mine.__getitem__, reverse=True)
            nodes.append(order[: min(limit, max(size, least))])
        else:
            nodes.append(())
    return Kept(nodes, row)


def floor(row: float, price: float, modesty: float) -> float:
    """The claim, of a whole path, below which hardly anything is worth a row, by a drafter that is right `modesty`
    times as often as it claims."""
    return _SLACK * row / price / modesty**_FEW_LEVELS


def joined(found: Draft, guessed: Draft, tree: bool) -> Draft:
    """What was found and what was guessed; without `tree`, the one that claims more."""
    if guessed.q is not None:
        return guessed  # what is drawn is neither dropped nor joined
    if not tree and found.tokens and guessed.tokens:
        return max(found, guessed, key=lambda draft: sum(draft.confidence))
    return found.merged(guessed)
