"""The drafting head on a GPU: its numbers are PyTorch's, and steps on the device draft what the host would.

Run by Triton's interpreter where there is no GPU, so with tiny models: so few tokens that chance alone makes a random
head right now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import device_requests
import pytest
import torch

pytest.importorskip("triton")

from device_requests import device_of, stepped
from tiny_gpu import CONTEXT, DEVICE, DTYPE
from tiny_gpu_head import TARGET, VOCAB, loud_head, target_tensors

from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.synthetic_engine import synthetic_engine
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import ROOT
from outrider.core.drafter import Drafter
from outrider.core.model import Rows
from outrider.drafters import head as head_module
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.none import NoDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.head import CudaHead
from outrider.models.head.load import place_head
from outrider.models.head.weights import HeadWeights
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.params import SamplingParams

MORE = 6 if DEVICE.type == "cuda" else 1
"""Texts are so many times longer where that takes no time."""


@pytest.fixture(scope="module")
def target() -> CudaDecoder:
    return CudaDecoder.load(TARGET, target_tensors(), DTYPE, DEVICE, max_batch=3, max_context=CONTEXT)


@pytest.fixture(scope="module")
def head(target: CudaDecoder) -> CudaHead:
    placed = place_head(loud_head(), target)
    assert isinstance(placed, CudaHead)
    return placed


def close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.shape == reference.shape
    assert (ours.float() - reference.float()).abs().max() < 0.02 * reference.abs().max()


def test_features_are_those_of_the_pytorch_decoder_and_change_no_bit() -> None:
    reference = TorchDecoder.load(
        TARGET, target_tensors(), torch.float32, DEVICE, max_batch=2, max_context=CONTEXT, bitwise=False
    )
    ours, untapped = (
        CudaDecoder.load(TARGET, target_tensors(), DTYPE, DEVICE, max_batch=2, max_context=CONTEXT) for _ in range(2)
    )
    logits = []
    for model in (reference, ours, untapped):
        slot = model.open()
        if model is not untapped:
            model.keep_hidden_layers((0, 1))
        logits.append(model.forward([Rows(slot, [3, 1, 4, 1, 5], [ROOT, 0, 1, 1, 3])]))
    close(ours.features, reference.features)
    assert torch.equal(logits[1], logits[2])
    ours.keep_hidden_layers((1,))
    ours.forward([Rows.chain(ours.open(), [3, 1])])
    close(ours.features, reference.features[:2, -64:])


@pytest.mark.parametrize(("layers", "normed"), [(1, False), (2, True)])
def test_a_head_computes_what_the_pytorch_head_computes(layers: int, normed: bool) -> None:
    """Fused features of two requests, then a tree on its own states, and rows that a commit moved."""
    checkpoint = loud_head(layers, norm_before_residual=normed)
    reference = TorchDecoder.load(
        TARGET, target_tensors(), torch.float32, DEVICE, max_batch=2, max_context=CONTEXT, bitwise=False
    )
    ours = CudaDecoder.load(TARGET, target_tensors(), DTYPE, DEVICE, max_batch=2, max_context=CONTEXT)
    features = torch.randn(7, 2 * 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = []
    for model in (reference, ours):
        head = place_head(checkpoint, model)
        slots = head.open(), head.open()
        first = head.forward([Rows.chain(slots[0], [1, 2, 3, 4]), Rows.chain(slots[1], [5, 6, 7])], features=features)
        for slot, rows in zip(slots, (4, 3), strict=True):
            head.commit(slot, range(rows))
        start = first.states[[3, 3, 6]]
        own = head.forward([Rows(slots[0], [8, 9], [ROOT, ROOT], logits=[1]), Rows.chain(slots[1], [10])], states=start)
        head.commit(slots[0], [1])
        last = head.forward([Rows.chain(slots[0], [11])], states=own.states[1:2])
        found.append([first.logits, first.states, own.logits, own.states, last.logits, last.states])
    for there, here in zip(*found, strict=True):
        close(here, there)


def request(number: int, prompt: Sequence[int], params: SamplingParams) -> Request:
    return device_requests.made(number, prompt, params, VOCAB)


PROMPTS = [[5, 6, 7], [3, 9], [10, 2, 10, 2]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=4 * MORE),
    SamplingParams(temperature=0.9, seed=7, max_tokens=6 * MORE),
    SamplingParams(temperature=0, max_tokens=5 * MORE),
]


def run(
    target: CudaDecoder,
    drafter: Drafter,
    controller: Controller,
    *,
    on_device: bool,
    late: bool = False,
    lanes: int = 3,
) -> list[Request]:
    engine = stepped(target, drafter, controller, on_device=on_device)
    requests = [request(i, prompt, params) for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))][
        :lanes
    ]
    for one in requests[: 2 if late else 3]:
        engine.add(one)
    for step in count():
        if late and step == 2:
            engine.add(requests[2])
        if all(s.finish_reason for s in requests):
            break
        engine.step()
    return requests


def tokens(requests: list[Request]) -> list[list[int]]:
    return [s.tokens[s.prompt_length :] for s in requests]


def drafted(requests: list[Request]) -> list[list[tuple[int, ...]]]:
    """What was drafted in each step."""
    return [[tuple(step.draft.tokens) for step in s.trace] for s in requests]


def alike(here: list[list[tuple[int, ...]]], there: list[list[tuple[int, ...]]]) -> bool:
    """The same drafts step by step; near its end a request may be given shorter ones by either side."""
    return [len(steps) for steps in here] == [len(steps) for steps in there] and all(
        one[: len(other)] == other[: len(one)]
        for steps, others in zip(here, there, strict=True)
        for one, other in zip(steps, others, strict=True)
    )


@pytest.fixture(scope="module")
def plain(target: CudaDecoder) -> list[list[int]]:
    return tokens(run(target, NoDrafter(), FixedLength(0), on_device=False))


@pytest.mark.parametrize("length", [1, 3] if DEVICE.type == "cuda" else [2])  # by the interpreter: slow
def test_steps_on_the_device_draft_what_the_host_drafts(
    target: CudaDecoder, head: CudaHead, plain: list[list[int]], length: int
) -> None:
    """Late comers make the device hand requests back and take them again, in the middle of their text."""
    drafter = HeadDrafter(head, VOCAB)
    assert drafter.chains
    here = run(target, drafter, FixedLength(length, tree=False), on_device=False)
    there = run(target, drafter, FixedLength(length, tree=False), on_device=True, late=True)
    assert tokens(here) == tokens(there) == plain
    assert alike(drafted(here), drafted(there))
    for side in (here, there):
        assert 0 < sum(s.accepted for s in side) < sum(s.drafted for s in side), "no test"


def test_the_host_may_step_in_and_noise_is_renewed(
    target: CudaDecoder, head: CudaHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short horizon; a second request of one token, whose logprobs only the host computes."""
    found = []
    for on_device in (True, False):
        engine = stepped(target, HeadDrafter(head, VOCAB), FixedLength(2, tree=False), on_device=on_device)
        if on_device:
            monkeypatch.setattr(device_of(engine)._stepper, "horizon", 4)
            monkeypatch.setattr(device_of(engine)._stepper, "limit", lambda lanes: 2)
        one = request(0, [5, 6, 7], SamplingParams(temperature=1.0, seed=5, max_tokens=7 * MORE))
        two = request(1, [9], SamplingParams(temperature=0, max_tokens=3, logprobs=1, verify="rejection"))
        engine.add(one)
        engine.step()
        engine.add(two)
        while not (one.finish_reason and two.finish_reason):
            engine.step()
        assert len(two.logprobs) == 3
        assert 0 < one.accepted < one.drafted, "no test"
        found.append((one.tokens, two.tokens, drafted([one, two])))
    assert found[0][:2] == found[1][:2]
    assert alike(found[0][2], found[1][2])


