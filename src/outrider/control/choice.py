"""The choice: the drafts that maximise expected tokens per second, for known chances and known costs. Pure functions.

A token is worth what it costs now. With that price, taking every node whose chance × price exceeds what its row adds
to the pass is what maximises tokens per second, plain decoding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider.control.ledger import Ledger
from outrider.core.draft import Draft

_SLACK, _FEW_LEVELS = 0.7, 8
"""Drafters leave out what claims less than this share of what is worth a row (what exactly is, is chosen afterwards);
those that are too modest, less by as much as that makes over a few levels."""


class Chosen(NamedTuple):
    sizes: list[int]
    """Nodes kept of each request, its likeliest."""
    row: float
    """What each of them adds to the pass, on average; where none is kept, the first."""


def chosen(
    chances: Sequence[Sequence[float]], costs: Sequence[float], price: float, patience: Sequence[float]
) -> Chosen:
    """How many of each request's nodes to verify, its likeliest. `costs[r]`: of a pass of r rows; `price`: what
    a token is worth. `patience[i]`: how much longer than a plain pass this one may take for what request i does not
    itself gain, in plain passes."""
    plain, most = len(chances), len(costs) - 1
    order = [(chance, i) for i, mine in enumerate(chances) for chance in mine]
    room = max(0, most - plain)
    if len(order) > room > 0:  # numbers are sorted much faster than pairs
        least_chance = sorted([chance for chance, _ in order])[-room]
        order = [pair for pair in order if pair[0] >= least_chance]
    order.sort(reverse=True)
    order = order[:room]
    first = costs[plain + 1] - costs[plain] if order else 0.0
    bearable, base = list(patience), costs[plain]
    least = min(bearable, default=0.0)
    best, count, total = 0.0, 0, 0.0
    for n, (chance, i) in enumerate(order, 1):
        if chance <= 0:
            break
        total += chance * price
        before = bearable[i]
        bearable[i] = before + chance
        if before == least:  # nobody else's has changed
            least = min(bearable)
        added = costs[plain + n] - base
        if total - added > best and added <= least * base:
            best, count = total - added, n
    sizes = [0] * plain
    for _, i in order[:count]:
        sizes[i] += 1
    return Chosen(sizes, (costs[plain + count] - costs[plain]) / count if count else first)


class Kept(NamedTuple):
    nodes: list[Sequence[int]]
    """Of each draft, the likeliest first; all of one that was drawn."""
    row: float
    """What each of those chosen adds to the pass, on average; where none is, the first; 0 where there was none."""


def kept(
    drafts: Sequence[Draft],
    chances: Sequence[Sequence[float]],
    most: Sequence[int],
    owed: Sequence[int],
    costs: Sequence[float],
    price: float,
    ledgers: Sequence[Ledger],
) -> Kept:
    """The nodes of each request's draft to verify: those worth their row that its ledger can bear; at least `owed[i]`
    and never more than `most[i]`. A draft with `q` was drawn to be verified whole, and is."""
    drawn = sum([len(draft.tokens) for draft in drafts if draft.q is not None])
    lines: list[Sequence[float]] = []
    for draft, mine, limit in zip(drafts, chances, most, strict=True):
        if draft.q is not None:
            lines.append(())
        else:
            lines.append(mine if len(mine) <= limit else sorted(mine, reverse=True)[:limit])
    patience = [ledger.patience for ledger in ledgers]
    sizes, row = chosen(lines, costs[: len(costs) - drawn] if drawn else costs, price, patience)
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


def depth(gains: Sequence[float], fixed: float, costs: Sequence[float]) -> int:
    """Levels worth drafting where level k is expected to gain `gains[k]` and costs `costs[k]`; 0 if drafting does not
    pay at all."""
    total, best, deepest = -fixed, 0.0, 0
    for k, (gain, cost) in enumerate(zip(gains, costs, strict=True)):
        total += gain - cost
        if total > best:
            best, deepest = total, k + 1
    return deepest


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
