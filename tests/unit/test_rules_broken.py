"""Rules and drafters that are broken on purpose: enumeration (see enumeration.py) must catch every one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from enumeration import (
    Propose,
    Shape,
    error,
    model_drafter,
    plain_distribution,
    speculative_distribution,
)
from rule_cases import CHAIN, PROCESSORS, PROMPT, SMALL_TREE, TOLERANCE, TREE, WIDE, case
from torch import Tensor
from toy import Language, Sequence_, rows_of

from outrider.core.draft import ROOT, Budget, Draft, Verdict
from outrider.sampling.random_source import KeyedRandom, RandomSource, Stream
from outrider.verify import Rule, Target, rejection

pytestmark = pytest.mark.long
CAUGHT = 1e-4  # what is broken must be off by far more than the tolerance


def no_residual(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """Refused: sample p again instead of the residual."""
    return chains_and_trees(draft, target, chance, lambda p, q, x: (p, without(q, x)))


def tree_with_replacement(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """Siblings drawn without replacement are judged as if drawn with: by the same q."""
    return chains_and_trees(draft, target, chance, lambda p, q, x: (unit((p - q).clamp(min=0)), q))


def q_not_renormalised(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """The refused token is taken out of q, but q is not scaled back to 1."""
    return chains_and_trees(
        draft, target, chance, lambda p, q, x: (unit((p - q).clamp(min=0)), without(q, x) * (1 - q[x]))
    )


def bonus_from_the_draft(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """All accepted: the next token is drawn from what the last draft token was drawn from."""
    return chains_and_trees(draft, target, chance, correct_residual, bonus_from_draft=True)


def correct_residual(p: Tensor, q: Tensor, x: int) -> tuple[Tensor, Tensor]:
    return unit((p - q).clamp(min=0)), without(q, x)


def chains_and_trees(
    draft: Draft, target: Target, chance: RandomSource, refuse: Any, bonus_from_draft: bool = False
) -> Verdict:
    """The rejection rule once more, its parts exchangeable; unbroken it is exact (tested below)."""
    assert draft.q is not None or not draft.tokens
    path: list[int] = []
    node = ROOT
    while True:
        p = unit(target.logp(node).exp())
        children = draft.children(node)
        q = draft.q[children[0]].exp() if draft.q is not None and children else p
        for child in children:
            x = draft.tokens[child]
            if chance.bernoulli(min(1.0, float(p[x] / q[x])), Stream.ACCEPT, child):
                path.append(child)
                node = child
                break
            p, q = refuse(p, q, x)
        else:
            if bonus_from_draft and draft.q is not None and path and not children:
                p = draft.q[path[-1]].exp()
            return Verdict(tuple(path), chance.categorical(p, Stream.TARGET, node))


def unit(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def without(q: Tensor, x: int) -> Tensor:
    rest = q.clone()
    rest[x] = 0
    return unit(rest)


def wrong_q(propose: Propose) -> Propose:
    """Declares the draft model's distribution at another temperature than it drew with."""

    def broken(seq: Sequence_, budget: Budget, chance: RandomSource) -> Draft:
        draft = propose(seq, budget, chance)
        return draft if draft.q is None else replace(draft, q=torch.log_softmax(draft.q * 0.5, dim=-1))

    return broken


def unnormalised_q(propose: Propose) -> Propose:
    """Declares, instead of q, q with the mass of what was not drawn taken away from the others."""

    def broken(seq: Sequence_, budget: Budget, chance: RandomSource) -> Draft:
        draft = propose(seq, budget, chance)
        if draft.q is None:
            return draft
        q = draft.q.clone()
        q[:, 0] += math.log(0.5)
        return replace(draft, q=q)

    return broken


def reranked(propose: Propose) -> Propose:
    """Drops the less likely of two drawn siblings, as some tree builders re-rank what they drew."""

    def broken(seq: Sequence_, budget: Budget, chance: RandomSource) -> Draft:
        draft = propose(seq, budget, chance)
        if len(draft) < 2 or draft.q is None:
            return draft
        likelier = max((0, 1), key=lambda node: float(draft.q[node][draft.tokens[node]]))  # type: ignore[index]
        return Draft([draft.tokens[likelier]], [ROOT], q=draft.q[[likelier]])

    return broken


