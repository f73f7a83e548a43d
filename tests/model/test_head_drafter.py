"""Drafting with a head: exact text whatever it drafts, and drafts that depend on the true text alone.

A wrong draft never changes the text, it only costs speed; so drafts have a test of their own: after any history they
are those of a head that has only ever seen the text as it stands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tiny_head import sensible_head
from tiny_models import reference, target_of
from toy import request

from outrider import SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel, Rows
from outrider.core.request import RequestView
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.head.load import place_head
from outrider.models.native.decoder import NativeDecoder
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.history import History

VOCAB = 97
IDS = torch.tensor([token for token in range(VOCAB) if token % 9])
"""The draft vocabulary lacks some tokens."""


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("llama")


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request: pytest.FixtureRequest, model: Any) -> NativeDecoder | TorchDecoder:
    return target_of(model, request.param)


def drafter_for(model: Any, target: NativeDecoder | TorchDecoder, branching: int) -> HeadDrafter:
    head = place_head(sensible_head(model.state_dict(), target.architecture, IDS), target)
    return HeadDrafter(head, VOCAB, HeadDrafterConfig(branching))


Told = tuple[list[list[int]], int, int]
"""What was generated, how many drafts were accepted, how many refused."""


@pytest.fixture(scope="module")
def plain(target: NativeDecoder | TorchDecoder) -> Callable[[SamplingParams, int], Told]:
    """Decoded once for all that is drafted."""
    return functools.cache(lambda params, batch: run(target, NoDrafter(), params, 0, batch))


def run(
    model: LanguageModel, drafter: Drafter, params: SamplingParams, nodes: int, batch: int, limit: int = 28
) -> Told:
    """`batch` ragged prompts at once, each to so many tokens."""
    engine = Engine(model, drafter, FixedLength(nodes))
    running = []
    for number in range(batch):
        prompt = [(7 * number + 3 * i) % VOCAB for i in range(1 + 5 * number)]
        resolved = params.resolve({}, (), VOCAB, choice=number)
        stream = TextStream(lambda token: b"", (), False)
        running.append(Request(number, prompt, len(prompt), resolved, limit, stream, History(prompt)))
        engine.add(running[-1])
    while not engine.scheduler.idle:
        engine.step()
    accepted = sum(s.accepted for s in running)
    return [s.tokens[s.prompt_length :] for s in running], accepted, sum(s.drafted for s in running) - accepted


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("branching", "nodes"), [(1, 4), (3, 9)], ids=["chain", "tree"])
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_tokens_as_plain(
    model: Any,
    target: NativeDecoder | TorchDecoder,
    temperature: float,
    verify: Any,
    branching: int,
    nodes: int,
    batch: int,
    plain: Callable[[SamplingParams, int], Told],
) -> None:
    """Token for token, except where rejection samples: there the tokens are others of the same distribution (see
    test_rejection_statistics), and runs must repeat."""
    params = SamplingParams(temperature=temperature, seed=3, verify=verify)
    drafter = drafter_for(model, target, branching)
    tokens, accepted, refused = run(target, drafter, params, nodes, batch)
    if temperature and verify == "rejection":
        assert tokens == run(target, drafter_for(model, target, branching), params, nodes, batch)[0]
    else:
        assert tokens == plain(params, batch)[0]
    assert accepted > 0, "nothing was accepted: the comparison means little"
    assert refused > 0, "nothing was refused: the comparison means little"


@pytest.mark.parametrize("temperature", [5e-324, 1e-38])
def test_temperatures_that_fp32_does_not_know(
    model: Any, target: NativeDecoder | TorchDecoder, temperature: float
) -> None:
    """A head ranks in fp32: what it drafts must not fall apart where the inverse of the temperature is infinite."""
    params = SamplingParams(temperature=temperature, seed=3)
    tokens, accepted, _ = run(target, drafter_for(model, target, 8), params, 16, 1)
    near = SamplingParams(temperature=1e-6, seed=3)
    assert (tokens, accepted) == run(target, drafter_for(model, target, 8), near, 16, 1)[:2]
    assert tokens == run(target, NoDrafter(), params, 0, 1)[0]
    assert accepted > 0


class Watched(Drafter):
    """A `HeadDrafter` whose every draft is compared with that of a fresh head given the text so far."""

    name = "head"
    reads_features = True

    def __init__(self, inner: HeadDrafter, fresh: Any) -> None:
        self.inner, self._fresh = inner, fresh
        self.compared = 0
        self.open, self.close, self.read, self.observe = inner.open, inner.close, inner.read, inner.observe  # type: ignore[method-assign]

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self.inner.propose(requests, budgets)
        for running, budget, draft in zip(requests, budgets, drafts, strict=True):
            expected = self._fresh(running, budget)
            assert list(draft.tokens) == list(expected.tokens)
            assert list(draft.parents) == list(expected.parents)
            assert draft.confidence == pytest.approx(expected.confidence, rel=1e-3)
            self.compared += len(draft)
        return drafts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("branching", "nodes"), [(1, 4), (3, 9)], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["native", "torch"])
def test_drafts_depend_on_the_text_alone(model: Any, kind: str, branching: int, nodes: int, temperature: float) -> None:
    """After any history of accepting and refusing, in a batch, the head's cache is that of a fresh prefill."""
    target, other = target_of(model, kind), target_of(model, kind)

    head = place_head(sensible_head(model.state_dict(), other.architecture, IDS), other)

    def fresh(running: RequestView, budget: Budget) -> Draft:
        drafter = HeadDrafter(head, VOCAB, HeadDrafterConfig(branching))
        copy = request(running.tokens[: running.prompt_length], running.params)
        drafter.open(copy)
        copy.push(running.tokens[running.prompt_length :])
        slot = other.open()
        before = running.tokens[:-1]
        if before:
            other.forward([Rows.chain(slot, before, logits=())])
            drafter.read([copy], [Rows.chain(slot, before, logits=())], other.features, soon=True)
        other.close(slot)
        draft = drafter.propose([copy], [budget])[0]
        drafter.close(copy)
        return draft

    watched = Watched(drafter_for(model, target, branching), fresh)
    params = SamplingParams(temperature=temperature, seed=4)
    run(target, watched, params, nodes, 3, limit=40)
    assert watched.compared > 100
