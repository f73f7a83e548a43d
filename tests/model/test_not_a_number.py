"""A request whose rows in the cache are not numbers ends alone, and whoever has its slot next sees nothing of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_engine import VOCAB, alone, drafter_for, finish, request, text
from tiny_head import sensible_head
from tiny_models import decoder_of, reference

from outrider.control.auto import AutoLength
from outrider.control.controller import FixedLength
from outrider.core.model import LanguageModel
from outrider.core.request import VerifyRule
from outrider.drafters.head import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.errors import NotANumber
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.stack import LANES
from outrider.models.torch_decoder import TorchDecoder


def spoil(model: LanguageModel, slot: int) -> None:
    """Everything that the slot has room for."""
    if isinstance(model, TorchDecoder):
        model._keys[:, slot] = model._values[:, slot] = math.nan
    else:
        assert isinstance(model, NativeDecoder)
        dim, depth = model.architecture.head_dim, model._depth  # as cache.h has them; padding stays zero
        keys, values = model._cache[:, 0, slot], model._cache[:, 1, slot]
        keys.view(*keys.shape[:2], -1, depth, LANES)[..., :dim, :] = math.nan
        values.view(*values.shape[:2], depth // LANES, -1, LANES)[:, :, : dim // LANES] = math.nan


@pytest.mark.parametrize(
    ("kind", "family", "drafter"),
    [
        ("native", "llama", "none"),
        ("native", "llama", "suffix"),
        ("native", "llama", "head"),
        ("native", "mistral-window", "none"),
        ("native", "mixtral", "suffix"),
        ("torch-bitwise", "llama", "suffix"),
    ],
)
def test_rows_that_are_not_numbers_end_one_request(kind: str, family: str, drafter: str) -> None:
    source = reference(family)
    model: Any = decoder_of(source, kind)
    fresh: Any = decoder_of(source, kind)
    engine = Engine(model, drafter_for(drafter, source, model), FixedLength(0 if drafter == "none" else 3))
    requests = [request(i, text(20 + i, i), temperature) for i, temperature in enumerate((0.0, 1.0, 0.7))]
    bad = requests[1]
    for each in requests:
        engine.add(each)
    while min(each.generated for each in requests) < 3:
        engine.step()
    slot = bad.slot
    spoil(model, slot)
    while not engine.idle:
        engine.step()
    assert isinstance(bad.failure, NotANumber)
    for each in (requests[0], requests[2]):
        assert each.failure is None
        assert each.tokens[each.prompt_length :] == alone(fresh, each)
    later = [request(10 + i, text(length, 50 + i), 1.0) for i, length in enumerate((4, 60, 5, 30))]
    seen: set[int] = set()
    for each in later:
        engine.add(each)
    while not engine.idle:
        engine.step()
        seen |= {each.slot for each in later}
    assert slot in seen, "no test: nobody had the slot"
    for each in later:
        assert each.tokens[each.prompt_length :] == alone(fresh, each)
    assert engine.leaks() == []


@pytest.mark.parametrize("kind", ["native", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["head", "model"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_drafter_s_scores_that_are_not_numbers_end_nobody(kind: str, name: str, bad: float) -> None:
    """It drafts nothing there, by either rule; what the controller learns from are numbers."""
    source = reference("llama")
    model: Any = decoder_of(source, kind)
    drafter: Any
    if name == "model":
        spoiled = reference("qwen3")
        spoiled.lm_head.weight.data[5, 3] = bad
        drafter = ModelDrafter(decoder_of(spoiled, kind), vocab_size=VOCAB)
    else:
        head = sensible_head(source.state_dict(), model.architecture, torch.arange(VOCAB))
        rows = head.tensors["lm_head.weight"].clone()
        rows[5, 3] = bad
        spoiled = HeadCheckpoint(head.config, {**head.tensors, "lm_head.weight": rows}, {})
        drafter = HeadDrafter(place_head(spoiled, model), VOCAB)
    plain = Engine(model, NoDrafter(), FixedLength(0))
    for controller in (FixedLength(4), FixedLength(4, tree=False), AutoLength(4)):
        engine = Engine(model, drafter, controller)
        ways: list[tuple[VerifyRule, float]] = [("coupled", 0.0), ("coupled", 1.0), ("rejection", 0.8)]
        for rule, temperature in ways:
            found, expected = (request(0, text(9, 1), temperature, 6) for _ in range(2))
            for each in (found, expected):
                each.params = replace(each.params, verify=rule)
            finish(engine, found)
            assert found.failure is None
            assert all(0 < claim <= 1 for step in found.trace for claim in step.draft.confidence)
            if rule == "coupled" or not found.drafted:
                finish(plain, expected)
                assert found.tokens == expected.tokens
