"""The compiled sampler chooses the reference's token, always; where it cannot be sure it says so, and that is rare."""

from __future__ import annotations

import math
import platform
from ctypes import byref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pace import Pace
from torch import Tensor
from toy import request, resolved

from outrider.core.draft import ROOT, Draft
from outrider.core.request import ResolvedParams
from outrider.sampling.draw import argmax, perturb
from outrider.sampling.native import sampler
from outrider.sampling.native.sampler import HostRows, Row, library, sample
from outrider.sampling.noise import Key, integers
from outrider.sampling.target import target_rows
from outrider.sampling.warp import truncate

needs_sampler = pytest.mark.skipif(library() is None, reason="the sampler was not compiled")

pytestmark = pytest.mark.long


def reference(logits: Tensor, params: ResolvedParams, position: int) -> int:
    """Score, noise and argmax over the whole row, as `target` defines them."""
    scores = logits.to(torch.float64, copy=True).unsqueeze(0)
    if params.temperature > 0:
        scores = perturb(truncate(scores, params), [Key(params.seed, params.choice, position)])
    return int(argmax(scores)[0])


def compare(logits: Tensor, params: ResolvedParams) -> int:
    """Check every row; how many the sampler left to the reference."""
    host = HostRows.of(logits)
    assert host is not None
    left = 0
    for row, got in enumerate(sample([Row(host, row, params, row) for row in range(len(logits))])):
        assert got is None or got == reference(logits[row], params, row), (row, params)
        left += got is None
    return left


def rows_like(kind: str, rows: int, vocab: int, rng: np.random.Generator) -> Tensor:
    """fp32 logits [rows, vocab] that a filter may stumble over."""
    z = rng.normal(0, 4, (rows, vocab))
    match kind:
        case "flat":
            z = np.full((rows, vocab), float(rng.normal(0, 100)))
        case "few values":
            z = rng.integers(-2, 3, (rows, vocab)).astype(float)
        case "nearly flat":
            z = 3.0 + rng.normal(0, 1e-6, (rows, vocab))
        case "huge":
            z = rng.normal(0, 1e37, (rows, vocab))
        case "tiny":
            z = rng.normal(0, 1e-40, (rows, vocab))
        case "far from zero":
            z = z + 30_000
        case "one peak":
            z[:, rng.integers(vocab)] += rng.choice([10.0, 20.0, 26.0, 40.0])
        case "masked":
            z[rng.random((rows, vocab)) < 0.9] = -math.inf
            z[:, rng.integers(vocab)] = 0.0
        case "rising":
            z = np.sort(z, axis=1)
    return torch.from_numpy(z.astype(np.float32))


KINDS = ["normal", "flat", "few values", "nearly flat", "huge", "tiny", "far from zero", "one peak", "masked", "rising"]
TEMPERATURES = [1e-6, 1e-3, 0.1, 0.3, 0.7, 1.0, 1.3, 3.0, 20.0, 100.0]


@needs_sampler
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_references(kind: str, pace: Pace) -> None:
    """Up to 150,000 rows over all kinds; vocabularies around the sampler's blocks of 256."""
    rng = np.random.default_rng(KINDS.index(kind))
    some = rows_like(kind, 30, 257, rng)
    times = pace.fit(lambda: compare(some, resolved(257, temperature=1.0, seed=1)), 0.02, least=1, most=10)
    left = 0
    for vocab, rows in ((1, 2), (2, 30), (255, 50), (256, 30), (257, 30), (1000, 8)):
        for temperature in TEMPERATURES:
            params = resolved(vocab, temperature=temperature, seed=int(rng.integers(1 << 40)))
            left += compare(rows_like(kind, times * rows, vocab, rng), params)
    assert left == 0


@needs_sampler
@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    repeat=st.integers(1, 30),
    exponent=st.floats(-6, 2),
    seed=st.integers(-(2**70), 2**70),
    wide=st.booleans(),
)
def test_any_floats(values: list[float], repeat: int, exponent: float, seed: int, wide: bool) -> None:
    """Infinities and NaN, too: there the sampler may pass, but not differ."""
    row = torch.tensor(values * repeat, dtype=torch.float64 if wide else torch.float32)
    compare(row.repeat(8, 1), resolved(len(row), temperature=10.0**exponent, seed=seed))