@pytest.mark.slow
def test_the_device_goes_on_after_a_gap(target: CudaDecoder, head: CudaHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """For some tokens nothing is drafted, on the host; then steps on the device draft what the host would."""
    monkeypatch.setattr(head_module, "WAITING", 2)
    found = []
    for on_device in (True, False):
        controller = FixedLength(2, tree=False)
        engine = stepped(target, HeadDrafter(head, VOCAB), controller, on_device=on_device)
        if on_device:
            stepper = device_of(engine)._stepper
            limit = stepper.limit
            monkeypatch.setattr(stepper, "limit", lambda lanes: -1)  # the host's turn
        one, two = (request(i, PROMPTS[i], SamplingParams(temperature=0, max_tokens=12)) for i in range(2))
        engine.add(one)
        controller.nodes = 0
        while one.generated < 5:
            engine.step()
        controller.nodes = 2
        if on_device:
            monkeypatch.setattr(stepper, "limit", limit)
        engine.step()
        engine.add(two)  # the device hands the first back and takes it again
        while not (one.finish_reason and two.finish_reason):
            engine.step()
        assert engine.leaks() == []
        found.append((one.tokens, two.tokens, drafted([one, two])))
        assert 0 < one.accepted < one.drafted, "no test"
    assert found[0][:2] == found[1][:2]
    assert alike(found[0][2], found[1][2])


def test_lengths_may_change_and_a_prompt_may_be_one_token(target: CudaDecoder, head: CudaHead) -> None:
    found = []
    for drafter, controller in ((NoDrafter(), FixedLength(0)), (HeadDrafter(head, VOCAB), AutoLength(nodes=3))):
        engine = Engine(target, drafter, controller)
        one = request(0, [9], SamplingParams(temperature=0, max_tokens=10))
        engine.add(one)
        while not one.finish_reason:
            engine.step()
        found.append(one.tokens)
    assert found[0] == found[1]


def test_trees_through_the_host(target: CudaDecoder, head: CudaHead, plain: list[list[int]]) -> None:
    drafter = HeadDrafter(head, VOCAB, HeadDrafterConfig(branching=2))
    assert tokens(run(target, drafter, FixedLength(4), on_device=False, lanes=1)) == plain[:1]


def test_padding_ids_are_never_drafted(target: CudaDecoder) -> None:
    """A head grown with its target has columns for tokens beyond the ones that may be chosen."""
    wide = loud_head(padding=5)
    target.keep_hidden_layers(wide.config.aux_hidden_layers)
    padded = target.head(wide.config, HeadWeights.of(wide.config, wide.tensors, DEVICE, DTYPE))
    found = [
        drafted(run(target, HeadDrafter(padded, VOCAB), FixedLength(2, tree=False), on_device=on_device, lanes=1))
        for on_device in (True, False)
    ]
    assert {token for steps in found[0] for step in steps for token in step} <= {1, 2, 4, 5, 8, 9, 11}
    assert alike(*found)


def test_synthetic_acceptance_with_a_head(target: CudaDecoder, head: CudaHead) -> None:
    engine = synthetic_engine(target, HeadDrafter(head, VOCAB), SyntheticAcceptance(3, 2.5))
    assert isinstance(engine.executor, DeviceExecutor)
    one = request(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=8))
    engine.add(one)
    while not one.finish_reason:
        engine.step()
    assert {len(step.path) for step in one.trace[:-1]} <= {1, 2}
    assert one.steps in (3, 4)
