"""The GPU decoder as a whole, and steps taken on the device: the tokens and bits of one row at a time.

Run by Triton's interpreter where there is no GPU, so with a tiny model; tests/gpu/test_cuda.py has the real one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from told import KINDS, Told

pytest.importorskip("triton")

from device_requests import device_of, stepped
from tiny_gpu import CONTEXT, DEVICE, DRAFT, DTYPE, TARGET, VOCAB, gpu_decoder, request

from outrider.bench.twin_model import CutVocabulary
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import ROOT, Speculation
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel, Rows
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.router import RouterDrafter
from outrider.engine.engine import Engine
from outrider.models.architecture import Architecture, LayerShape, Rope
from outrider.models.cuda.backend import CudaBackend, unsuited_shape
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.params import SamplingParams

Launch = Callable[..., None]


@pytest.fixture(scope="module")
def target() -> CudaDecoder:
    return gpu_decoder(TARGET)


@pytest.fixture(scope="module")
def draft() -> CudaDecoder:
    return gpu_decoder(DRAFT)


RICH: dict[str, dict[str, Any]] = {
    "norms": {"qkv_bias": True, "qk_norm": True, "tied": False, "layers": (LayerShape(0, 0), LayerShape(0, 6))},
    "multipliers": {"residual_scale": 0.3, "logit_scale": 1 / 6, "embed_scale": 3.0},
    "half-turned": {
        "layers": (LayerShape(0, 0), LayerShape(1, 0)),
        "ropes": (Rope(1e4, 16, still=8), Rope(1e4, 16, still=16)),
    },
}


@pytest.mark.parametrize("name", RICH)
def test_logits_are_those_of_the_pytorch_decoder(name: str) -> None:
    """Biases, norms of queries and keys, a sliding layer; multipliers; layers that turn a part of a head, or nothing.
    A prompt, a tree, and the rows a commit moved."""
    rich = replace(TARGET, **RICH[name])
    assert rich.lacking(CudaBackend.known) is None
    assert unsuited_shape(rich) is None
    prompt = random.Random(0).choices(range(VOCAB), k=12)
    tree = Rows(0, [5, 6, 7, 8, 9], [ROOT, 0, 0, 1, 2])

    def logits(model: LanguageModel) -> torch.Tensor:
        model.open()
        model.forward([Rows.chain(0, prompt, logits=())])
        model.commit(0, range(len(prompt)))
        of_tree = model.forward([tree])
        model.commit(0, [0, 2, 4])
        return torch.cat([of_tree, model.forward([Rows.chain(0, [11])])]).float()

    def pytorch(dtype: torch.dtype) -> torch.Tensor:
        weights = _rich_weights(rich)
        return logits(TorchDecoder.load(rich, weights, dtype, DEVICE, max_batch=2, max_context=CONTEXT, bitwise=False))

    exact = pytorch(torch.float32)
    ours = logits(CudaDecoder.load(rich, _rich_weights(rich), DTYPE, DEVICE, max_batch=2, max_context=CONTEXT))
    rounding = (pytorch(DTYPE) - exact).abs().max()
    assert (ours - exact).abs().max() < 2 * rounding + 1e-4 * exact.abs().max()


def _rich_weights(a: Architecture) -> list[tuple[str, torch.Tensor]]:
    from outrider.models.weights import _allocate

    places = _allocate(a, torch.float32, DEVICE)[2]
    generator = torch.Generator().manual_seed(3)
    return [
        (name, torch.randn(place.values.shape, generator=generator).to(DEVICE) * 0.2 + float("norm" in name))
        for name, place in places.items()
    ]


def test_bits_do_not_depend_on_company(target: CudaDecoder) -> None:
    """`torch.equal`: one token a pass against chains, trees and batches, across a block of positions on a GPU."""
    start = 130 if DEVICE.type == "cuda" else 3  # the interpreter takes seconds for what a GPU does in milliseconds
    tokens = random.Random(1).choices(range(VOCAB), k=start + 12)
    slot = target.open()
    target.forward([Rows.chain(slot, tokens[:start], logits=())])
    target.commit(slot, range(start))
    single = []
    for token in tokens[start:]:
        single.append(target.forward([Rows.chain(slot, [token])])[0])
        target.commit(slot, [0])
    expected = torch.stack(single)  # row i follows tokens[start + i]
    target.rollback(slot, start)
    assert torch.equal(target.forward([Rows.chain(slot, tokens[start:])]), expected)
    target.rollback(slot, start)
    other = target.open()
    target.forward([Rows.chain(other, tokens[: start + 4], logits=())])
    target.commit(other, range(start + 4))
    tree = Rows(slot, [3, tokens[start], 4, tokens[start + 1], 5, tokens[start + 2]], [ROOT, ROOT, 1, 1, 3, 3])
    logits = target.forward([tree, Rows.chain(other, tokens[start + 4 : start + 6])])
    assert torch.equal(logits[[1, 3, 5]], expected[:3])
    assert torch.equal(logits[6:], expected[4:6])
    target.close(slot)
    target.close(other)


PROMPTS = [[5, 6, 7], [3], [80, 2, 80, 2]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=4),
    SamplingParams(temperature=0.9, seed=7, max_tokens=7),
    SamplingParams(temperature=0, max_tokens=7, stop_token_ids=[11]),
]


def run(
    target: CudaDecoder, drafter: Drafter, controller: Controller, *, on_device: bool, late: bool = False
) -> list[list[int]]:
    engine = stepped(target, drafter, controller, on_device=on_device)
    requests = [request(i, prompt, params) for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))]
    for one in requests[: 2 if late else 3]:
        engine.add(one)
    for step in count():
        if late and step == 2:
            engine.add(requests[2])
        if all(s.finish_reason for s in requests):
            if isinstance(drafter, ModelDrafter) and isinstance(controller, FixedLength):
                assert 0 < sum(s.accepted for s in requests) < sum(s.drafted for s in requests), "no test"
            break
        engine.step()
    return [s.tokens[s.prompt_length :] for s in requests]


@pytest.fixture(scope="module")
def plain(target: CudaDecoder) -> list[list[int]]:
    """What the host decides, one row at a time."""
    return run(target, NoDrafter(), FixedLength(0), on_device=False)


def test_plain_steps_on_the_device(target: CudaDecoder, plain: list[list[int]]) -> None:
    assert run(target, NoDrafter(), FixedLength(0), on_device=True, late=True) == plain


def test_what_wraps_a_model_is_prepared_like_it(target: CudaDecoder) -> None:
    cut = CutVocabulary(target, VOCAB)
    engine = Engine(cut, NoDrafter(), FixedLength(0))
    assert engine.prepares == [cut, device_of(engine)]
    assert [each.key for each in cut.recordings()] == [each.key for each in target.recordings()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_drafted_steps_on_the_device(
    target: CudaDecoder, draft: CudaDecoder, plain: list[list[int]], length: int
) -> None:
    assert run(target, ModelDrafter(draft), FixedLength(length), on_device=True, late=length == 3) == plain


@pytest.mark.parametrize("kind", KINDS if DEVICE.type == "cuda" else ["half"])  # the interpreter is slow
def test_offered_steps_on_the_device(target: CudaDecoder, plain: list[list[int]], kind: str) -> None:
    truths = {i: [*prompt, *text] for i, (prompt, text) in enumerate(zip(PROMPTS, plain, strict=True))}
    assert run(target, Told(truths, kind, VOCAB), FixedLength(3), on_device=True, late=True) == plain


def test_the_controller_may_change_the_length(target: CudaDecoder, draft: CudaDecoder, plain: list[list[int]]) -> None:
    assert run(target, ModelDrafter(draft), AutoLength(nodes=2), on_device=True) == plain


def test_noise_is_renewed_and_the_host_may_step_in(
    target: CudaDecoder, draft: CudaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short horizon, and a second request whose rule only the host knows: same tokens as all on the host."""
    found = []
    for on_device in (True, False):
        engine = stepped(target, ModelDrafter(draft), FixedLength(2), on_device=on_device)
        if on_device:
            monkeypatch.setattr(device_of(engine)._stepper, "horizon", 4)
            monkeypatch.setattr(device_of(engine)._stepper, "limit", lambda lanes: 2)
        one = request(0, [5, 6, 7], SamplingParams(temperature=1.0, seed=3, max_tokens=8))
        two = request(1, [9, 9], SamplingParams(temperature=0, max_tokens=2, logprobs=1, verify="rejection"))
        engine.add(one)
        engine.step()
        engine.add(two)
        while not (one.finish_reason and two.finish_reason):
            engine.step()
        assert len(two.logprobs) == 2
        found.append((one.tokens, two.tokens))
    assert found[0] == found[1]


