"""Keyed chance: right frequencies, independent streams, and never an impossible outcome."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.errors import ModelError
from outrider.sampling.random_source import KeyedRandom, Stream


class Fixed(KeyedRandom):
    """A random source whose uniform number is given."""

    def __init__(self, u: float) -> None:
        super().__init__(0, 0, 0)
        self._u = u

    def _uniform(self, stream: Stream, node: int) -> float:
        return self._u


def test_bernoulli_frequency() -> None:
    for p in (0.01, 0.3, 0.5, 0.97):
        hits = sum(KeyedRandom(seed, 0, 5).bernoulli(p, Stream.ACCEPT, 2) for seed in range(20000))
        assert abs(hits - 20000 * p) < 5 * math.sqrt(20000 * p * (1 - p))


def test_certain_and_impossible() -> None:
    for u in (0.0, 0.5, 1 - 2.0**-53):
        assert Fixed(u).bernoulli(1.0, Stream.ACCEPT, 0)
        assert not Fixed(u).bernoulli(0.0, Stream.ACCEPT, 0)


def test_categorical_frequency() -> None:
    weights = torch.tensor([0.0, 3.0, 1.0, 0.0, 6.0, 0.0])
    counts = [0] * 6
    for seed in range(20000):
        counts[KeyedRandom(seed, 0, 5).categorical(weights, Stream.TARGET, -1)] += 1
    assert counts[0] == counts[3] == counts[5] == 0
    expected = [6000.0, 2000.0, 12000.0]
    drawn = [counts[1], counts[2], counts[4]]
    assert sum((c - e) ** 2 / e for c, e in zip(drawn, expected, strict=True)) < 23  # 2 d.o.f.: 1 in 100,000


@pytest.mark.parametrize("u", [0.0, 0.1, 0.3, 0.7, 1 - 2.0**-53, 1.0])
def test_categorical_never_returns_a_zero_weight(u: float) -> None:
    """Even where the point rounds up to the total, which u = 1 stands for."""
    for scale in (1.0, 0.1, 3e-300, 7.7e10):
        weights = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.7, 0.0, 0.0], dtype=torch.float64) * scale
        assert Fixed(u).categorical(weights, Stream.DRAFT, 0) in (1, 4)


@pytest.mark.parametrize("weights", [[0.2, math.nan, 0.8], [math.inf, 0.5, 0.5], [0.0, 0.0, 0.0]])
def test_what_is_no_distribution_is_refused(weights: list[float]) -> None:
    with pytest.raises(ModelError, match="not numbers"):
        KeyedRandom(0, 0, 0).categorical(torch.tensor(weights), Stream.TARGET, 0)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ModelError, match="not numbers"):
        KeyedRandom(0, 0, 0).bernoulli(math.nan, Stream.ACCEPT, 0)


def test_keys_are_independent() -> None:
    """Streams, nodes, steps, choices and seeds: no two give related answers."""
    base = [KeyedRandom(seed, 0, 1).bernoulli(0.5, Stream.DRAFT, 0) for seed in range(4000)]
    others = {
        "accept": [KeyedRandom(seed, 0, 1).bernoulli(0.5, Stream.ACCEPT, 0) for seed in range(4000)],
        "target": [KeyedRandom(seed, 0, 1).bernoulli(0.5, Stream.TARGET, 0) for seed in range(4000)],
        "node": [KeyedRandom(seed, 0, 1).bernoulli(0.5, Stream.DRAFT, 1) for seed in range(4000)],
        "root": [KeyedRandom(seed, 0, 1).bernoulli(0.5, Stream.DRAFT, -1) for seed in range(4000)],
        "step": [KeyedRandom(seed, 0, 2).bernoulli(0.5, Stream.DRAFT, 0) for seed in range(4000)],
        "choice": [KeyedRandom(seed, 1, 1).bernoulli(0.5, Stream.DRAFT, 0) for seed in range(4000)],
        "seed": [KeyedRandom(seed + 1, 0, 1).bernoulli(0.5, Stream.DRAFT, 0) for seed in range(4000)],
    }
    for name, other in others.items():
        agree = sum(a == b for a, b in zip(base, other, strict=True))
        assert abs(agree - 2000) < 5 * math.sqrt(1000), name


def test_a_key_always_gives_the_same_answer() -> None:
    weights = torch.rand(50, dtype=torch.float64)
    first = [KeyedRandom(3, 0, step).categorical(weights, Stream.DRAFT, 4) for step in range(50)]
    assert first == [KeyedRandom(3, 0, step).categorical(weights, Stream.DRAFT, 4) for step in range(50)]
    assert len(set(first)) > 10
