"""The few statistics the reports need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; zeros for no values."""
    if not values:
        return 0.0, 0.0, 0.0
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return float(low), float(middle), float(high)


def ratio_of_rates(
    tokens: Sequence[int], seconds: Sequence[float], other_tokens: Sequence[int], other_seconds: Sequence[float]
) -> Interval:
    """(total tokens / total time) over the other's, paired by question; the interval resamples questions."""
    columns = np.array([tokens, seconds, other_tokens, other_seconds], dtype=np.float64)  # [4, questions]

    def ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        ours, time, theirs, their_time = sums
        result: NDArray[np.float64] = (ours / time) / (theirs / their_time)
        return result

    sums = columns[:, _resampled(columns.shape[1], block=1)].sum(axis=-1)  # [4, draws]
    low, high = _ends(ratio(sums))
    return Interval(float(ratio(columns.sum(axis=1))), low, high)


def mean_interval(values: Sequence[float], block: int = 1) -> Interval:
    """The mean; `block` > 1 resamples runs of so many neighbours, for values that drift together."""
    data = np.asarray(values, dtype=np.float64)
    low, high = _ends(data[_resampled(len(data), block)].mean(axis=1))
    return Interval(float(data.mean()), low, high)


def _resampled(count: int, block: int) -> NDArray[np.int64]:
    """Indices [draws, count], each row drawn with replacement in blocks of neighbours (around the end)."""
    generator = np.random.default_rng(0)
    blocks = -(-count // block)
    starts = generator.integers(0, count, size=(_DRAWS, blocks))
    drawn = (starts[:, :, None] + np.arange(block)).reshape(_DRAWS, -1) % count
    kept: NDArray[np.int64] = drawn[:, :count]
    return kept


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    tail = 100 * (1 - _LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
