"""Drafts drawn and judged on the device by the rejection rule: token for token what the reference makes of the same
logits, by kernels alone and through the engine, where nothing may fall back to the host."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import any_order
import device_requests
import triton
import triton.language as tl
from device_requests import device_of, host_engine, stepped
from judged import Judging, by_reference
from simulated import only_interpreted, simulate
from tiny_gpu import CONTEXT, DEVICE, DTYPE
from tiny_gpu_head import TARGET as SHAPE
from tiny_gpu_head import VOCAB as SMALL
from tiny_gpu_head import loud_head, target_tensors

from outrider.control.controller import FixedLength
from outrider.drafters.head import HeadDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import NotANumber
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.kernels import deal, rejection
from outrider.models.head.load import place_head
from outrider.sampling.params import SamplingParams
from outrider.sampling.random_source import KeyedRandom
from outrider.sampling.warp import warp

LENGTH = 3
ASKED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_p": 0.999},
    {"temperature": 0.02, "top_p": 0.9},  # one token has all there is
    {"temperature": 0.8, "top_k": 4},
    {"temperature": 1.1, "top_k": 9, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "repetition_penalty": 1.7, "frequency_penalty": 0.4},
    {"temperature": 0.9, "logit_bias": {3: 2.5, 7: -100.0}, "top_p": 0.7},
    {"temperature": 1.0, "min_tokens": 6, "stop_token_ids": list(range(0, 40, 2)), "presence_penalty": 1.0},
]


def made(number: int, rng: random.Random, vocab: int, asked: dict[str, Any], limit: int = 30) -> Request:
    params = SamplingParams(**asked, verify="rejection", seed=rng.randrange(1 << 60), max_tokens=limit)
    one = device_requests.made(number, rng.choices(range(40), k=9), params, vocab)
    output = rng.choices(range(40), k=4)
    one.history.append(output)
    one.tokens += output
    return one


def logits_of(rng: random.Random, vocab: int, *shape: int) -> torch.Tensor:
    """Few tokens matter, some of which tie."""
    logits = torch.randn(*shape, vocab, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))) * 2
    logits[..., :40] += 3.0
    logits[..., 5:12] = logits[..., 5:12].round()
    return logits


@pytest.mark.parametrize(
    ("vocab", "reduced"),
    [(60, True), (2300, False), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((60, False), (2300, True)))],
)
def test_chains_are_drawn_and_judged_as_by_the_reference(vocab: int, reduced: bool) -> None:
    """Own drafts and given ones side by side; some end before the chain does; rows in pieces."""
    rng = random.Random(vocab + reduced)
    asked = ASKED * (2 if vocab < 100 else 1)
    limits = [30 if "min_tokens" in each else 4 + rng.choice([1, 2, 30, 30, 30]) for each in asked]
    requests = [made(i, rng, vocab, *each) for i, each in enumerate(zip(asked, limits, strict=True))]
    ids = torch.arange(0, vocab, 3) if reduced else None
    known = torch.arange(vocab) if ids is None else ids
    lanes = len(requests)
    target = logits_of(rng, vocab, lanes, LENGTH + 1)
    target[..., known[:9]] += 4.0
    noise = torch.randn(LENGTH, lanes, len(known), generator=torch.Generator().manual_seed(1))
    drafts = target[:, :LENGTH].transpose(0, 1)[..., known] + 0.5 * noise
    drafts = drafts.contiguous()
    device = Judging(requests, vocab, ids, LENGTH)
    drafted = device.draft(drafts)
    given = {i: [rng.randrange(40) for _ in range(LENGTH)] for i in range(2, lanes, 3)}
    given |= {i: [int(row.argmax()) for row in target[i, :LENGTH]] for i in range(1, lanes, 6)}
    gained = device.judge(target, 5, given)
    accepted = ends = 0
    for one in requests:
        mine = given.get(one.id)
        draft, verdict = by_reference(one, None if mine else drafts[:, one.id], known, target[one.id], mine or ())
        if mine is None:
            assert drafted[one.id][: len(draft)] == list(draft.tokens), one.params
        assert gained[one.id] == [*(draft.tokens[node] for node in verdict.path), verdict.token], one.params
        accepted += len(verdict.path)
        ends += len(verdict.path) < len(draft)
    assert min(accepted, ends) > lanes // 3, "no test"


ODD: list[tuple[dict[str, Any], str, int, float]] = [
    ({"temperature": 1.0}, "draft", 1, math.nan),
    ({"temperature": 1e-300, "top_p": 1e-300}, "draft", 0, math.inf),
    ({"temperature": 1e300, "top_k": 3}, "draft", 2, -math.inf),
    ({"temperature": 0.7, "min_p": 1.0}, "target", 0, math.nan),
    ({"temperature": 1.0, "top_p": 0.5}, "target", 0, math.inf),
    ({"temperature": 5e-324, "repetition_penalty": 100.0}, "target", 0, -math.inf),
    ({"temperature": 1.0, "top_p": 1 - 2**-53, "logit_bias": {3: -100.0}}, "one", 0, -math.inf),
]


def test_odd_scores_are_judged_as_by_the_reference() -> None:
    """What is no number ends a chain where it is the draft's, and gives none where it is the target's: a whole row, but
    for one token of the last. And the least and the most that may be asked for."""
    vocab, rng = 65, random.Random(5)
    requests = [made(i, rng, vocab, asked) for i, (asked, *_) in enumerate(ODD)]
    target = logits_of(rng, vocab, len(ODD), LENGTH + 1)
    drafts = target[:, :LENGTH].transpose(0, 1).contiguous()
    for i, (_, whose, row, value) in enumerate(ODD):
        spoiled = drafts[row, i] if whose == "draft" else target[i, row]
        spoiled[whose == "one" :] = value
    device = Judging(requests, vocab, None, LENGTH)
    device.draft(drafts)
    gained = device.judge(target, len(ODD) * (LENGTH + 1), {})
    for one, tokens, (_, whose, row, _) in zip(requests, gained, ODD, strict=True):
        if whose == "target":
            assert tokens == [-1]
            with pytest.raises(NotANumber):
                by_reference(one, drafts[:, one.id], torch.arange(vocab), target[one.id])
            continue
        draft, verdict = by_reference(one, drafts[:, one.id], torch.arange(vocab), target[one.id])
        assert len(draft) == (row if whose == "draft" else LENGTH)
        assert tokens == [*(draft.tokens[node] for node in verdict.path), verdict.token]


@triton.jit  # type: ignore[untyped-decorator]
def anything(peak: Any) -> Any:
    return peak == peak  # but NaN


@only_interpreted
def test_what_is_no_number_must_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "_finite", anything)
    with pytest.raises(AssertionError):
        test_odd_scores_are_judged_as_by_the_reference()


@triton.jit  # type: ignore[untyped-decorator]
def greatest(words: Any, node: Any, STREAM: tl.constexpr) -> Any:
    return (1 - 2.0**-53) + 0.0 * node.to(tl.float64)


@only_interpreted
def test_the_greatest_number_there_is_draws_what_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point at the end of all: the last token that has anything, and not one that was taken away."""
    monkeypatch.setattr(deal, "_uniform", greatest)
    monkeypatch.setattr(KeyedRandom, "_uniform", lambda self, stream, node: 1 - 2.0**-53)
    rng, vocab = random.Random(2), 60
    requests = [made(i, rng, vocab, {"temperature": 1.0 + 0.01 * i, "top_k": 1 + i % 20}) for i in range(24)]
    target = logits_of(rng, vocab, len(requests), 2)
    drafts = target[:, :1].transpose(0, 1) + 0.2 * logits_of(rng, vocab, 1, len(requests))
    device = Judging(requests, vocab, None, 1)
    device.draft(drafts)
    gained = device.judge(target, 2 * len(requests), {})
    for one in requests:
        draft, verdict = by_reference(one, drafts[:, one.id], torch.arange(vocab), target[one.id])
        assert gained[one.id] == [*(draft.tokens[node] for node in verdict.path), verdict.token]