@pytest.mark.slow  # the same without arithmetic, and in any order: tests/gpu/test_lanes_any_order.py
def test_a_router_steps_on_the_device_while_all_go_to_its_default(
    target: CudaDecoder, draft: CudaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another drafter's request, one with a prediction and one that drafts less join and leave: the same tokens."""
    found, launched = [], []
    for on_device in (True, False):
        drafter = RouterDrafter(ModelDrafter(draft), {"ngram": NgramDrafter()})
        engine = stepped(target, drafter, FixedLength(2), on_device=on_device)
        if on_device:
            launch = device_of(engine)._stepper.launch

            def counted(*args: Any, launch: Launch = launch, engine: Engine = engine) -> None:
                launched.append([s.id for s in engine.scheduler.running])
                launch(*args)

            monkeypatch.setattr(device_of(engine)._stepper, "launch", counted)
        main = request(0, [5, 6, 7], SamplingParams(temperature=1.0, seed=3, max_tokens=10))
        engine.add(main)
        others = []
        for i, speculation in enumerate(
            [Speculation(drafter="ngram"), Speculation(prediction=(1, 2, 3)), Speculation(max_nodes=0)], start=1
        ):
            if not main.finish_reason:
                engine.step()
            other = request(i, [9, 9], SamplingParams(temperature=0, max_tokens=2))
            other.speculation = speculation
            others.append(other)
            engine.add(other)
            while not other.finish_reason:
                engine.step()
        while not main.finish_reason:
            engine.step()
        found.append([s.tokens for s in (main, *others)])
    assert found[0] == found[1]
    assert [0] in launched
    assert [0, 2] in launched, "a prediction is offered there"
    assert {tuple(ids) for ids in launched} <= {(0,), (2,), (0, 2), (3,)}, "only the default's own, and those alike"


def test_copied_slots_hold_the_same_bits(target: CudaDecoder) -> None:
    """A copy of an open slot and of a closed one, and a slot opened again."""
    slot = target.open()
    target.forward([Rows.chain(slot, [5, 6, 7, 8, 9], logits=())])
    target.commit(slot, range(5))
    expected = target.forward([Rows.chain(slot, [3])])
    target.rollback(slot, 5)
    copied = target.fork(slot, 5)
    target.forward([Rows.chain(slot, [1, 2], logits=())])
    target.commit(slot, range(2))
    assert torch.equal(target.forward([Rows.chain(copied, [3])]), expected)
    target.close(copied)
    target.reopen(copied, 5)
    assert torch.equal(target.forward([Rows.chain(copied, [3])]), expected)
    target.close(slot)
    target.close(copied)


@pytest.mark.slow  # the same without arithmetic, and in any order: tests/gpu/test_lanes_any_order.py
def test_lanes_that_lost_their_slots_begin_again(
    target: CudaDecoder, draft: CudaDecoder, plain: list[list[int]]
) -> None:
    """Sent back while a step is under way: what that gives is dropped, and all go on with the same tokens."""
    engine = Engine(target, ModelDrafter(draft), FixedLength(2))
    requests = [request(i, prompt, params) for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))]
    del requests[1]  # the interpreter is slow
    for one in requests:
        engine.add(one)
    engine.step()
    assert device_of(engine)._under_way
    for one in requests:
        engine.remove(one)
        engine.add(one)
    while not engine.idle:
        engine.step()
    assert [s.tokens[s.prompt_length :] for s in requests] == [plain[0], plain[2]]
    assert engine.leaks() == []


@pytest.mark.parametrize("controller", [FixedLength(3), AutoLength(nodes=4)], ids=["fixed", "auto"])
def test_a_drafter_on_the_host(target: CudaDecoder, plain: list[list[int]], controller: Controller) -> None:
    """Drafts are verified through the host, steps without one on the device; several in a row when it pauses."""
    assert run(target, NgramDrafter(), controller, on_device=True, late=True) == plain
