"""The few statistics the reports need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; zeros for no values."""
    if not values:
        return 0.0, 0.0, 0.0
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return float(low), float(middle), float(high)


def percentiles(values: Sequence[float], at: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(np.asarray(values, dtype=np.float64), list(at))]


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


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The geometric mean of the ratios of at least two pairs; the interval is Student's, over their logarithms."""
    logs = np.log(np.asarray(ours, dtype=np.float64) / np.asarray(theirs, dtype=np.float64))
    mean = float(logs.mean())
    reach = student_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def student_quantile(freedom: int) -> float:
    """How far 95% of Student's t with so many degrees of freedom reach to either side of 0."""
    low, high = 0.0, 64.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if _student_within(middle, freedom) > _LEVEL else (middle, high)
    return high


def _student_within(reach: float, freedom: int) -> float:
    """The chance that |t| < reach: for whole degrees of freedom a finite sum (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle = math.atan2(reach, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (k - 1) / k
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)


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