VOCAB, LANES = 6, 200


def first_tokens(seed: int, sampled: bool) -> tuple[Counter[int], list[float]]:
    """What many chains of one draft, drawn by seeds of their own or given, are continued with; and how likely that is.
    Draft and target differ a lot."""
    rng = random.Random(seed)
    requests = [made(i, rng, VOCAB, {"temperature": 1.0, "top_k": 5}) for i in range(LANES)]
    for one in requests:
        one.tokens, one.history = requests[0].tokens, requests[0].history
    target = torch.tensor([1.5, 0.0, 1.0, -1.0, 0.5, -2.0]).expand(LANES, 2, VOCAB).contiguous()
    device = Judging(requests, VOCAB, None, 1)
    device.draft(torch.tensor([4.0, 0.0, 0.0, 0.0, 3.5, 0.0]).expand(1, LANES, VOCAB).contiguous())
    given = {} if sampled else {i: [i % 3] for i in range(LANES)}
    gained = device.judge(target, 2 * LANES, given)
    exact = warp(target[0, :1], requests[0].params, requests[0].history, [[]])[0].exp().tolist()
    return Counter(tokens[0] for tokens in gained), exact


def statistic(found: Counter[int], exact: list[float]) -> float:
    """Chi-square of 4 degrees of freedom; above 24 once in 10,000 times."""
    if any(not exact[token] for token in found):
        return math.inf
    return sum((found[token] - LANES * p) ** 2 / (LANES * p) for token, p in enumerate(exact) if p)


