"""A drafter of one's own beside a device: its chains are verified there, and everything else by the host.

Networks without arithmetic (tests/support/simulated.py), everything else as on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

from any_order import decoder, expected, made
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_engine import finish
from tiny_gpu_head import VOCAB
from told import KINDS, Own

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.request import RequestView
from outrider.core.step import PLAIN, StepShape
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.stepper import DeviceStepper
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted

PROMPTS = [[5, 6, 7], [3], [8, 2, 8, 2], [1, 2, 3, 4, 5, 6]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=16),
    SamplingParams(temperature=0.9, seed=7, max_tokens=12),
    SamplingParams(temperature=0, max_tokens=20, logprobs=2),
    SamplingParams(temperature=1.0, top_p=0.8, min_p=0.05, seed=3, max_tokens=12),
]


class Launches:
    """The shapes that the device was asked for, and how often the host ran the target instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[StepShape] = []
        self.by_host = 0
        launch, verify = DeviceStepper.launch, HostExecutor.verify

        def launched(stepper: DeviceStepper, lanes: int, shape: StepShape, *rest: object) -> None:
            self.shapes.append(shape)
            launch(stepper, lanes, shape, *rest)  # type: ignore[arg-type]

        def verified(host: HostExecutor, running: list[Request], drafts: list[Draft], seconds: float) -> object:
            self.by_host += any(drafts)
            return verify(host, running, drafts, seconds)

        monkeypatch.setattr(DeviceStepper, "launch", launched)
        monkeypatch.setattr(HostExecutor, "verify", verified)


def requests_of(params: Sequence[SamplingParams] = PARAMS) -> list[Request]:
    return [made(i, prompt, its) for i, (prompt, its) in enumerate(zip(PROMPTS, params, strict=False))]


def told(target: CudaDecoder, kind: str, params: Sequence[SamplingParams] = PARAMS) -> Own:
    return Own({one.id: expected(target, one) for one in requests_of(params)}, kind, VOCAB)


