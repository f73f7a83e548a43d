"""Trees and chains that a head drafts whole are, to the bit, those that are grown level by level."""

from __future__ import annotations

import math
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
from outrider.core.model import DraftHead, Rows, WantedTree
from outrider.core.request import RequestView
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.head.weights import HeadWeights
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead, PackedHead
from outrider.models.native.library import kernels_here
from outrider.models.precision import BF16, FP32, INT8, Precision
from outrider.sampling.history import History

VOCAB = 97
IDS = torch.tensor([token for token in range(VOCAB) if token % 9])
FEW = torch.tensor([3, 17, 40, 41, 90])
"""A draft vocabulary smaller than a node may have children."""


class Both(Drafter):
    """Two drafters that see the same, one whose head drafts whole trees and one whose head does not; what they draft
    must be equal. Budgets are random: chains and trees of all sizes, and some that end by themselves."""

    name = "head"
    reads_features = True

    def __init__(self, whole: HeadDrafter, by_level: HeadDrafter) -> None:
        self._both = whole, by_level
        self.heads = whole.head, by_level.head
        self._chance = random.Random(0)
        self.drafts = self.tokens = self.ended = self.branches = self.deep = self.ties = 0

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
        self.drafts += 1
        drafts, expected = (drafter.propose(requests, budgets) for drafter in self._both)
        for draft, other, budget in zip(drafts, expected, budgets, strict=True):
            assert list(draft.tokens) == list(other.tokens)
            assert list(draft.parents) == list(other.parents)
            assert list(draft.confidence) == list(other.confidence)
            assert draft.source == other.source
            self.tokens += len(draft)
            self.ended += len(draft) < min(budget.nodes, budget.depth)
            self.branches += sum(parent < node - 1 for node, parent in enumerate(draft.parents))
            self.deep += any(len(draft.path(node)) > 3 for node in range(len(draft)))
            self.ties += len(draft) - len(set(draft.confidence))
        return drafts

    def _some(self, budget: Budget) -> Budget:
        if not budget.nodes:
            return budget
        pick, upto = self._chance.choice, self._chance.randint
        nodes = upto(1, budget.nodes)
        return Budget(
            nodes,
            upto(1, budget.nodes),
            pick([0.0, 0.0, 0.0, 0.02, 0.1, 0.4]),
            tree=pick([budget.tree, budget.tree, False]),
            expand_node=pick([0.0, 0.0, 0.0, 0.03, 0.2]),
            expand_level=pick([0.0, 0.0, 0.0, 0.3, 0.7]),
        )


def target_of(precision: Precision, kernels: str | None = None, threads: int = 1) -> tuple[NativeDecoder, Any]:
    model = reference("llama")
    target = decoder_of(model, "native", precision, kernels, threads=threads)
    assert isinstance(target, NativeDecoder)
    return target, model


def head_of(target: NativeDecoder, model: Any, ids: Tensor) -> HeadCheckpoint:
    """One that is surer than its target, so that drafts are deep as well as wide."""
    checkpoint = sensible_head(model.state_dict(), target.architecture, ids)
    sharp = {**checkpoint.tensors, "norm.weight": 3 * checkpoint.tensors["norm.weight"]}
    return HeadCheckpoint(checkpoint.config, sharp, {})


def drafters(
    target: NativeDecoder, checkpoint: HeadCheckpoint, branching: int | None = None, exact: bool = False
) -> Both:
    """`exact`: heads in fp32."""
    heads: list[DraftHead] = []
    for whole in (True, False):
        if exact:
            weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, target.device, torch.float32)
            heads.append(NativeHead(checkpoint.config, PackedHead.of(weights), target))
        else:
            heads.append(place_head(checkpoint, target))
        assert heads[-1].drafts_trees
        heads[-1].drafts_trees = whole
    return Both(*(HeadDrafter(head, VOCAB, HeadDrafterConfig(branching)) for head in heads))