@needs_sampler
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 60},
        {"top_p": 0.95},
        {"top_p": 0.5},
        {"top_p": 0.01},
        {"min_p": 0.05},
        {"min_p": 0.9},
        {"top_p": 0.8, "min_p": 0.02},
        {"top_k": 30, "min_p": 0.01},
    ],
    ids=str,
)
@pytest.mark.parametrize("wide", [False, True])
def test_truncations(options: dict[str, Any], wide: bool) -> None:
    """Kept tokens by value, ties whole. What is left to the reference: a tie that rounding may decide."""
    rng = np.random.default_rng(7)
    checked = left = 0
    for kind in ("normal", "few values", "nearly flat", "one peak", "masked", "flat"):
        for temperature in (0.1, 0.7, 1.0, 2.0):
            logits = rows_like(kind, 40, 300, rng).to(torch.float64 if wide else torch.float32)
            params = resolved(300, temperature=temperature, seed=int(rng.integers(1 << 40)), **options)
            left += compare(logits, params) if kind != "nearly flat" else 0 * compare(logits, params)
            checked += 40
    assert left <= 0.02 * checked


@needs_sampler
@pytest.mark.parametrize("top_k", [2**31, 2**32 + 1, 2**70])
def test_a_top_k_beyond_the_samplers_integers(top_k: int) -> None:
    logits = rows_like("normal", 40, 300, np.random.default_rng(5))
    assert compare(logits, replace(resolved(300, temperature=1.5), top_k=top_k)) == 0


@needs_sampler
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("distance", [0.0, 1e-9, 3e-9, 1e-8, 3e-8, 1e-7])
def test_the_edge_of_top_p(distance: float, wide: bool) -> None:
    """The token that would win without top-p weighs in just before or just behind it, closer than the sampler's fp32
    sums can tell."""
    rng = np.random.default_rng(11)
    sides = set()
    for row in range(60):
        logits = rows_like("normal", 1, 500, rng).to(torch.float64 if wide else torch.float32) / 2
        winner = reference(logits[0], resolved(500), 0)
        shares = torch.softmax(logits[0].double(), dim=-1)
        above = float(shares[logits[0] > logits[0, winner]].sum())
        if above == 0:
            continue
        params = resolved(500, top_p=above + (distance if row % 2 else -distance))
        sides.add(reference(logits[0], params, 0) == winner)
        compare(logits, params)
    assert distance == 0 or sides == {True, False}


@needs_sampler
def test_greedy() -> None:
    for kind in KINDS:
        for vocab in (1, 256, 700):
            logits = rows_like(kind, 20, vocab, np.random.default_rng(3))
            assert compare(logits, resolved(vocab, temperature=0.0)) == 0


@needs_sampler
def test_the_largest_noise_is_not_missed() -> None:
    """Tokens whose u is closest to 1, where the filter's bound is tight, far below a peak that has no luck."""
    vocab, wins = 50_000, 0
    for position in range(300):
        noise = integers([Key(5, 0, position)], torch.arange(vocab))[0]
        luckiest = int(noise.argmax())
        for depth in (8.0, 10.0, 12.0):
            logits = torch.full((1, vocab), -60.0)
            logits[0, 0] = 0.0
            logits[0, luckiest] = -depth
            params = resolved(vocab, temperature=1.0, seed=5)
            host = HostRows.of(logits)
            assert host is not None
            want = reference(logits[0], params, position)
            assert sample([Row(host, 0, params, position)]) == [want]
            wins += want == luckiest
    assert wins > 100


@needs_sampler
def test_whole_vocabularies_by_way_of_the_target() -> None:
    """Through `target_rows`, penalties included, with the rows of a batch behind one another."""
    rng = np.random.default_rng(1)
    logits = rows_like("normal", 24, 49_152, rng)
    options: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.95},
        {"temperature": 1.0, "repetition_penalty": 1.3},
        {"temperature": 0.0},
    ]
    draft = Draft([4, 7, 9, 4, 1], [ROOT, ROOT, 0, 2, 1])
    requests = [request([5, 6], resolved(49_152, seed=i, **o), [7, 1]) for i, o in enumerate(options)]
    for i, rows in enumerate(target_rows(logits, requests, [draft] * 4)):
        for node in range(ROOT, 5):
            noise = Key(i, 0, 2 + len(draft.path(node)))
            logp = rows.logp(node).unsqueeze(0)
            want = argmax(perturb(logp, [noise]) if options[i]["temperature"] else logp)
            assert rows.choose(node) == int(want[0])


@needs_sampler
@pytest.mark.parametrize("isa", ["sample_base", "sample_v3"])
@pytest.mark.parametrize("wide", [False, True])
def test_lesser_instruction_sets(isa: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CPUs without AVX-512 run: the same tokens."""
    if isa != "sample_base" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("x86 only")
    choose = getattr(library(), isa)

    def one_by_one(asks: Any, count: int, run: None, threads: int) -> None:
        for ask in asks:
            ask.token = choose(byref(ask))

    monkeypatch.setattr(sampler, "library", lambda: SimpleNamespace(outrider_sample=one_by_one))
    rng = np.random.default_rng(11)
    for kind in KINDS:
        for options in ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 9}, {"temperature": 0.0}):
            logits = rows_like(kind, 20, 700, rng).to(torch.float64 if wide else torch.float32)
            compare(logits, resolved(700, **options))
