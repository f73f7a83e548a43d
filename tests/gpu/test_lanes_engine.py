"""The engine around lanes: a draft model of a shorter context, scores that are no numbers, Ctrl-C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import simulated
from any_order import DRAFT_SALT, decoder, drafters, expected, made
from device_requests import device_of, stepped
from simulated import only_interpreted, simulate
from tiny_gpu_head import CPU, VOCAB
from tiny_gpu_head import TARGET as SHAPE

from outrider.bench.shapes import random_weights
from outrider.control.auto import AutoLength
from outrider.control.controller import FixedLength
from outrider.drafters.head import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.crew import Crew
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import ModelError
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.network import Network
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted


def short_draft(context: int) -> CudaDecoder:
    weights = random_weights(SHAPE, CPU, torch.float32, seed=1)
    draft = CudaDecoder.load(SHAPE, weights, torch.float32, CPU, max_batch=5, max_context=context)
    network: Any = draft.network
    network.salt, network.width = DRAFT_SALT, VOCAB
    return draft


def finished(engine: Engine, one: Request) -> list[int]:
    engine.add(one)
    while not one.finish_reason:
        engine.step()
    return one.tokens


def test_a_prompt_longer_than_the_draft_models_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting ends there, on the host; on the device the request fails."""
    simulate(monkeypatch)
    target = decoder()
    one = made(0, [i % VOCAB for i in range(40)], SamplingParams(temperature=0, max_tokens=6))
    finished(Engine(target, ModelDrafter(short_draft(32)), FixedLength(2)), one)
    assert one.tokens == expected(target, one)


