"""The device's choice against the one definition of it (sampling/), where logits are as odd as they get."""

from __future__ import annotations

import math
import random

import pytest
import torch

pytest.importorskip("triton")

from outrider.core.request import ResolvedParams
from outrider.models.cuda.chooser import Chooser, Noise
from outrider.sampling.draw import choices, perturb
from outrider.sampling.noise import Key, words
from outrider.sampling.params import SamplingParams
from outrider.sampling.warp import truncate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def reference(logits: torch.Tensor, p: ResolvedParams, key: Key) -> int:
    z = logits.double()[None].clone()
    if p.temperature:
        z = perturb(truncate(z, p), [key])
    return int(choices(z)[0])


def chosen(logits: torch.Tensor, params: list[ResolvedParams], keys: list[Key]) -> list[int]:
    rows, vocab = logits.shape
    noise = Noise.room(rows, DEVICE)
    noise.words[:] = words(keys)
    for r, p in enumerate(params):
        least = math.log(p.min_p) if p.min_p > 0 else -math.inf
        noise.numbers[r] = torch.tensor([p.temperature, p.top_p, least, p.top_k], dtype=torch.float64)
    out = torch.zeros(rows, 2, dtype=torch.int32, device=DEVICE)
    Chooser(rows, vocab, DEVICE).choose(logits.to(DEVICE), rows, noise, out[:, 1])
    return out[:, 1].tolist()


def odd(rng: random.Random, vocab: int) -> torch.Tensor:
    x = torch.randn(vocab, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))) * rng.choice([0.1, 1, 10])
    kind = rng.choice(["plain", "equal", "ties", "few", "one", "wide", "two"])
    if kind == "equal":
        x[:] = rng.choice([0.0, -1e30, 1e38])
    elif kind == "ties":
        x = x.round()
    elif kind == "few":
        x[1 + torch.randperm(vocab - 1)[: int(0.95 * vocab)]] = -math.inf
    elif kind == "one":
        x[:] = -math.inf
        x[rng.randrange(vocab)] = 1.0
    elif kind == "wide":
        x *= 1e5
    elif kind == "two":
        x[:] = -50.0
        x[0] = x[-1] = 1.0
    return x


@pytest.mark.parametrize("vocab", [2, 90, 1023, 1025, 2500])
def test_odd_logits_and_odd_parameters(vocab: int) -> None:
    rng = random.Random(vocab)
    for _ in range(4):
        params = [
            SamplingParams(
                temperature=rng.choice([0, 1e-10, 1e-3, 0.3, 1, 100.0, 1e6]),
                top_k=rng.choice([0, 0, 1, 2, 7, 40, vocab - 1]),
                top_p=rng.choice([1, 1e-9, 0.1, 0.5, 0.9, 0.999999, 1 - 2**-53]),
                min_p=rng.choice([0, 0, 1e-30, 0.05, 0.5, 1.0]),
                seed=rng.randrange(1 << 40),
                max_tokens=5,
            ).resolve({}, [], vocab)
            for _ in range(16)
        ]
        keys = [Key(p.seed, p.choice, rng.randrange(1000)) for p in params]
        logits = torch.stack([odd(rng, vocab) for _ in params])
        assert chosen(logits, params, keys) == [reference(*each) for each in zip(logits, params, keys, strict=True)]


def test_an_infinite_logit_is_chosen_greedily_whoever_shares_the_step() -> None:
    """Alone it is, and on the host; beside a request with a temperature the row counts as no number."""
    logits = torch.zeros(2, 90)
    logits[0, 7] = math.inf
    params = [SamplingParams(temperature=t, max_tokens=5, seed=1).resolve({}, [], 90) for t in (0, 1)]
    keys = [Key(p.seed, p.choice, 0) for p in params]
    alone = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    Chooser(2, 90, DEVICE).choose(logits.to(DEVICE), 2, None, alone)
    assert int(alone[0]) == reference(logits[0], params[0], keys[0]) == 7
    assert chosen(logits, params, keys)[0] == 7


def test_no_token_is_chosen_where_all_are_impossible() -> None:
    """On the host that is an error; greedily on the device, token 0."""
    logits = torch.full((1, 90), -math.inf)
    params = SamplingParams(temperature=0, max_tokens=5).resolve({}, [], 90)
    alone = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    Chooser(1, 90, DEVICE).choose(logits.to(DEVICE), 1, None, alone)
    assert int(alone[0]) == reference(logits[0], params, Key(0, 0, 0)) == -1