@pytest.mark.parametrize("sampled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_is_emitted_has_the_target_s_distribution(sampled: bool) -> None:
    assert statistic(*first_tokens(3, sampled)) < 24


@triton.jit  # type: ignore[untyped-decorator]
def swapped(p: Any, q: Any) -> Any:
    return tl.where(q > 0, q.to(tl.float64) / tl.maximum(p, 1).to(tl.float64), p.to(tl.float64) / 2.0**52)


@triton.jit  # type: ignore[untyped-decorator]
def certain(p: Any, q: Any) -> Any:
    return tl.where(q > 0, 1.0, p.to(tl.float64) / 2.0**52)


@triton.jit  # type: ignore[untyped-decorator]
def nothing_taken(share: Any, q: Any, refused: Any) -> Any:
    return share


@only_interpreted  # what is compiled already stays as it is
@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("odds", swapped),
        pytest.param("odds", certain, marks=pytest.mark.slow),
        ("residual", nothing_taken),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_what_is_broken_has_another_one(part: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, part, fault)
    assert statistic(*first_tokens(3, sampled=True)) > 30


MIXED: list[dict[str, Any]] = [
    {"temperature": 1.0, "verify": "rejection", "max_tokens": 24},
    {"temperature": 0.7, "verify": "rejection", "top_p": 0.8, "logprobs": 2, "max_tokens": 9},
    {"temperature": 0.9, "max_tokens": 12},
    {"temperature": 1.2, "verify": "rejection", "top_k": 5, "repetition_penalty": 1.3, "max_tokens": 15},
    {"temperature": 0.0, "verify": "rejection", "max_tokens": 8},
    {"temperature": 1.0, "verify": "rejection", "min_p": 0.1, "stop_token_ids": [3], "max_tokens": 20},
]


@only_interpreted
@pytest.mark.parametrize(
    ("kind", "length"), [("head", 3), pytest.param("model", 4, marks=pytest.mark.slow), ("none", 0)]
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (100, 200))])
def test_whole_requests_get_the_tokens_of_the_host_s_steps(
    kind: str, length: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside coupled and greedy ones, joining one after the other; nothing may fall back to the host."""
    simulate(monkeypatch)
    found = []
    for on_device in (True, False):
        target = any_order.decoder()
        drafter, controller = any_order.drafters(kind, target), FixedLength(length, tree=False)
        engine = Engine(target, drafter, controller) if on_device else host_engine(target, drafter, controller)
        if on_device:
            patched: Any = device_of(engine)._host
            patched.verify = None
        engine.executor.begins = kind == "none"  # as the device: what is drawn depends on where steps begin
        rng = random.Random(seed)
        requests = [
            any_order.made(i, rng.choices(range(SMALL), k=size), SamplingParams(**asked, seed=seed + i))
            for i, (asked, size) in enumerate(zip(MIXED, (2, 3, 20, 4, 5, 9), strict=True))
        ]
        for one in requests:
            engine.add(one)
            engine.step()
        while not engine.idle:
            engine.step()
        assert engine.leaks() == []
        found.append(requests)
    for one, same in zip(*found, strict=True):
        assert one.tokens == same.tokens, one.params
        assert [told.token_id for told in one.logprobs] == [told.token_id for told in same.logprobs]
    if length:
        judged = [one for one in found[0] if one.params.verify == "rejection"]
        assert 0 < sum(one.accepted for one in judged) < sum(one.drafted for one in judged), "no test"


MORE = 12 if DEVICE.type == "cuda" else 1
"""Texts are so many times longer where that takes no time."""


@pytest.mark.slow  # the same without arithmetic is above
def test_a_head_s_chains_are_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """With arithmetic: rows of few tokens a pass on the host, and many in the device's steps."""
    found = []
    for on_device in (True, False):
        target = CudaDecoder.load(SHAPE, target_tensors(), DTYPE, DEVICE, max_batch=3, max_context=CONTEXT)
        head = place_head(loud_head(), target)
        engine = stepped(target, HeadDrafter(head, SMALL), FixedLength(3, tree=False), on_device=on_device)
        if on_device:
            monkeypatch.setattr(device_of(engine)._host, "verify", None)
        engine.executor.begins = False  # as the device: what is drawn depends on where steps begin
        asked = [
            ([5, 6, 7], SamplingParams(temperature=1.0, max_tokens=5 * MORE, seed=3, verify="rejection")),
            ([3, 9], SamplingParams(temperature=0.8, top_p=0.8, max_tokens=4 * MORE, seed=4, verify="rejection")),
        ]
        requests = [device_requests.made(i, *each, SMALL) for i, each in enumerate(asked)]
        for one in requests:
            engine.add(one)
        while not all(one.finish_reason for one in requests):
            engine.step()
        found.append([one.tokens for one in requests])
    assert found[0] == found[1]
    assert sum(one.accepted for one in requests) > 0, "no test"