def test_a_text_that_outgrows_the_draft_models_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond it would be written into somebody else's memory."""
    simulate(monkeypatch)
    monkeypatch.setattr("outrider.models.cuda.decoder.SLACK", 8)  # of 256: the same with 250 more tokens
    target, draft = decoder(), short_draft(32)
    one = made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=60))
    finished(Engine(target, ModelDrafter(draft), FixedLength(2)), one)
    assert one.tokens == expected(target, one)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_last_token_of_a_prompt_is_run_with_it(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that first tokens are chosen without a pass of their own; not where others decode, or a prompt is scored
    only."""
    simulate(monkeypatch)
    target, passes = decoder(), list[int]()
    body = simulated.body

    def noted(self: Any, rows: int, *args: Any, **named: Any) -> None:
        passes.append(rows)
        body(self, rows, *args, **named)

    monkeypatch.setattr(Network, "body", noted)
    engine = Engine(target, NoDrafter(), FixedLength(0))
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=7, logprobs=2)
    prompts = [[(i * i + n) % VOCAB for i in range(length)] for n, length in enumerate((9, 20, 12))]
    one, two, late = (made(i, prompt, params) for i, prompt in enumerate(prompts))
    engine.add(one)
    engine.add(two)
    engine.step()
    assert passes == [32, 2]  # 9 + 20 rows, and the step that is launched ahead
    assert [one.generated, two.generated] == [1, 1]
    engine.add(late)
    engine.step()
    assert passes[2:] == [16, 4]  # 11 rows: beside others the last is run by the step
    while not late.finish_reason:
        engine.step()
    for each in (one, two, late):
        assert each.tokens == expected(target, each)


class Reader:
    begun = 0.0

    def __init__(self, *requests: Request) -> None:
        self.requests = requests


@pytest.mark.parametrize("kind", ["none", "model", "head"])
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_scores_that_are_not_numbers_end_one_request_only(
    kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep their tokens, and the engine goes on."""
    simulate(monkeypatch)
    target = decoder()
    mock = simulated.head

    def broken(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
        mock(self, count, first, wanted)
        if self is target.network:
            for i, row in enumerate(self.tables.wanted[first : first + count].tolist()):
                if self.tables.slots[row] == bad.slot and self.tables.positions[row] >= 6:
                    self.logits[i, 3] = np.nan

    monkeypatch.setattr(Network, "head", broken)
    engine = Engine(target, drafters(kind, target), FixedLength(2))
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=12)
    good, bad, more = (made(i, [1, 2, i], params) for i in range(3))
    failed: list[tuple[Any, Exception]] = []
    crew: Crew[Any] = Crew(
        engine,
        lambda reader, chunk: None,
        lambda reader, why: failed.append((reader, why)),
        lambda: made(99, [5], SamplingParams(temperature=0, max_tokens=1)),
    )
    readers = [Reader(one) for one in (good, bad, more)]
    for reader in readers:
        crew.add(reader)
    for _ in range(60):
        crew.step()
    assert [reader for reader, _ in failed] == [readers[1]]
    assert isinstance(failed[0][1], ModelError)
    assert crew.idle
    for one in (good, more):
        assert one.tokens == expected(target, one)
    late = made(7, [9, 9], params)
    assert finished(engine, late) == expected(target, late)
    assert engine.leaks() == []


def test_lengths_of_steps_that_were_dropped_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps under way are observed although a request of theirs was sent back, or all that follow would be held
    against the wrong ones."""
    simulate(monkeypatch)
    controller = AutoLength(nodes=3)
    target = decoder()
    engine = Engine(target, drafters("model", target), controller)
    monkeypatch.setattr(controller, "observe", timed(controller.observe))
    one, two = (made(i, [i + 1, 2, 3], SamplingParams(temperature=0, max_tokens=25)) for i in range(2))
    engine.add(one)
    engine.add(two)
    most = 0
    for kv_tokens in [480, 480, 480, 10, 480, 480, 10, 480, 480]:
        engine.scheduler.kv_tokens = kv_tokens
        engine.step()
        most = max(most, controller._device.under_way)
    assert engine._preemptions
    assert most <= 2


@pytest.mark.parametrize("kind", ["none", "head"])
@pytest.mark.parametrize("slow", [False, True])
def test_whoever_decodes_does_not_wait_for_a_slow_host_to_see_to_newcomers(
    kind: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more step is launched before a newcomer has a slot; after it all goes on one step ahead of the host."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters(kind, target), FixedLength(2))
    device = device_of(engine)
    monkeypatch.setattr(device._clock, "idles", lambda *_: slow)
    done: list[str] = []
    for owner, name in ((device._stepper, "launch"), (device._stepper, "collect"), (target, "forward")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name), name, done))
    one, two = (made(i, [i + 1, 2, 3, 4], SamplingParams(temperature=0, max_tokens=40)) for i in range(2))
    engine.add(one)
    for _ in range(3):
        engine.step()
    done.clear()
    engine.add(two)
    for _ in range(3):
        engine.step()
    joining, after = ["forward", "launch", "collect"], ["launch", "collect"]
    assert done == (["launch", *joining, "collect", *after] if slow else [*joining, *after, *after])
    while not engine.idle:
        engine.step()
    for request in (one, two):
        assert request.tokens == expected(target, request)
    assert engine.leaks() == []


def noted(call: Any, name: str, done: list[str]) -> Any:
    def noting(*args: Any, **options: Any) -> Any:
        done.append(name)
        return call(*args, **options)

    return noting


def timed(observe: Any) -> Any:
    """The interpreter has no clock."""
    return lambda commits, rows, draft, target: observe(commits, rows, draft or 0.001, target or 0.01)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_conversation_goes_on_with_a_whole_head(on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second turn reuses the first's rows: on the host the head has one for each of its tokens."""
    simulate(monkeypatch)
    target = decoder()
    drafter = drafters("head", target)
    assert isinstance(drafter, HeadDrafter)
    engine = stepped(target, drafter, FixedLength(2), on_device=on_device)
    first = made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=40))
    finished(engine, first)
    second = made(1, [*first.tokens, 4, 5], SamplingParams(temperature=0, max_tokens=10))
    engine.add(second)
    engine.step()
    assert engine._slots.reused > 30
    assert drafter._held[1].dropped <= 3  # on the host the last one, whose row waits for a draft that never comes


