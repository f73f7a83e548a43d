"""Drafters of people's own: what is wrong with one is said in a sentence, and no model sees what it proposed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView
from outrider.drafters.router import RouterDrafter
from outrider.errors import DrafterError

VOCAB, NODES = 50, 4


class Proposing(Drafter):
    """The same drafts, whatever it is asked."""

    name = "mine"
    looks_up = continues = True

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.drafts

    look_up = propose

    def continuation(self, request: RequestView, count: int) -> Draft:
        return self.drafts[0]


def routed(drafter: Drafter) -> tuple[RouterDrafter, Any]:
    request: Any = SimpleNamespace(id=1, tokens=[1, 2], prompt_length=2, speculation=Speculation())
    router = RouterDrafter(drafter, {}, VOCAB)
    router.open(request)
    return router, request


def test_a_draft_for_each_request_is_asked_for() -> None:
    router, request = routed(Proposing(Draft(), Draft()))
    for asked in (router.propose, router.look_up):
        with pytest.raises(DrafterError, match="'mine' proposed 2 drafts for 1 requests; propose must return one"):
            asked([request], [Budget(4, 4)])


def chain(*tokens: int, **other: Any) -> Draft:
    return Draft(tokens, range(-1, len(tokens) - 1), [0.5] * len(tokens), "mine", **other)


FAULTS = {
    "token 50 is not among the target's 50": chain(3, VOCAB),
    "token -1 is not among the target's 50": chain(-1),
    "5 nodes were proposed where 4 were asked for": chain(1, 2, 3, 4, 5),
    "2 tokens have 1 parents and 2 confidences": Draft([1, 2], [-1], [0.5, 0.5], "mine"),
    "2 tokens have 2 parents and 0 confidences": Draft([1, 2], [-1, 0], [], "mine"),
    "2 tokens have 1 sources": chain(1, 2, sources=["mine"]),
    "node 1 follows node 1, which does not come before it": Draft([1, 2], [-1, 1], [0.5, 0.5], "mine"),
    "node 0 follows node -2, which does not come before it": Draft([1], [-2], [0.5], "mine"),
    "node 1 branches off, and only a single path": Draft([1, 2], [-1, -1], [0.5, 0.5], "mine"),
    r"q is \[2, 49\], not \[2, 50\]": chain(1, 2, q=torch.zeros(2, VOCAB - 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    router, request = routed(Proposing(FAULTS[fault]))
    with pytest.raises(DrafterError, match=f"^drafter 'mine': {fault}"):
        router.propose([request], [Budget(NODES, NODES, tree=False)])
    with pytest.raises(DrafterError, match=fault):
        router.look_up([request], [Budget(NODES, NODES, tree=False)])
    with pytest.raises(DrafterError, match=fault):
        router.continuation(request, NODES)


def test_what_is_no_draft_is_called_so() -> None:
    nothing: Any = None
    router, request = routed(Proposing(nothing))
    with pytest.raises(DrafterError, match=r"^drafter 'mine' proposed None, which is no Draft$"):
        router.propose([request], [Budget(NODES, NODES)])


def test_siblings_must_differ() -> None:
    router, request = routed(Proposing(Draft([7, 7], [-1, -1], [0.5, 0.4], "mine")))
    with pytest.raises(DrafterError, match="two nodes propose the same token in the same place"):
        router.propose([request], [Budget(NODES, NODES)])


def test_what_keeps_to_the_rules_is_passed_on() -> None:
    draft = Draft([7, 8, 7], [-1, -1, 1], [0.5, 0.4, 0.3], "mine")
    router, request = routed(Proposing(draft))
    assert router.propose([request], [Budget(NODES, NODES)]) == [draft]


@pytest.mark.parametrize(("said", "meant"), [(-5, 0), (0, 0), (1, 1), (2, 2), (10**400, 2)])
def test_nobody_lacks_more_than_there_is(said: int, meant: int) -> None:
    class Lacking(Proposing):
        def lacks(self, request: RequestView) -> int:
            return said

    router, request = routed(Lacking())
    assert router.lacks(request) == meant


@pytest.mark.parametrize("said", [None, "much", 1.5, float("nan")])
def test_what_is_lacking_is_a_number_of_tokens(said: Any) -> None:
    class Lacking(Proposing):
        def lacks(self, request: RequestView) -> int:
            found: int = said
            return found

    router, request = routed(Lacking())
    with pytest.raises(DrafterError, match=r"^drafter 'mine': it lacks .*, which is no number of tokens"):
        router.lacks(request)
