"""The noise is the same integers everywhere, and as random as it needs to be."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from outrider.sampling.noise import (
    STEP,
    Key,
    gumbel,
    gumbel_at,
    gumbel_rows,
    hash64,
    integers,
    mix,
    row_key,
    step_key,
    step_words_of,
    uniform,
    words,
    words_of,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
M32 = (1 << 32) - 1


def reference(seed: int, choice: int, position: int, token: int) -> int:
    """k in plain integers, as the module's text defines it."""
    text = f"gumbel/{seed}/{choice}/{position}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D & M32
        x = (x ^ x >> 15) * 0x846CA68B & M32
        return x ^ x >> 16

    x = mix(token * 0x9E3779B9 & M32 ^ key & M32)
    x = mix(x + (key >> 32) & M32)
    return (x + (1 << 31)) & M32


def draws(seeds: Iterable[int], positions: Iterable[int], tokens: int) -> Tensor:
    """k as integers: [seeds, positions, tokens]."""
    positions = list(positions)
    keys = [[Key(seed, 0, position) for position in positions] for seed in seeds]
    return torch.stack([integers(row, torch.arange(tokens)).long() + (1 << 31) for row in keys])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1, 7, -1, -(2**70), 2**31, 2**32, 2**63, 2**64 + 5, 10**40])
def test_integers_are_those_of_plain_arithmetic(seed: int, device: str) -> None:
    tokens = torch.tensor([0, 1, 2, 3, 1000, 49151, 151935, 262143], device=device)
    positions = [0, 1, 2, 31, 4096, 10**6]
    got = integers([Key(seed, 3, position) for position in positions], tokens).cpu().long() + (1 << 31)
    want = [[reference(seed, 3, position, int(token)) for token in tokens] for position in positions]
    assert got.tolist() == want


@pytest.mark.parametrize("seed", [0, 7, -3, 2**70])
def test_keys_of_positions_in_a_row_are_those_of_each(seed: int) -> None:
    keys = [Key(seed, 2, position) for position in range(5, 40)]
    assert torch.equal(words_of(seed, 2, range(5, 40)), words(keys))
    assert [row_key(*key) for key in keys] == [(word & 0xFFFFFFFF, word >> 32) for word in map(hashed, keys)]
    assert words_of(seed, 2, range(4, 4)).shape == (0, 2)


def hashed(key: Key) -> int:
    return hash64("gumbel", *key)


def test_golden_values() -> None:
    """Pinned: a change of these changes every seeded text anyone has kept."""
    got = draws([7], [0, 1], 4)[0].tolist()
    assert got == [
        [617092723, 2842075009, 3296881759, 3779399863],
        [1162107216, 1184867791, 1283233241, 3468380610],
    ]
    assert hash64("draft", 7, 0, 3, -1) == 3669068672948942014
    assert [int(uniform(step_key(7, 0, 3), number) * 2**53) for number in range(2)] == [
        3593252655932248,
        7459221011054606,
    ]


def test_draws_of_a_step_are_words_of_noise() -> None:
    """As a device makes them: from the words of the step's key, two for each number."""
    for step, pair in enumerate(step_words_of(2**70, 1, range(3))):
        low, high = (int(word) & 0xFFFFFFFF for word in pair)
        assert step_key(2**70, 1, step) == (low, high)
        for number in range(5):
            x = torch.tensor([2 * number, 2 * number + 1], dtype=torch.int32).mul(STEP).bitwise_xor(pair[0])
            first, second = (int(word) & 0xFFFFFFFF for word in mix(mix(x).add_(pair[1])))
            assert uniform((low, high), number) == first / 2**32 + (second >> 11) / 2**53