def test_a_heads_pass_has_room_for_all_that_waits_when_others_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drafted for a while, then the batch grows: as from 32 requests to 33 with tables of 512 rows."""
    simulate(monkeypatch)
    target = decoder()
    drafter = drafters("head", target)
    assert isinstance(drafter, HeadDrafter)
    network: Any = drafter.head
    monkeypatch.setattr(network.network, "max_rows", 16)  # in proportion: from 2 lanes to 4
    controller = FixedLength(0)
    controller.away = False
    monkeypatch.setattr(controller, "pays", lambda prompts, running: [True] * len(prompts))
    engine = Engine(target, drafter, controller)
    requests = [made(i, [i + 1, 2], SamplingParams(temperature=0, max_tokens=20)) for i in range(3)]
    for one in requests[:2]:
        engine.add(one)
    while requests[0].generated < 6:
        engine.step()
    engine.add(requests[2])
    while not engine.idle:
        engine.step()
    for one in requests:
        assert one.tokens == expected(target, one)


def test_interrupted_launches_do_not_use_the_engine_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a step is being launched, as it is often: the next text is asked for as if nothing had been."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, NoDrafter(), FixedLength(0))
    stepper: Any = device_of(engine)._stepper
    run, broken = stepper._run, [True]

    def interrupted(*args: Any) -> None:
        if broken[0]:
            raise KeyboardInterrupt
        run(*args)

    monkeypatch.setattr(stepper, "_run", interrupted)
    for number in range(3):
        one = made(number, [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
        engine.add(one)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.remove(one)
    broken[0] = False
    last = made(9, [4, 5], SamplingParams(temperature=0, max_tokens=4))
    assert finished(engine, last) == expected(target, last)


@pytest.mark.parametrize("when", ["launch", "collect"])
def test_a_step_that_was_launched_but_not_noted_gives_nobody_its_tokens(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between a launch (or a step taken from the list) and the note of it: outcomes are then one step off."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, NoDrafter(), FixedLength(0))
    stepper: Any = device_of(engine)._stepper
    launch, collect = stepper.launch, stepper.collect

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(stepper, "launch", launch)
        monkeypatch.setattr(stepper, "collect", collect)
        if when == "launch":
            launch(*args)
        raise KeyboardInterrupt

    one = made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=8))
    engine.add(one)
    engine.step()
    monkeypatch.setattr(stepper, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.remove(one)
    last = made(9, [4, 5], SamplingParams(temperature=0, max_tokens=6))
    assert finished(engine, last) == expected(target, last)


def test_lanes_that_were_seated_but_not_noted_write_into_nobodys_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of `seat`: those lanes go on, in slots that others are given."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, NoDrafter(), FixedLength(0))
    stepper: Any = device_of(engine)._stepper
    seat = stepper.seat

    def interrupted(lanes: Any) -> None:
        monkeypatch.setattr(stepper, "seat", seat)
        seat(lanes)
        raise KeyboardInterrupt

    monkeypatch.setattr(stepper, "seat", interrupted)
    gone = [made(i, [i, 2], SamplingParams(temperature=0, max_tokens=30)) for i in range(5)]
    for one in gone:
        engine.add(one)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    for one in gone:
        engine.remove(one)
    short, long = SamplingParams(temperature=0, max_tokens=3), SamplingParams(temperature=0, max_tokens=20)
    later = [made(10 + i, [7, i], p) for i, p in enumerate((short, long, long))]
    for one in later:
        engine.add(one)
    while not later[0].finish_reason:
        engine.step()
    last = made(20, [i * i % VOCAB for i in range(30)], SamplingParams(temperature=0, max_tokens=12))
    assert finished(engine, last) == expected(target, last)
