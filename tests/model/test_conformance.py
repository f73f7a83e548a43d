"""What every drafter in the registry must do, under every rule and over every kind of cache.

A new drafter is picked up from the registry and goes through all of it: it keeps its budget and its lifecycle, leaves
the target's cache as a fresh prefill would, and the text as plain decoding gives it, also where it goes on from what
another request has, or left, in the caches.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_engine import TinyParts
from tiny_models import decoder_of, gpt2, logits_of, reference

from outrider import SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT, Budget, Draft, Speculation
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import LanguageModel, Rows
from outrider.core.request import RequestView
from outrider.drafters.none import NoDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.registry import DRAFTERS, build, build_router
from outrider.drafters.router import RouterDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.head.load import can_read
from outrider.models.hf import HFModel
from outrider.sampling.history import History

VOCAB = 97
PATHS = {"model": "model:tiny", "head": "head:tiny", "head+suffix": "head+suffix:tiny"}
"""What to write after the name for drafters that need it."""
CACHES = ["native", "torch", "torch-bitwise", "hf"]
SLOW = [pytest.mark.slow]


@pytest.fixture(scope="module", params=CACHES)
def target(request: pytest.FixtureRequest) -> tuple[Any, LanguageModel]:
    if request.param == "hf":
        model = gpt2()
        return model, HFModel(model, max_batch=3, max_context=128)
    model = reference("llama")
    return model, decoder_of(model, request.param)


@pytest.fixture(scope="module")
def plain(target: tuple[Any, LanguageModel]) -> Callable[[SamplingParams], list[list[int]]]:
    """What plain decoding gives, where nobody takes over what others have run; decoded once for all drafters."""
    return functools.cache(lambda params: run(target[1], NoDrafter(), params, 0, reuse=False))


@pytest.fixture(params=[*DRAFTERS, "prediction", "router", "router-of-heads"])
def drafter(request: pytest.FixtureRequest, target: tuple[Any, LanguageModel]) -> Checked:
    if "head" in request.param and not can_read(target[1]):
        pytest.skip("this target's states cannot be read")
    drafter: Drafter
    if request.param == "prediction":
        drafter = PredictionDrafter()
    elif request.param.startswith("router"):
        others = ["head:tiny"] if "head" in request.param else ["ngram", "model:tiny"]
        drafter = build_router("head+suffix:tiny" if "head" in request.param else "suffix", others, TinyParts(*target))
    else:
        drafter = build(PATHS.get(request.param, request.param), TinyParts(*target))
    return Checked(drafter)


class Checked(Drafter):
    """A drafter under watch: budgets, tree invariants and the order of calls."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name = inner.name
        self.looks_up, self.reads_features = inner.looks_up, inner.reads_features
        self.followed = 0
        """Requests that it opened where another stands or stood."""
        self.opened: set[int] = set()

    def open(self, request: RequestView) -> None:
        assert request.id not in self.opened
        self.opened.add(request.id)
        self.inner.open(request)

    def reach(self, request: RequestView, source: int, common: int) -> int:
        reach = self.inner.reach(request, source, common)
        assert 0 <= reach <= common
        return reach

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        assert request.id not in self.opened
        assert keep or source not in self.opened
        self.opened.add(request.id)
        self.followed += 1
        self.inner.open_from(request, source, length, keep)

    @property
    def held(self) -> int:
        return self.inner.held

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self.inner.propose(requests, budgets)
        assert len(drafts) == len(requests)
        for draft, budget in zip(drafts, budgets, strict=True):
            self._check(draft, budget)
        return drafts

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self.inner.look_up(requests, budgets)
        for draft, budget in zip(drafts, budgets, strict=True):
            self._check(draft, replace(budget, nodes=2 * budget.nodes))  # a router's are of two
        return drafts

    def paid(self, request: RequestView) -> str | None:
        return self.inner.paid(request)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        assert {each.request.id for each in verified} <= self.opened
        self.inner.observe(verified)

    def close(self, request: RequestView) -> None:
        self.opened.remove(request.id)
        self.inner.close(request)

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: torch.Tensor, soon: bool) -> None:
        assert {request.id for request in requests} <= self.opened
        assert len(features) == sum(len(rows.tokens) for rows in batch)
        self.inner.read(requests, batch, features, soon)
        with torch.inference_mode():
            features.zero_()  # valid during the call only

    def _check(self, draft: Draft, budget: Budget) -> None:
        assert len(draft.tokens) == len(draft.parents) == len(draft.confidence) <= budget.nodes
        depth: list[int] = []
        for node, parent in enumerate(draft.parents):
            assert ROOT <= parent < node
            depth.append(1 if parent == ROOT else depth[parent] + 1)
            if parent != ROOT:
                assert draft.confidence[node] <= draft.confidence[parent] + 1e-9
        assert max(depth, default=0) <= budget.depth
        edges = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(edges)) == len(edges), "siblings must differ"
        assert budget.tree or len(set(draft.parents)) == len(draft.parents)
        assert all(0 <= token < VOCAB for token in draft.tokens)
        if draft.q is not None:
            assert draft.q.shape == (len(draft), VOCAB)
            torch.testing.assert_close(draft.q.double().exp().sum(-1), torch.ones(len(draft)).double())