def told(target: NativeDecoder, drafter: Drafter, nodes: int, temperatures: Sequence[float]) -> list[list[int]]:
    """What requests of such temperatures are answered, all at once: with prompts of many lengths, and almost to the end
    of the context."""
    engine, requests = Engine(target, drafter, FixedLength(nodes)), []
    for number, temperature in enumerate(temperatures):
        prompt = [(7 * number + 3 * i) % VOCAB for i in range(1 + 5 * number)]
        params = SamplingParams(temperature=temperature, seed=3).resolve({}, (), VOCAB, choice=number)
        stream = TextStream(lambda token: b"", (), False)
        requests.append(Request(number, prompt, len(prompt), params, 118 - len(prompt), stream, History(prompt)))
        engine.add(requests[-1])
    while not engine.scheduler.idle:
        engine.step()
    return [list(request.tokens) for request in requests]


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize(
    ("branching", "temperatures"),
    [(1, (0.0,)), (1, (0.0, 0.6, 1.0)), (3, (0.0,)), (None, (0.8,)), (None, (0.0, 0.6, 1.0))],
)
def test_whole_drafts_are_those_of_levels(kernels: str, branching: int | None, temperatures: Sequence[float]) -> None:
    """Greedy and sampled, alone and together; the text is the one without drafts."""
    target, model = target_of(BF16, kernels, threads=2 if len(temperatures) > 1 else 1)
    both = drafters(target, head_of(target, model, IDS), branching)
    texts = told(target, both, 24, temperatures)
    assert texts == told(target, NoDrafter(), 0, temperatures)
    assert both.tokens > 150 * len(temperatures)
    assert both.ended > 10, "no draft has ended by itself: the comparison means little"
    assert both.deep > 4
    assert both.branches > 100 if branching != 1 else both.branches == 0


@pytest.mark.parametrize("precision", [BF16, INT8, FP32], ids=["bf16", "int8", "fp32"])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.8, 0.5)], ids=["greedy", "sampled"])
def test_in_every_precision(precision: Precision, temperatures: Sequence[float]) -> None:
    """A head in int8 beside such a target; in fp32 beside the last."""
    target, model = target_of(precision)
    checkpoint = head_of(target, model, IDS)
    both = drafters(target, checkpoint, exact=precision is FP32)
    assert told(target, both, 32, temperatures) == told(target, NoDrafter(), 0, temperatures)
    assert both.branches > 100


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_promises_as_much_stands_as_it_came(temperature: float) -> None:
    """A head that cannot tell tokens apart, four at a time: equals are everywhere."""
    target, model = target_of(BF16)
    checkpoint = head_of(target, model, IDS[:84])
    rows = checkpoint.tensors["lm_head.weight"]
    alike = {**checkpoint.tensors, "lm_head.weight": rows[::4].repeat_interleave(4, 0)}
    both = drafters(target, HeadCheckpoint(checkpoint.config, alike, {}))
    told(target, both, 24, [temperature] * 3)
    assert both.ties > 20


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_vocabularies_of_fewer_tokens_than_children(temperature: float) -> None:
    target, model = target_of(BF16)
    both = drafters(target, head_of(target, model, FEW))
    told(target, both, 24, [temperature] * 2)
    assert both.branches > 100


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ids", [IDS, FEW[:2]], ids=["many", "two"])
def test_scores_that_are_not_numbers_end_drafts(ids: Tensor, bad: float) -> None:
    """In both ways alike, and nothing else comes of it. Only drafts that can be verified are made."""
    target, model = target_of(FP32)
    checkpoint = head_of(target, model, ids)
    rows = checkpoint.tensors["lm_head.weight"].clone()
    rows[1, 3] = bad
    spoiled = HeadCheckpoint(checkpoint.config, {**checkpoint.tensors, "lm_head.weight": rows}, {})
    both = drafters(target, spoiled, exact=True)
    temperatures = (0.0, 1.0, 1e6)
    assert told(target, both, 8, temperatures) == told(target, NoDrafter(), 0, temperatures)


def test_more_nodes_than_a_pass_takes_are_grown_level_by_level() -> None:
    """Where their levels might not fit."""
    target, model = target_of(BF16)
    both = drafters(target, head_of(target, model, IDS))
    asked: list[int] = []
    for head in both.heads:
        head.chunk = 20  # two trees
    head = both.heads[0]
    draft = head.draft

    def counted(batch: Sequence[Rows], wanted: Sequence[WantedTree], *, features: Tensor) -> Any:
        asked.append(sum(tree.width for tree in wanted))
        return draft(batch, wanted, features=features)

    head.draft = counted  # type: ignore[method-assign]
    told(target, both, 12, [0.0, 0.7, 0.0])
    assert 16 <= max(asked) <= 20
    assert len(asked) < both.drafts, "three trees were never wanted"


@pytest.mark.parametrize("branching", [1, None])
def test_whole_trees_are_drafted_where_they_can_be(branching: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison above means nothing."""
    target, model = target_of(BF16)
    head = place_head(head_of(target, model, IDS), target)
    drafter = HeadDrafter(head, VOCAB, HeadDrafterConfig(branching))
    monkeypatch.setattr(head, "rank", None)  # nobody asks for a level
    engine = Engine(target, drafter, FixedLength(4))
    params = SamplingParams(temperature=0.8, seed=3).resolve({}, (), VOCAB)
    request = Request(0, [1, 2, 3], 3, params, 30, TextStream(lambda token: b"", (), False), History([1, 2, 3]))
    engine.add(request)
    while not engine.scheduler.idle:
        engine.step()
    assert request.drafted > 30