@pytest.mark.parametrize("device", DEVICES)
def test_gumbel_values(device: str) -> None:
    noise = gumbel(7, 1, 5, 3000, device).cpu()
    want = [-math.log(-math.log((reference(7, 1, 5, token) + 0.5) / 2**32)) for token in range(3000)]
    assert noise.dtype == torch.float64
    assert noise.tolist() == pytest.approx(want, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("vocab", [5, 1000, 1003, 49152])
def test_a_row_does_not_depend_on_the_others(vocab: int) -> None:
    together = gumbel_rows([Key(3, 0, 4), Key(3, 0, 9), Key(3, 0, 5)], vocab)
    for row, position in zip(together, [4, 9, 5], strict=True):
        assert torch.equal(row, gumbel(3, 0, position, vocab))
    some = torch.arange(0, vocab, 3)
    assert torch.allclose(gumbel_at([Key(3, 0, 9)], some)[0], together[1][some], rtol=1e-15, atol=0)


def test_extreme_draws_stay_finite() -> None:
    u = (torch.tensor([0.0, 2.0**32 - 1], dtype=torch.float64) + 0.5) * 2.0**-32
    assert torch.isfinite(-(-u.log()).log()).all()


def normal_score(observed: float, mean: float, variance: float) -> float:
    return (observed - mean) / math.sqrt(variance)


def test_uniform() -> None:
    """Chi-square over 1024 bins of the high and of the low bits, 1.6 million draws each."""
    k = draws(range(4), range(8), 49152).flatten()
    for bits in (k >> 22, k & 1023, (k >> 11) & 1023):
        counts = torch.bincount(bits, minlength=1024).double()
        expected = len(k) / 1024
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert abs(normal_score(statistic, 1023, 2 * 1023)) < 5


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seed", "position", "token"])
@pytest.mark.parametrize("step", [1, 2, 4, 16])
def test_neighbours_are_independent(axis: int, step: int) -> None:
    """Adjacent seeds, positions and tokens: linear correlation, and the joint table of the top 4 bits."""
    k = draws(range(40), range(40), 200)
    size = k.shape[axis]
    a, b = k.narrow(axis, 0, size - step).flatten(), k.narrow(axis, step, size - step).flatten()
    u, v = (a.double() + 0.5) / 2**32 - 0.5, (b.double() + 0.5) / 2**32 - 0.5
    assert abs(float((u * v).mean()) * 12 * math.sqrt(len(u))) < 5
    table = torch.bincount((a >> 28) * 16 + (b >> 28), minlength=256).double()
    statistic = float(((table - len(a) / 256) ** 2 / (len(a) / 256)).sum())
    assert abs(normal_score(statistic, 255, 2 * 255)) < 5


@pytest.mark.parametrize("bit", [*range(0, 64, 7), 63, 64, 100])
def test_every_seed_bit_flips_half_of_the_output(bit: int) -> None:
    plain, flipped = draws([12345], range(4), 500), draws([12345 ^ (1 << bit)], range(4), 500)
    changed = torch.stack([((plain ^ flipped) >> i & 1).double().mean() for i in range(32)])
    assert float((changed - 0.5).abs().max()) < 0.06  # 2000 draws: 5 sigma is 0.056


@pytest.mark.parametrize("bit", range(17))
def test_every_token_bit_flips_half_of_the_output(bit: int) -> None:
    tokens = torch.arange(2000)
    a = integers([Key(1, 0, 0)], tokens).long()
    b = integers([Key(1, 0, 0)], tokens ^ (1 << bit)).long()
    changed = torch.stack([((a ^ b) >> i & 1).double().mean() for i in range(32)])
    # Pairs are counted twice where the flipped partner is among the tokens too: 1000 draws, 5 sigma is 0.079.
    assert float((changed - 0.5).abs().max()) < 0.08


def test_the_largest_follows_softmax() -> None:
    """What the noise is for: argmax(logp + G) is distributed as p (chi-square, 40,000 draws)."""
    p = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.024, 0.001], dtype=torch.float64)
    noise = gumbel_rows([Key(seed, 0, position) for seed in range(100) for position in range(400)], 6)
    counts = torch.bincount((p.log() + noise).argmax(-1), minlength=6).double()
    expected = p * len(noise)
    assert float(((counts - expected) ** 2 / expected).sum()) < 31  # 5 degrees of freedom: 1 in 100,000
