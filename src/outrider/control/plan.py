"""The best draft sizes for known chances and known costs: pure functions, all costs in the same unit."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from outrider.control.profile import Profile


def share_rows(
    ranks: Sequence[Profile],
    limits: Sequence[int],
    spare: int,
    value: float,
    costs: Sequence[float],
) -> tuple[list[int], float]:
    """Nodes for each sequence, at most `spare` together and limits[i] each, and the average cost of a used
    row.

    Rows go one by one to the node most likely to be accepted; of all the prefixes of that order the one with
    the highest expected (accepted × `value` - added cost) is kept. A node that is allowed costs something
    only if it is proposed, and then what its row adds to a pass (costs[r]: a pass of r rows).
    """
    plain = len(ranks)
    chances = [profile.expected(limit) for profile, limit in zip(ranks, limits, strict=True)]
    heap = [(-accepted[0], i) for i, (accepted, _) in enumerate(chances) if accepted]
    heapify(heap)
    sizes, used = [0] * plain, [0.0] * plain  # allowed and expected nodes
    order: list[int] = []
    gain = cost = nodes = 0.0
    best, best_count, row = 0.0, 0, 0.0
    while heap and len(order) < spare and heap[0][0] < 0:
        chance, i = heap[0]
        accepted, proposed = chances[i]
        size = sizes[i]
        here = proposed[size]
        rows = plain + size + round(nodes - used[i])
        gain -= chance * value
        cost += here * (costs[rows + 1] - costs[rows])
        nodes += here
        used[i] += here
        sizes[i] = size = size + 1
        order.append(i)
        if gain - cost > best:
            best, best_count, row = gain - cost, len(order), cost / nodes
        heapreplace(heap, (-accepted[size] if size < len(accepted) else 0.0, i))
    kept = [0] * plain
    for i in order[:best_count]:
        kept[i] += 1
    return kept, row


def worthwhile_depth(levels: Profile, size: int, value: float, row: float, per_level: float, fixed: float) -> int:
    """Levels worth drafting for one sequence; 0 if drafting does not pay at all.

    A level is paid for whenever the one above it came, and its row when it comes itself.
    """
    total, best, depth, above = -fixed, 0.0, 0, 1.0
    for k, (accepted, here) in enumerate(zip(*levels.expected(size), strict=True)):
        total += accepted * value - above * per_level - here * row
        above = here
        if total > best:
            best, depth = total, k + 1
    return depth
