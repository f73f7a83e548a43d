"""Many requests over few blocks: nothing is set aside for a slot, what is shared is stored once, and whoever comes,
waits, is sent back or goes on, the tokens are those of the request alone. The arithmetic is simulated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("triton")

import device_requests
from any_order import DRAFT_SALT, HEAD_SALT, decoder, expected
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_gpu_head import VOCAB, loud_head

from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.drafters.head import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.kvcache.blocks import AHEAD
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.head.load import place_head
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted


def request(number: int, prompt: Sequence[int], tokens: int, **asked: Any) -> Request:
    return device_requests.made(number, prompt, SamplingParams(max_tokens=tokens, **asked), VOCAB, trace=False)


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def drafter(kind: str, target: CudaDecoder, blocks: int) -> Drafter:
    if kind == "none":
        return NoDrafter()
    if kind == "model":
        return ModelDrafter(decoder(DRAFT_SALT, batch=target.max_batch, context=target.max_context, blocks=blocks))
    head: Any = place_head(loud_head(), target)
    assert isinstance(head, CudaHead)
    head.provide(blocks, target.max_context)
    network: Any = head.network
    network.salt, network.width, network.ids = HEAD_SALT, VOCAB, head.ids.numpy()
    return HeadDrafter(head, VOCAB)


def together(engine: Engine, requests: Sequence[Request]) -> int:
    """Run them; returns how many decoded at the same time."""
    for one in requests:
        engine.add(one)
    most = 0
    while not engine.idle:
        engine.step()
        most = max(most, sum(not s.num_uncomputed_tokens for s in engine.scheduler.running))
    assert engine.leaks() == []
    return most


def check(target: CudaDecoder, requests: Sequence[Request]) -> None:
    for one in requests:
        assert one.tokens == expected(target, one), one.id


def test_short_requests_run_beside_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of 30 blocks, where nine slots of this context would need 90."""
    simulate(monkeypatch)
    target = decoder(batch=9, context=1000, blocks=30)
    engine = Engine(target, NoDrafter(), FixedLength(0))
    requests = [request(0, words(0, 800), 20), *(request(i, words(i, 40), 20) for i in range(1, 9))]
    assert together(engine, requests) == 9
    assert engine.stats.preemptions == 0
    check(target, requests)


@pytest.mark.parametrize("salts", [1, 2])
def test_whole_blocks_of_a_prefix_are_stored_once(salts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight requests of one caller begin with the same 600 tokens; of two callers, each caller's four."""
    simulate(monkeypatch)
    target = decoder(batch=8, context=1000, blocks=34)
    engine = Engine(target, NoDrafter(), FixedLength(0))
    requests = [request(i, [*words(0, 600), *words(i, 5)], 12) for i in range(8)]
    for i, one in enumerate(requests):
        one.cache_salt = str(i % salts)
        engine.add(one)
    while len([s for s in engine.scheduler.running if s.generated]) < (8 if salts == 1 else 5):
        engine.step()
    running = [s for s in engine.scheduler.running if s.generated]
    held = {s.id: list(target.blocks(s.slot)) for s in running}
    for salt in {s.cache_salt for s in running}:
        same = [held[s.id] for s in running if s.cache_salt == salt]
        assert len({tuple(blocks[:4]) for blocks in same}) == 1, "of the prefix"
        rest = [block for blocks in same for block in blocks[4:]]
        assert len(rest) == len(set(rest)), "what each has written itself"
    first = {s.cache_salt: held[s.id][0] for s in running}
    assert len(set(first.values())) == salts, "nothing is shared between callers"
    while not engine.idle:
        engine.step()
    check(target, requests)


def test_what_does_not_fit_now_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder(batch=4, context=700, blocks=9)
    engine = Engine(target, NoDrafter(), FixedLength(0))
    requests = [request(i, words(i, 600), 8) for i in range(3)]
    assert together(engine, requests) == 1
    assert engine.stats.preemptions == 0
    check(target, requests)


def test_the_youngest_gives_way_when_texts_outgrow_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder(batch=3, context=400, blocks=3 * -(-(120 + AHEAD) // BLOCK) + 1)
    engine = Engine(target, NoDrafter(), FixedLength(0))
    requests = [request(i, words(i, 120), 80, temperature=0.7, seed=i) for i in range(3)]
    assert together(engine, requests) == 3
    assert engine.stats.preemptions > 0
    check(target, requests)


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("none", "model")), "head"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_any_order_in_few_blocks(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    rng = random.Random(seed)
    target = decoder(batch=5, context=600, blocks=14)
    engine = Engine(target, drafter(kind, target, 14), FixedLength(0 if kind == "none" else 3))
    assert device_of(engine)
    every: list[Request] = []
    out: list[Request] = []
    for step in range(40):
        if step % 4 == 0 and len(every) < 8:
            prompt = words(rng.randrange(100), rng.choice([3, 60, 130, 250, 400]))
            if every and rng.random() < 0.6:
                source = rng.choice(every).tokens
                prompt = source[: rng.randint(1, min(len(source), 400))] + prompt[: rng.choice([1, 3, 100])]
            every.append(
                request(len(every), prompt, rng.choice([2, 10, 30]), temperature=rng.choice([0, 1]), seed=step)
            )
            every[-1].cache_salt = rng.choice([None, None, "a"])
            engine.add(every[-1])
        if rng.random() < 0.1 and engine.scheduler.running:
            one = rng.choice(engine.scheduler.running)
            engine.remove(one)
            out.append(one)
        if out and rng.random() < 0.5:
            engine.add(out.pop())
        engine.step()
    for one in out:
        engine.add(one)
    while not engine.idle:
        engine.step()
    assert engine.leaks() == []
    check(target, every)
