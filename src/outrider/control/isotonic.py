"""The closest non-decreasing sequence: what a noisy but surely monotone measurement means."""

from __future__ import annotations

from collections.abc import Sequence


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence with the least weighted squared distance to `values` (weights > 0).

    Neighbours that are out of order are merged into their weighted mean, so a rarely seen outlier gives way
    to well-measured neighbours instead of lifting everything behind it.
    """
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, members), means increasing
    for value, weight in zip(values, weights, strict=True):
        mean, total, members = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            left, left_weight, left_members = blocks.pop()
            mean = (mean * total + left * left_weight) / (total + left_weight)
            total += left_weight
            members += left_members
        blocks.append((mean, total, members))
    return [mean for mean, _, members in blocks for _ in range(members)]
