"""Chains drafted on a device, all alike: as long as measured times say."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from control_world import Ran, Running, World, always, rising

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import StepShape

Chance = Callable[[int, int], float]
"""Of each further token to be right, by request and step."""


def chains(seconds: Mapping[int, float]) -> dict[StepShape, float]:
    """Of steps that verify what they draft."""
    return {StepShape(length, length): taken for length, taken in seconds.items()}


def test_thinking_costs_little_where_nothing_pays_and_change_is_noticed() -> None:
    """A lookup that takes 4% of a step and finds nothing, then everything."""
    useless = World(rising(0.3), always(0.05), free=True, thinking=0.04)
    plain = replace(useless, thinking=0.0).plain(2000)
    assert useless.run(useless.auto(), 2000).rate > 0.98 * plain
    cheap = replace(useless, thinking=0.004)
    assert cheap.run(cheap.auto(), 2000).rate > 0.98 * plain
    changing = replace(useless, chance=lambda _, step: 0.9 if step >= 500 else 0.05)
    settled = changing.run(changing.auto(), 500 + 40)
    assert max(map(sum, settled.drafted[500:520])) > 0, "noticed within a few steps"


@pytest.mark.parametrize(("row", "chance"), [(0.3, 0.35), (0.5, 0.55)])
def test_drafts_that_bring_less_than_the_thought_are_thought_about_less(row: float, chance: float) -> None:
    """Both would gain a little if looking up took no time; it takes an eighth of a step."""
    world = World(rising(row), always(chance), free=True, thinking=0.12)
    assert world.run(world.auto(), 2000).rate > 0.97 * replace(world, thinking=0.0).plain(2000)
    worth_it = replace(world, chance=always(0.8))
    assert worth_it.run(worth_it.auto(), 2000).rate > 1.2 * worth_it.plain(2000)


def on_device(controller: Controller, seconds: dict[int, float], chance: Chance, steps: int) -> Ran:
    """Steps of chains, each asked for before the one before is observed."""
    draw, ran = random.Random(1), Ran()
    requests = [Running(i) for i in range(4)]
    under_way: list[int] = []
    for step in range(steps):
        under_way.append(controller.plan(requests, chains(seconds), max(seconds)).shape.verified)
        if len(under_way) < 2:
            continue
        length = under_way.pop(0)
        verified = []
        for request in requests:
            taken = 0
            while taken < length and draw.random() < chance(request.id, step):
                taken += 1
            claims = [0.8 ** (k + 1) for k in range(length)]
            draft = Draft([7] * length, range(-1, length - 1), claims, "head")
            verified.append(VerifiedDraft(request, draft, tuple(range(taken)), tuple(range(taken + 1))))
        controller.observe(verified, len(requests) * (length + 1), 0.1 * seconds[length], 0.9 * seconds[length])
        ran.note(seconds[length], [len(c.tokens) for c in verified], [length] * len(requests))
    return ran


@pytest.mark.parametrize("level", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("chance", [0.0, 0.4, 0.7, 0.95])
def test_chains_on_a_device_are_as_long_as_measured_times_say(level: float, chance: float) -> None:
    """Within 3% of the best fixed length, plain decoding among them, whatever a level costs and brings."""
    seconds = {length: 1 + level * length for length in AutoLength.lengths}
    rates = [on_device(FixedLength(n), seconds, lambda *_: chance, 600).rate for n in seconds]
    assert on_device(AutoLength(), seconds, lambda *_: chance, 600).since(100) > 0.97 * max(rates)


def test_chains_on_a_device_come_back_when_they_pay_again() -> None:
    """Useless for 600 steps, then nearly always right: found out by rare tries, then as fast as a fixed length."""
    seconds = {length: 1 + 0.15 * length for length in AutoLength.lengths}
    changing: Chance = lambda _, step: 0.0 if step < 600 else 0.95  # noqa: E731
    ran = on_device(AutoLength(), seconds, changing, 1600)
    before = sum(map(sum, ran.tokens[100:590])) / sum(ran.costs[100:590])
    assert before > 0.97 * 4
    assert ran.since(1300) > 0.9 * on_device(FixedLength(8), seconds, lambda *_: 0.95, 1000).rate


def test_chains_on_a_device_keep_to_what_a_request_allows() -> None:
    seconds = {length: 1 + 0.01 * length for length in AutoLength.lengths}
    for controller in (AutoLength(), FixedLength(8)):
        some = [Running(0), Running(1, speculation=Speculation(max_nodes=2))]
        assert controller.plan(some, chains(seconds), 8).shape == StepShape(2, 2)
        assert controller.plan(some, chains(seconds), 1).shape == StepShape(1, 1)


def among_many(chance: float, steps: int = 1500, tokens: int = 50) -> tuple[float, float]:
    """One request whose drafts are right so often, and another such one when it has its tokens, beside 15 that gain
    by steps which drafts make much longer for all: what each of the former took, of its plain time, and the tokens of
    all in the time of a plain step."""
    seconds = {0: 1.0, 1: 1.3, 2: 1.5, 3: 1.65}
    controller, draw = AutoLength(), random.Random(1)
    requests = [Running(i) for i in range(16)]
    under_way = [controller.plan(requests, chains(seconds), 3).shape.verified]
    spent, gained, taken, done = 0.0, 0, 0, 0
    for step in range(steps):
        under_way.append(controller.plan(requests, chains(seconds), 3).shape.verified)
        length = under_way.pop(0)
        verified = []
        for request in requests:
            right = 0
            while right < length and draw.random() < (chance if request is requests[-1] else 0.66):
                right += 1
            draft = Draft([7] * length, range(-1, length - 1), [0.8 ** (k + 1) for k in range(length)], "head")
            verified.append(VerifiedDraft(request, draft, tuple(range(right)), tuple(range(right + 1))))
        controller.observe(verified, 16 * (length + 1), 0.1 * seconds[length], 0.9 * seconds[length])
        spent, gained = spent + seconds[length], gained + sum(len(each.tokens) for each in verified)
        taken += len(verified[-1].tokens)
        if taken >= tokens:
            done, taken = done + 1, 0
            controller.forget(requests[-1])
            requests[-1] = Running(16 + step)
    return spent / (done * tokens + taken), gained / spent / 16


@pytest.mark.parametrize("chance", [0.0, 0.2, 0.3])
def test_nobody_loses_much_by_steps_that_others_drafts_make_longer(chance: float) -> None:
    """Who gains little is soon known, and what it loses is bounded; the others go on gaining."""
    took, rate = among_many(chance)
    assert took < 1.12
    assert rate > 1.05