def prompts() -> list[list[int]]:
    """Ragged ones; some begin as others do, which run at the same time or have ended by then."""
    rng = random.Random(3)
    first, second, other = (rng.choices(range(12), k=k) for k in (40, 33, 9))
    return [first, other, [*first[:29], *other], second, [*second[:27], *other], [*first, 3, 1], [5]]


def run(
    model: LanguageModel, drafter: Drafter, params: SamplingParams, nodes: int, *, reuse: bool = True
) -> list[list[int]]:
    """Ragged prompts through three slots; returns what was generated. Some have predictions, right for a few tokens at
    best, and where there are several drafters each has its turn. `reuse`: they may take over what others have run."""
    engine = Engine(model, drafter, FixedLength(nodes))
    rng = random.Random(3)
    inner = drafter.inner if isinstance(drafter, Checked) else drafter
    routes = [None, *inner.names] if isinstance(inner, RouterDrafter) else [None]
    requests = []
    for number, prompt in enumerate(prompts()):
        request = Request(
            id=number,
            tokens=list(prompt),
            prompt_length=len(prompt),
            params=params.resolve({}, (), VOCAB, choice=number),
            limit=14,
            stream=TextStream(lambda token: b"", (), False),
            history=History(prompt),
            speculation=Speculation(
                drafter=routes[number % len(routes)],
                prediction=tuple(rng.choices(range(12), k=20)) if number % 2 else (),
            ),
            cache_salt=None if reuse else str(number),
        )
        requests.append(request)
        engine.add(request)
        if number < 3:  # the others wait for their places
            engine.step()
    while not engine.scheduler.idle:
        engine.step()
    assert engine.leaks() == []
    assert (engine.stats.prefix_hits >= 2) == (reuse and model.keeps_prefixes)
    return [s.tokens[s.prompt_length :] for s in requests]


PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "greedy-rejection": SamplingParams(temperature=0, verify="rejection"),
    "coupled": SamplingParams(temperature=0.9, seed=5),
    "coupled-processed": SamplingParams(
        temperature=1.0, seed=6, top_k=9, repetition_penalty=1.3, frequency_penalty=0.5
    ),
}
ENOUGH = {"torch": ["greedy"], "torch-bitwise": ["coupled-processed"], "hf": ["greedy", "coupled-processed"]}
"""How a token is chosen is no cache's business: where all drafters meet another cache, so much shows that they fit it.
`make test-all` has every pair."""


@pytest.mark.parametrize(
    ("target", "params"),
    [
        pytest.param(cache, params, id=f"{cache}-{name}", marks=[] if name in ENOUGH.get(cache, PARAMS) else SLOW)
        for cache in CACHES
        for name, params in PARAMS.items()
    ],
    indirect=["target"],
)
def test_same_tokens_as_plain(
    target: tuple[Any, LanguageModel],
    drafter: Checked,
    params: SamplingParams,
    plain: Callable[[SamplingParams], list[list[int]]],
) -> None:
    _, model = target
    assert run(model, drafter, params, 7) == plain(params)
    assert drafter.followed >= (2 if model.keeps_prefixes else 0)
    assert not drafter.opened, "every request must be closed"


def test_sampled_by_rejection(target: tuple[Any, LanguageModel], drafter: Checked) -> None:
    """Runs through, leaves every slot free and the cache as a fresh prefill finds it."""
    reference_model, model = target
    params = SamplingParams(temperature=1.1, seed=8, verify="rejection")
    first = run(model, drafter, params, 6)
    assert all(len(tokens) == 14 for tokens in first)
    slot = model.open()
    text = first[0][:10]
    logits = model.forward([Rows.chain(slot, text)])
    model.close(slot)
    torch.testing.assert_close(logits, logits_of(reference_model, text), atol=1e-4, rtol=0)
