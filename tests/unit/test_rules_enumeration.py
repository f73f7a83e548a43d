"""Exactness of the rejection rule, by visiting every outcome (see enumeration.py).

The real rule, the real draft-tree builder and the real warp run unmodified; their distribution over whole
requests must be the target's. Rules and drafters that are broken on purpose must fail the same comparison.
"""

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
    outcomes,
    plain_distribution,
    plain_probabilities,
    speculative_distribution,
)
from torch import Tensor
from toy import Language, Sequence_, between, language, request, resolved, rows_of

from outrider.core.draft import ROOT, Budget, Draft, Verdict
from outrider.core.request import ResolvedParams
from outrider.sampling.random_source import RandomSource, Stream
from outrider.verify import Rule, Target, rejection

pytestmark = pytest.mark.long
TOLERANCE = 1e-9
CAUGHT = 1e-4  # what is broken must be off by far more than the tolerance

PROMPT = (1, 0)
CHAIN = Shape(nodes=2, depth=2)
WIDE = Shape(nodes=3, depth=1, branching=3)
TREE = Shape(nodes=4, depth=2, branching=2)
SMALL_TREE = Shape(nodes=3, depth=2, branching=2)

PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": -1.1},
    "bias": {"logit_bias": {0: 1.5, 2: -2.0}},
    "min_tokens": {"min_tokens": 2, "eos": [2]},
    "everything": {
        "temperature": 1.4,
        "top_k": 3,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.4,
        "logit_bias": {1: -0.5},
        "min_tokens": 1,
        "eos": [0],
    },
}


def case(
    vocab: int, length: int, seed: int = 0, apart: float = 0.6, **options: Any
) -> tuple[ResolvedParams, Language, Language]:
    params = resolved(vocab, verify="rejection", max_tokens=length, **options)
    target = language(vocab, seed)
    return params, target, between(target, language(vocab, seed + 1000), apart)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_every_processor(name: str, shape: Shape) -> None:
    params, target, draft_language = case(3, 3, **PROCESSORS[name])
    exact = plain_distribution(target, PROMPT, params)
    propose = model_drafter(draft_language, 3, shape.branching)
    assert error(exact, speculative_distribution(target, propose, PROMPT, params, shape)) < TOLERANCE


