"""A draft model on the device whose vocabulary is padded less than the target's (Qwen2.5 0.5B beside 7B)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from device_guards import guard
from device_requests import host_engine, stepped
from simulated import only_interpreted
from tiny_gpu import DRAFT, TARGET, VOCAB, gpu_decoder, request

from outrider.control.controller import FixedLength
from outrider.drafters.model import ModelDrafter
from outrider.engine.engine import Engine
from outrider.sampling.params import SamplingParams

FEWER = VOCAB - 20
pytestmark = only_interpreted


def test_a_draft_model_with_fewer_columns_drafts_its_own_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that the draft model does not have are the next row's: here they would always win."""
    guard(monkeypatch)
    target, draft = gpu_decoder(TARGET), gpu_decoder(replace(DRAFT, vocab_size=FEWER))
    found = []
    for on_device in (True, False):
        drafter = ModelDrafter(draft, vocab_size=VOCAB)
        engine = stepped(target, drafter, FixedLength(2), on_device=on_device)
        draft.network.logits.fill_(1e6)  # of rows that no pass has written
        one = request(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=4))
        one.keep_trace = True
        engine.add(one)
        while not one.finish_reason:
            engine.step()
        found.append((one.tokens, [tuple(step.draft.tokens) for step in one.trace]))
    assert max(token for tokens in found[1][1] for token in tokens) < FEWER
    assert max(token for tokens in found[0][1] for token in tokens) < FEWER
    assert found[0][0] == found[1][0]


def test_a_draft_model_whose_scores_are_not_numbers_is_not_fed_minus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 stands for no choice: as a draft it would be looked up before the beginning of the embedding."""
    guard(monkeypatch)
    target, draft = gpu_decoder(TARGET), gpu_decoder(DRAFT)
    engine = Engine(target, ModelDrafter(draft), FixedLength(2))
    plain = host_engine(target, ModelDrafter(draft), FixedLength(0))
    texts = []
    for one_engine in (plain, engine):
        one = request(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=4))
        one.keep_trace = True
        one_engine.add(one)
        while not one.finish_reason:
            one_engine.step()
        texts.append(one.tokens)
        draft.network._weights.norm.fill_(torch.nan)
    assert texts[0] == texts[1]
    assert all(token >= 0 for step in one.trace for token in step.draft.tokens)
