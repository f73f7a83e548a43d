"""Lanes on the device: what chains have missed when the batch grows, or when the host takes over."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tiny_gpu import DRAFT, TARGET, gpu_decoder, request

from outrider.control.controller import FixedLength
from outrider.core.model import Rows
from outrider.core.step import Manner, StepShape
from outrider.drafters.model import ModelDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.models.cuda.chains import HeadChains
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.lanes import Lanes
from outrider.models.cuda.network import NARROW_ROWS
from outrider.sampling.params import SamplingParams


class Noted:
    """Graphs that run nothing."""

    def __init__(self) -> None:
        self.keys: list[tuple[Any, ...]] = []

    def run(self, key: tuple[Any, ...], launches: Callable[[], None]) -> None:
        self.keys.append(key)


def head_chains() -> HeadChains:
    network = SimpleNamespace(inbox=torch.zeros(NARROW_ROWS, 4), max_rows=NARROW_ROWS)
    head: Any = SimpleNamespace(network=network, ids=torch.arange(8), device=torch.device("cpu"), dtype=torch.float32)
    return HeadChains(head, Lanes(64, 64, 64, 128, 8, torch.device("cpu")), 8)


@pytest.mark.parametrize(
    ("before", "lengths", "after"), [(16, [0] * 31, 32), (8, [0] * 20, 32), (1, [8], 64), (2, [31], 32)]
)
def test_what_waits_for_a_head_fits_its_pass_when_the_batch_grows(before: int, lengths: list[int], after: int) -> None:
    """A pass has room for NARROW_ROWS rows: more are written beyond the tables, the index and every buffer."""
    chains, graphs = head_chains(), Noted()
    noted: Any = graphs
    for length in lengths:
        chains.draft(noted, before, StepShape(length, length), Manner.GREEDY, False)
    chains.draft(noted, after, StepShape(1, 1), Manner.GREEDY, False)
    rows = [key[1] * key[2] for key in graphs.keys if key[0] == "absorb"]
    assert max(rows) <= NARROW_ROWS


def whole_drafts(model: CudaDecoder, tokens: list[int], count: int) -> list[int]:
    """What a draft model that has run everything says next, greedily."""
    slot = model.open()
    said: list[int] = []
    for piece in ([*tokens], *[None] * (count - 1)):
        rows = piece if piece is not None else said[-1:]
        logits = model.forward([Rows.chain(slot, rows, logits=[len(rows) - 1])])
        model.commit(slot, range(len(rows)))
        said.append(int(logits[-1].argmax()))
    model.close(slot)
    return said


@pytest.fixture(scope="module")
def target() -> CudaDecoder:
    return gpu_decoder(TARGET)


@pytest.fixture(scope="module")
def draft() -> CudaDecoder:
    return gpu_decoder(DRAFT)


def right_drafts(draft: CudaDecoder, one: Any) -> tuple[int, int]:
    """How many drafts are what the draft model says after all of the text, of how many."""
    at, right, made = one.prompt_length, 0, 0
    for step in one.trace:
        drafted = list(step.draft.tokens)
        if drafted:
            made += 1
            right += drafted[:1] == whole_drafts(draft, one.tokens[:at], 1)
        at += len(step.path) + (step.token is not None)
    return right, made


def test_a_draft_model_has_run_what_plain_steps_on_the_device_added(target: CudaDecoder, draft: CudaDecoder) -> None:
    """Plain steps on the device, then the host drafts: the draft model has not run the tokens of those steps."""
    draft.network.cache.pool.zero_()  # or what another test has left there may be right by chance
    controller = FixedLength(2)
    controller.nodes = 0
    engine = Engine(target, ModelDrafter(draft), controller)
    assert isinstance(engine.executor, DeviceExecutor)
    one = request(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=14))
    one.keep_trace = True
    engine.add(one)
    while one.generated < 8:
        engine.step()
    controller.nodes = 2
    two = request(1, [9, 9], SamplingParams(temperature=0, max_tokens=2, verify="rejection"))  # the host's alone
    engine.add(two)
    while not one.finish_reason:
        engine.step()
    right, made = right_drafts(draft, one)
    assert made
    assert right == made


@pytest.mark.slow
def test_a_draft_model_catches_up_though_the_batch_grows(
    target: CudaDecoder, draft: CudaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane may miss more tokens than a pass of more lanes can catch up with."""
    draft.network.cache.pool.zero_()  # or what another test has left there may be right by chance
    monkeypatch.setattr(draft.network, "max_rows", 8)  # 8 tokens of one lane, 4 of each of two
    controller = FixedLength(2)
    controller.nodes = 0
    engine = Engine(target, ModelDrafter(draft), controller)
    one = request(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=16))
    one.keep_trace = True
    engine.add(one)
    while one.generated < 6:
        engine.step()
    two = request(1, [9, 9], SamplingParams(temperature=0, max_tokens=8))
    engine.add(two)
    controller.nodes = 1
    while not one.finish_reason:
        engine.step()
    right, made = right_drafts(draft, one)
    assert made
    assert right == made