@pytest.mark.parametrize(
    ("vocab", "length", "shape"),
    [
        (5, 2, WIDE),
        (5, 2, Shape(nodes=4, depth=1, branching=4)),
        (4, 3, CHAIN),
        (3, 4, Shape(nodes=3, depth=3)),
        (3, 4, Shape(nodes=4, depth=3, branching=2)),
        (2, 4, Shape(nodes=6, depth=3, branching=2)),
        (3, 3, replace(TREE, floor=0.3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_shape(vocab: int, length: int, shape: Shape, seed: int) -> None:
    params, target, draft_language = case(vocab, length, seed=seed, apart=0.9)
    exact = plain_distribution(target, PROMPT, params)
    propose = model_drafter(draft_language, vocab, shape.branching)
    assert error(exact, speculative_distribution(target, propose, PROMPT, params, shape)) < TOLERANCE


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_a_perfect_and_an_unrelated_drafter(apart: float) -> None:
    params, target, draft_language = case(4, 3, seed=3, apart=apart)
    exact = plain_distribution(target, PROMPT, params)
    propose = model_drafter(draft_language, 4, 2)
    assert error(exact, speculative_distribution(target, propose, PROMPT, params, Shape(2, 2, 2))) < TOLERANCE


def bare_tree(seq: Sequence_, budget: Budget, chance: RandomSource) -> Draft:
    """Point masses: a fixed tree with three first tokens, one of them continued twice."""
    if budget.nodes == 0 or budget.depth == 0:
        return Draft()
    if budget.depth == 1:
        return Draft([2, 0, 1], [ROOT, ROOT, ROOT])
    return Draft([2, 0, 1, 0, 2, 0], [ROOT, ROOT, 0, 0, ROOT, 2])


@pytest.mark.parametrize("name", PROCESSORS)
def test_point_masses(name: str) -> None:
    params, target, _ = case(3, 4, seed=5, **PROCESSORS[name])
    exact = plain_distribution(target, PROMPT, params)
    shape = Shape(nodes=6, depth=3)
    assert error(exact, speculative_distribution(target, bare_tree, PROMPT, params, shape)) < TOLERANCE


def test_plain_decoding_is_the_empty_draft() -> None:
    params, target, _ = case(4, 3, seed=6, **PROCESSORS["everything"])
    exact = plain_distribution(target, PROMPT, params)
    empty = speculative_distribution(target, lambda *_: Draft(), PROMPT, params, CHAIN)
    assert error(exact, empty) < TOLERANCE


def always(logits: list[float], text: tuple[int, ...]) -> list[float]:
    """A language that says the same whatever the text."""
    return logits


def test_numerics_at_the_edges() -> None:
    """One-hot targets and drafts, drafts outside the target's support, and a draft equal to the target."""
    zero = -math.inf
    tables = {
        "one-hot p": ([zero, 0.0, zero], [1.0, 0.5, 0.0]),
        "one-hot q": ([0.3, 0.0, -0.4], [zero, zero, 0.0]),
        "disjoint": ([0.0, zero, zero], [zero, 0.0, 0.2]),
        "equal": ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]),
        "tiny q": ([0.0, 0.1, 0.2], [0.0, -700.0, -740.0]),
    }
    params = resolved(3, verify="rejection", max_tokens=2)
    for name, (p, q) in tables.items():
        target, drafts = partial(always, p), partial(always, q)
        exact = plain_distribution(target, PROMPT, params)
        for shape in (CHAIN, WIDE):
            propose = model_drafter(drafts, 3, shape.branching)
            spec = speculative_distribution(target, propose, PROMPT, params, shape)
            assert error(exact, spec) < TOLERANCE, (name, shape)


# ---- honest q --------------------------------------------------------------------------------------------


def declared_probability(draft: Draft) -> float:
    """How likely this draft is, by what it says it was drawn from."""
    assert draft.q is not None
    probability = 1.0
    for node in range(ROOT, len(draft)):
        left = 1.0
        for child in draft.children(node):
            drawn = float(draft.q[child].exp()[draft.tokens[child]])
            probability *= drawn / left
            left -= drawn
    return probability


@pytest.mark.parametrize("name", ["none", "top_p", "repetition", "everything"])
@pytest.mark.parametrize("shape", [CHAIN, TREE, WIDE], ids=["chain", "tree", "wide"])
def test_the_model_drafter_declares_what_it_draws(name: str, shape: Shape) -> None:
    params, _, draft_language = case(4, 8, seed=7, **PROCESSORS[name])
    propose = model_drafter(draft_language, 4, shape.branching)
    seq = request(PROMPT, params, [1, 2])
    budget = Budget(shape.nodes, shape.depth)
    drawn: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    declared: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for draft, weight in outcomes(partial(propose, seq, budget)):
        key = (tuple(draft.tokens), tuple(draft.parents))
        drawn[key] = drawn.get(key, 0.0) + weight
        declared[key] = declared_probability(draft)
        for node in range(len(draft)):  # the declared q is the draft model's own, warped along the node's path
            path = [draft.tokens[i] for i in draft.path(node)][:-1]
            q = plain_probabilities(draft_language((*seq.tokens, *path)), params, PROMPT, [1, 2, *path])
            assert draft.q is not None
            assert draft.q[node].exp().tolist() == pytest.approx(q, abs=1e-12)
    assert len(drawn) > 4
    assert drawn == pytest.approx(declared, abs=1e-12)


# ---- broken on purpose -----------------------------------------------------------------------------------


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
            assert float(weights.sum()) == pytest.approx(1)
            return int(weights.argmax())

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
