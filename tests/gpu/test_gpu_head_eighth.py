"""A drafting head in 8 bits on a GPU, for passes of few rows: by Triton's interpreter where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from device_requests import made, stepped
from tiny_gpu import CONTEXT, DEVICE, DTYPE
from tiny_gpu_head import TARGET as NARROWER
from tiny_gpu_head import VOCAB, loud_head, target_tensors

from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT
from outrider.core.drafter import Drafter
from outrider.core.model import DraftHead, HeadOutput, Rows
from outrider.drafters.head import HeadDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.request import Request
from outrider.models.cuda import backend, head_network
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.head import CudaHead
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.precision import dequantised, quantise_channels
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.params import SamplingParams

TARGET = replace(NARROWER, heads=4, mlp=64)
"""Widths of 8-bit weights are multiples of 64."""


def decoder() -> CudaDecoder:
    return CudaDecoder.load(TARGET, target_tensors(TARGET), DTYPE, DEVICE, max_batch=3, max_context=CONTEXT)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> CudaDecoder:
    """Beside it heads of any size are rounded."""
    monkeypatch.setattr(backend, "WORTH_ROUNDING", 0)
    return decoder()


def rounded(checkpoint: HeadCheckpoint) -> HeadCheckpoint:
    def of(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return tensor
        dtype = torch.int8 if name == "lm_head.weight" else torch.float8_e4m3fn
        values, scales = torch.empty(tensor.shape, dtype=dtype), torch.empty(len(tensor))
        quantise_channels(tensor, values, scales)
        return dequantised(values, scales)

    return replace(checkpoint, tensors={name: of(name, tensor) for name, tensor in checkpoint.tensors.items()})


def passes(head: DraftHead) -> list[HeadOutput]:
    """A prompt's features, then a tree on its own states."""
    features = torch.randn(4, 2 * 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    slot = head.open()
    first = head.forward([Rows.chain(slot, [1, 2, 3, 4])], features=features)
    head.commit(slot, range(4))
    own = head.forward([Rows(slot, [8, 9], [ROOT, ROOT])], states=first.states[[3, 3]])
    head.close(slot)
    return [first, own]


def distance(here: HeadOutput, there: HeadOutput) -> float:
    """Of logits and states, in units of the largest."""
    pairs = ((here.logits, there.logits), (here.states, there.states))
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in pairs)


def test_few_rows_are_multiplied_with_rounded_weights(target: CudaDecoder) -> None:
    reference = TorchDecoder.load(
        TARGET, target_tensors(TARGET), torch.float32, DEVICE, max_batch=2, max_context=CONTEXT, bitwise=False
    )
    checkpoint = loud_head(target=TARGET)
    ours = passes(place_head(checkpoint, target))
    of_rounded, of_whole = (passes(place_head(of, reference)) for of in (rounded(checkpoint), checkpoint))
    for here, there, whole in zip(ours, of_rounded, of_whole, strict=True):
        assert distance(here, there) < 0.8 * distance(here, whole)


def test_more_rows_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = loud_head(target=TARGET)
    whole = passes(place_head(checkpoint, decoder()))
    monkeypatch.setattr(backend, "WORTH_ROUNDING", 0)
    monkeypatch.setattr(head_network, "FEW_ROWS", 3)
    four, two = passes(place_head(checkpoint, decoder()))
    assert torch.equal(four.logits, whole[0].logits)
    assert not torch.equal(two.logits, whole[1].logits)


def test_a_small_head_stays_as_it_is() -> None:
    head = place_head(loud_head(target=TARGET), decoder())
    assert isinstance(head, CudaHead)
    assert head.network._sizes() == {DTYPE.itemsize}


def run(target: CudaDecoder, drafter: Drafter, *, on_device: bool) -> list[Request]:
    engine = stepped(target, drafter, FixedLength(3, tree=False), on_device=on_device)
    params = [SamplingParams(temperature=0, max_tokens=8), SamplingParams(temperature=0.9, seed=7, max_tokens=8)]
    requests = [made(i, [5 + i, 6, 7], one, VOCAB) for i, one in enumerate(params)]
    for one in requests:
        engine.add(one)
    while not all(one.finish_reason for one in requests):
        engine.step()
    return requests


def test_steps_on_the_device_say_what_plain_ones_say(target: CudaDecoder) -> None:
    plain = run(target, NoDrafter(), on_device=False)
    drafter = HeadDrafter(place_head(loud_head(target=TARGET), target), VOCAB)
    drafts = []
    for on_device in (True, False):
        found = run(target, drafter, on_device=on_device)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert 0 < sum(one.accepted for one in found) < sum(one.drafted for one in found), "no test"
        drafts.append([tuple(step.draft.tokens) for step in found[0].trace])
    here, there = drafts  # near the end, and before the first token, the host drafts less
    assert [one[: len(other)] for one, other in zip(here, there, strict=True)] == there
