"""The choice: the drafts that maximise expected tokens per second, for known chances and known costs. Pure functions.

A token is worth what it costs now. With that price, taking every node whose chance × price exceeds what its row adds
to the pass is what maximises tokens per second, plain decoding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Chosen(NamedTuple):
    sizes: list[int]
    """Nodes kept of each sequence, its likeliest."""
    row: float
    """What each of them adds to the pass, on average; where none is kept, the first."""


def chosen(
    chances: Sequence[Sequence[float]], costs: Sequence[float], price: float, patience: Sequence[float]
) -> Chosen:
    """How many of each sequence's nodes to verify. `chances[i]` falling; `costs[r]`: of a pass of r rows; `price`: what
    a token is worth. `patience[i]`: how much longer than a plain pass this one may take for what sequence i does not
    itself gain, in plain passes."""
    plain, most = len(chances), len(costs) - 1
    order = sorted(((chance, i) for i, mine in enumerate(chances) for chance in mine), reverse=True)
    order = order[: max(0, most - plain)]
    first = costs[plain + 1] - costs[plain] if order else 0.0
    bearable = list(patience)
    best, count, total = 0.0, 0, 0.0
    for n, (chance, i) in enumerate(order, 1):
        if chance <= 0:
            break
        total += chance * price
        bearable[i] += chance
        added = costs[plain + n] - costs[plain]
        if total - added > best and added <= min(bearable) * costs[plain]:
            best, count = total - added, n
    sizes = [0] * plain
    for _, i in order[:count]:
        sizes[i] += 1
    return Chosen(sizes, (costs[plain + count] - costs[plain]) / count if count else first)


def depth(gains: Sequence[float], fixed: float, per_level: float) -> int:
    """Levels worth drafting where level k is expected to gain `gains[k]`; 0 if drafting does not pay at all."""
    total, best, deepest = -fixed, 0.0, 0
    for k, gain in enumerate(gains):
        total += gain - per_level
        if total > best:
            best, deepest = total, k + 1
    return deepest
