"""Chains that a head drafts whole are, to the bit, those that are grown level by level."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_head import sensible_head
from tiny_models import decoder_of, reference
from torch import Tensor

from outrider import SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import Rows
from outrider.core.request import RequestView
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.head.load import place_head
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.models.native.library import kernels_here
from outrider.models.precision import BF16
from outrider.sampling.history import History

VOCAB = 97
IDS = torch.tensor([token for token in range(VOCAB) if token % 9])


class Both(Drafter):
    """Two drafters that see the same, one whose head drafts whole chains and one whose head does not; what they draft
    must be equal. Budgets are random: chains of all lengths, and some that end by themselves."""

    name = "head"
    reads_features = True

    def __init__(self, whole: HeadDrafter, by_level: HeadDrafter) -> None:
        self._both = whole, by_level
        self._chance = random.Random(0)
        self.tokens = self.ended = 0

    def open(self, request: RequestView) -> None:
        for drafter in self._both:
            drafter.open(request)

    def close(self, request: RequestView) -> None:
        for drafter in self._both:
            drafter.close(request)

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        for drafter in self._both:
            drafter.read(requests, batch, features, soon)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        for drafter in self._both:
            drafter.observe(verified)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        budgets = [self._some(budget) for budget in budgets]
        drafts, expected = (drafter.propose(requests, budgets) for drafter in self._both)
        for draft, other, budget in zip(drafts, expected, budgets, strict=True):
            assert list(draft.tokens) == list(other.tokens)
            assert list(draft.parents) == list(other.parents)
            assert list(draft.confidence) == list(other.confidence)
            assert draft.source == other.source
            self.tokens += len(draft)
            self.ended += len(draft) < min(budget.nodes, budget.depth)
        return drafts

    def _some(self, budget: Budget) -> Budget:
        if not budget.nodes:
            return budget
        nodes = self._chance.randint(1, budget.nodes)
        depth, floor = self._chance.randint(1, budget.nodes), self._chance.choice([0.0, 0.0, 0.1, 0.4])
        expand_level = self._chance.choice([0.0, 0.3, 0.7])
        return Budget(nodes, depth, floor, tree=False, expand_level=expand_level)


def drafters(target: NativeDecoder, model: Any, branching: int | None) -> Both:
    checkpoint = sensible_head(model.state_dict(), target.architecture, IDS)
    heads = [place_head(checkpoint, target) for _ in range(2)]
    for head, whole in zip(heads, (True, False), strict=True):
        assert isinstance(head, NativeHead)
        assert head.drafts_chains
        head.drafts_chains = whole
    return Both(*(HeadDrafter(head, VOCAB, HeadDrafterConfig(branching)) for head in heads))


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("temperatures", [(0.0,), (0.8,), (0.0, 0.6, 1.0)], ids=str)
def test_whole_chains_are_those_of_levels(kernels: str, temperatures: Sequence[float]) -> None:
    """Greedy and sampled, alone and together, through prompts of many lengths; with room for branches, too."""
    model = reference("llama")
    target = decoder_of(model, "native", BF16, kernels, threads=2)
    assert isinstance(target, NativeDecoder)
    both = drafters(target, model, 1 if len(temperatures) > 1 else None)
    engine = Engine(target, both, FixedLength(6))
    for number, temperature in enumerate(temperatures):
        prompt = [(7 * number + 3 * i) % VOCAB for i in range(1 + 5 * number)]
        params = SamplingParams(temperature=temperature, seed=3).resolve({}, (), VOCAB, choice=number)
        stream = TextStream(lambda token: b"", (), False)
        engine.add(Request(number, prompt, len(prompt), params, 60, stream, History(prompt)))
    while not engine.scheduler.idle:
        engine.step()
    assert both.tokens > 40 * len(temperatures)
    assert both.ended > 5, "no chain has ended by its floor: the comparison means little"


def test_whole_chains_are_drafted_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison above means nothing."""
    model = reference("llama")
    target = decoder_of(model, "native", BF16, threads=1)
    assert isinstance(target, NativeDecoder)
    head = place_head(sensible_head(model.state_dict(), target.architecture, IDS), target)
    drafter = HeadDrafter(head, VOCAB, HeadDrafterConfig(1))
    monkeypatch.setattr(head, "rank", None)  # nobody asks for a level
    engine = Engine(target, drafter, FixedLength(4))
    params = SamplingParams(temperature=0.8, seed=3).resolve({}, (), VOCAB)
    request = Request(0, [1, 2, 3], 3, params, 30, TextStream(lambda token: b"", (), False), History([1, 2, 3]))
    engine.add(request)
    while not engine.scheduler.idle:
        engine.step()
    assert request.drafted > 30