@pytest.mark.parametrize("controller", [FixedLength(4), FixedLength(16), AutoLength()], ids=["4", "16", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_verified_on_the_device(kind: str, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, drawn and reported, all at once; whatever is proposed, no token differs."""
    simulate(monkeypatch)
    target = decoder()
    drafter, noted, requests = told(target, kind), Launches(monkeypatch), requests_of()
    engine = Engine(target, drafter, controller)
    device_of(engine)
    finish(engine, *requests)
    assert [one.tokens for one in requests] == list(drafter.truths.values())
    assert not noted.by_host
    assert not engine.leaks()
    drafted, accepted = (sum(one.sources.get("own", (0, 0))[i] for one in requests) for i in (0, 1))
    assert sum(one.origins.count("own") for one in requests) == accepted
    if isinstance(controller, FixedLength):
        assert StepShape(0, controller.nodes) in noted.shapes
        assert set(noted.shapes) <= {PLAIN, StepShape(0, controller.nodes)}
        if kind == "right":
            assert drafted == accepted > sum(one.steps for one in requests)
    if kind in ("wrong", "stale", "skips"):
        assert accepted <= 0.5 * drafted, "hits are chance"


def test_what_is_drafted_comes_back_as_it_was_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its claims, to the drafter and to the trace."""
    simulate(monkeypatch)
    target = decoder()
    drafter, (one, *_) = told(target, "right"), requests_of()
    one.keep_trace = True
    finish(Engine(target, drafter, FixedLength(4)), one)
    drafts = [step.draft for step in one.trace if step.draft.tokens]
    assert len(drafts) > 2
    assert all(draft.source == "own" and draft.confidence[0] == pytest.approx(0.97) for draft in drafts)
    assert [each.draft for each in drafter.observed if each.draft.tokens] == drafts


class Branching(Own):
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """Two paths, whatever was asked for."""
        chains = super().propose(requests, [replace(budget, nodes=budget.nodes // 2) for budget in budgets])
        return [
            Draft([(token + 1) % VOCAB for token in chain.tokens[:1]], [-1], [0.1], "own").merged(chain)
            for chain in chains
        ]


def test_trees_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    known = told(target, "right")
    noted, requests = Launches(monkeypatch), requests_of()
    finish(Engine(target, Branching(known.truths, "right", VOCAB), FixedLength(6)), *requests)
    assert [one.tokens for one in requests] == list(known.truths.values())
    assert noted.by_host > 3
    assert set(noted.shapes) <= {PLAIN}


def test_what_is_judged_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one whose drafts are rejected or not, all are verified by the host."""
    simulate(monkeypatch)
    target = decoder()
    params = [replace(PARAMS[1], verify="rejection"), *PARAMS[1:]]
    drafter, noted, requests = told(target, "half", PARAMS), Launches(monkeypatch), requests_of(params)
    finish(Engine(target, drafter, FixedLength(4)), *requests)
    assert noted.by_host > 2
    assert [one.tokens for one in requests[1:]] == list(drafter.truths.values())[1:]


def test_a_useless_one_is_hardly_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain steps are launched one behind the other as soon as it is known that nothing pays."""
    simulate(monkeypatch)
    collect = DeviceStepper.collect
    monkeypatch.setattr(DeviceStepper, "collect", lambda stepper: replace(collect(stepper), target_seconds=1e-4))
    target = decoder()
    drafter, noted = told(target, "wrong"), Launches(monkeypatch)
    controller = AutoLength()
    engine = Engine(target, drafter, controller)
    asked, steps = 0, 0
    draft = controller.draft

    def counted(*args: object) -> list[Draft]:
        nonlocal asked
        asked += 1
        return draft(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "draft", counted)
    for _ in range(6):
        requests = requests_of([replace(PARAMS[0], max_tokens=80)])
        finish(engine, *requests)
        steps += requests[0].steps
    assert steps > 400
    assert asked < 0.4 * steps
    assert noted.shapes.count(PLAIN) > 0.9 * steps


def test_who_never_drafts_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    drafter, controller = told(target, "right"), FixedLength(0)
    asked, draft = 0, controller.draft

    def counted(*args: object) -> list[Draft]:
        nonlocal asked
        asked += 1
        return draft(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "draft", counted)
    (one,) = requests_of([replace(PARAMS[0], max_tokens=80)])
    finish(Engine(target, drafter, controller), one)
    assert one.steps == 80
    assert asked <= 3


@pytest.mark.parametrize("nodes", [1, 32, 40])
def test_a_length_beyond_the_devices_is_cut(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    params = [replace(PARAMS[0], max_tokens=80)]
    drafter, noted, requests = told(target, "right", params), Launches(monkeypatch), requests_of(params)
    finish(Engine(target, drafter, FixedLength(nodes)), *requests)
    assert [one.tokens for one in requests] == list(drafter.truths.values())
    assert max(shape.verified for shape in noted.shapes) == min(nodes, 32)
    assert requests[0].steps <= 80 // (min(nodes, 32) + 1) + 1


def test_a_request_that_ends_leaves_no_pause_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last step has no room for a draft, which says nothing of others."""
    controller = AutoLength()
    (ending,) = requests_of(PARAMS[:1])
    controller._thrift.left = 100
    simulate(monkeypatch)
    assert controller.draft(told(decoder(), "right"), [ending], False, [0], {PLAIN: 0.001}) == [Draft()]
    assert controller.rest == 0


@pytest.mark.parametrize("prediction", [False, True])
def test_who_brings_a_prediction_waits_for_no_pause(prediction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    drafter, controller, asked = told(target, "wrong"), AutoLength(), list[int]()
    draft = controller.draft
    monkeypatch.setattr(AutoLength, "rest", property(lambda controller: 60))

    def noted(its: Any, running: Sequence[RequestView], *rest: Any) -> list[Draft]:
        asked.append(len(running))
        return draft(its, running, *rest)

    monkeypatch.setattr(controller, "draft", noted)
    engine = Engine(target, drafter, controller)
    first, second = requests_of([replace(PARAMS[0], max_tokens=80)] * 2)
    engine.add(first)
    for _ in range(6):
        engine.step()
    if prediction:
        second.speculation = Speculation(prediction=(1, 2, 3))
    engine.add(second)
    for _ in range(6):
        engine.step()
    assert asked == ([1, 2] if prediction else [1])


def test_a_thought_is_weighed_against_what_a_plain_step_takes_the_host_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device says it takes next to nothing; the host is what the steps wait for."""
    simulate(monkeypatch)
    device = 1e-6
    collect = DeviceStepper.collect
    monkeypatch.setattr(DeviceStepper, "collect", lambda stepper: replace(collect(stepper), target_seconds=device))
    known = {StepShape(0, length): device for length in (0, 4, 8, 16)}
    monkeypatch.setattr(DeviceStepper, "seconds", lambda stepper, lanes: known)
    target = decoder()
    controller = AutoLength()
    engine = Engine(target, told(target, "wrong"), controller)
    seen, observe = list[float](), controller.observe

    def noted(verified: Any, rows: int, draft_seconds: float, target_seconds: float) -> None:
        if draft_seconds and target_seconds:  # not those whose pass was made with their prompts
            seen.append(target_seconds)
        observe(verified, rows, draft_seconds, target_seconds)

    monkeypatch.setattr(controller, "observe", noted)
    for _ in range(3):
        finish(engine, *requests_of([replace(PARAMS[0], max_tokens=80)]))
    assert len(seen) > 5
    assert seen[0] == device, "nothing was seen of the host yet"
    assert max(seen) > 20 * device