class PathBlind:
    """Target rows whose penalties see the history but not the drafted tokens on the node's path."""

    def __init__(self, target: Language, seq: Sequence_, draft: Draft) -> None:
        def after(node: int, text: tuple[int, ...]) -> list[float]:
            return target((*text, *(draft.tokens[i] for i in draft.path(node))))

        self._rows = {node: rows_of(partial(after, node), seq, Draft()) for node in range(ROOT, len(draft))}

    def choose(self, node: int) -> int:
        return self._rows[node].choose(ROOT)

    def logp(self, node: int) -> Tensor:
        return self._rows[node].logp(ROOT)


def same(propose: Propose) -> Propose:
    return propose


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_the_exchangeable_rule_is_exact_unbroken(shape: Shape) -> None:
    """Otherwise the broken ones below might be caught for the wrong reason."""
    params, target, draft_language = case(3, 3, seed=8)
    exact = plain_distribution(target, PROMPT, params)
    propose = model_drafter(draft_language, 3, shape.branching)
    rule = partial(chains_and_trees, refuse=correct_residual)
    assert error(exact, speculative_distribution(target, propose, PROMPT, params, shape, rule)) < TOLERANCE


@pytest.mark.parametrize(
    ("rule", "drafter", "shape"),
    [
        (no_residual, same, CHAIN),
        (no_residual, same, SMALL_TREE),
        (tree_with_replacement, same, WIDE),
        (tree_with_replacement, same, SMALL_TREE),
        (q_not_renormalised, same, WIDE),
        (q_not_renormalised, same, SMALL_TREE),
        (bonus_from_the_draft, same, CHAIN),
        (bonus_from_the_draft, same, SMALL_TREE),
        (rejection, wrong_q, CHAIN),
        (rejection, wrong_q, SMALL_TREE),
        (rejection, unnormalised_q, CHAIN),
        (rejection, reranked, Shape(nodes=2, depth=1, branching=2)),
    ],
    ids=lambda part: part.__name__ if callable(part) else "",
)
def test_broken_rules_and_drafters_are_caught(rule: Rule, drafter: Callable[[Propose], Propose], shape: Shape) -> None:
    params, target, draft_language = case(4, 3, seed=8)
    exact = plain_distribution(target, PROMPT, params)
    propose = drafter(model_drafter(draft_language, 4, shape.branching))
    assert error(exact, speculative_distribution(target, propose, PROMPT, params, shape, rule)) > CAUGHT


@pytest.mark.parametrize("name", ["repetition", "frequency", "presence", "min_tokens"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_penalties_that_ignore_the_path_are_caught(name: str, shape: Shape) -> None:
    params, target, draft_language = case(3, 3, seed=9, **PROCESSORS[name])
    exact = plain_distribution(target, PROMPT, params)
    propose = model_drafter(draft_language, 3, shape.branching)

    def blind(seq: Sequence_, draft: Draft) -> Target:
        return PathBlind(target, seq, draft)

    assert error(exact, speculative_distribution(target, propose, PROMPT, params, shape, view=blind)) > CAUGHT


def test_a_refusal_by_rounding_leaves_something_to_sample() -> None:
    """Where q exceeds p by rounding only, the residual is empty; p itself must then be sampled."""

    class Refuse:
        """Refuses whatever may be refused, and demands that what is left can be sampled."""

        def bernoulli(self, p: float, stream: Stream, node: int) -> bool:
            return p >= 1

        def categorical(self, weights: Tensor, stream: Stream, node: int) -> int:
            token = KeyedRandom(0, 0, 0).categorical(weights, stream, node)  # which refuses what cannot be
            assert weights[token] > 0
            return token

    class Fixed:
        def __init__(self, logp: Tensor) -> None:
            self._logp = logp

        def choose(self, node: int) -> int:
            raise AssertionError("not the rejection rule's business")

        def logp(self, node: int) -> Tensor:
            return self._logp

    empty = 0
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        logp = torch.log_softmax(torch.randn(3, dtype=torch.float64, generator=generator), -1)
        logq = logp.clone()
        logq[0] = torch.nextafter(logq[0], torch.zeros((), dtype=torch.float64))
        p, q = unit(logp.exp()), unit(logq.exp())
        empty += bool(p[0] < q[0]) and float((p - q).clamp(min=0).sum()) == 0
        draft = Draft([0], [ROOT], [1.0], "test", logq.unsqueeze(0))
        rejection(draft, Fixed(logp), Refuse())
    assert empty > 5
