"""Exactness of the rejection rule, by visiting every outcome (see enumeration.py).

The real rule, the real draft-tree builder and the real warp run unmodified; their distribution over whole
requests must be the target's. test_rules_broken.py has what must fail the same comparison.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
from enumeration import (
    Shape,
    error,
    model_drafter,
    outcomes,
    plain_distribution,
    plain_probabilities,
    speculative_distribution,
)
from rule_cases import CHAIN, PROCESSORS, PROMPT, TOLERANCE, TREE, WIDE, case
from toy import Sequence_, request, resolved

from outrider.core.draft import ROOT, Budget, Draft
from outrider.sampling.random_source import RandomSource

pytestmark = pytest.mark.long


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
