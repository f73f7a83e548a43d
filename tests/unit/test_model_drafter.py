"""The small-LM drafter: what it draws, what it declares, its cache, its budget."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from toy import Sequence_, TableModel, language, request, resolved

from outrider.core.draft import ROOT, Budget, Draft
from outrider.drafters.model import ModelDrafter, ModelDrafterConfig, check_vocabularies
from outrider.errors import DrafterError
from outrider.sampling.noise import gumbel
from outrider.sampling.warp import process, warp

VOCAB = 12
LANGUAGE = language(VOCAB, 1)


def drafter_for(branching: int = 1, **model: Any) -> tuple[ModelDrafter, TableModel]:
    made = TableModel(LANGUAGE, VOCAB, **model)
    return ModelDrafter(made, ModelDrafterConfig(branching)), made


def draft_of(seq: Sequence_, budget: Budget, branching: int = 1, **model: Any) -> Draft:
    drafter, _ = drafter_for(branching, **model)
    drafter.open(seq)
    return drafter.propose([seq], [budget])[0]


def assert_well_formed(draft: Draft, budget: Budget, branching: int) -> None:
    assert len(draft) <= budget.nodes
    assert len(draft.parents) == len(draft.confidence) == len(draft)
    for node, parent in enumerate(draft.parents):
        assert ROOT <= parent < node
        assert len(draft.path(node)) <= budget.depth
        above = 1.0 if parent == ROOT else draft.confidence[parent]
        assert budget.floor <= draft.confidence[node] <= above
    for node in range(ROOT, len(draft)):
        children = [draft.tokens[child] for child in draft.children(node)]
        assert len(children) == len(set(children)) <= branching
        if not budget.tree:
            assert len(children) <= 1


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("branching", [1, 3])
@pytest.mark.parametrize(
    "budget",
    [
        Budget(0, 4),
        Budget(4, 0),
        Budget(1, 1),
        Budget(5, 5),
        Budget(5, 2),
        Budget(12, 4),
        Budget(12, 4, 0.1),
        Budget(12, 4, 0.99),
        Budget(12, 4, tree=False),
    ],
    ids=str,
)
def test_drafts_keep_within_their_budget(budget: Budget, branching: int, temperature: float, verify: str) -> None:
    for seed in range(3):
        params = resolved(VOCAB, temperature=temperature, verify=verify, seed=seed)
        draft = draft_of(request([1, 2, 3], params), budget, branching)
        assert_well_formed(draft, budget, branching)
        assert (draft.q is not None) == (verify == "rejection" and temperature > 0 and len(draft) > 0)


def test_a_budget_is_used() -> None:
    params = resolved(VOCAB)
    chain = draft_of(request([1], params), Budget(4, 4))
    assert list(chain.parents) == [ROOT, 0, 1, 2]
    tree = draft_of(request([1], params), Budget(12, 4), branching=3)
    assert len(tree) == 12
    assert max(len(tree.path(node)) for node in range(12)) == 4
    assert len(tree.children(ROOT)) == 3


def test_the_same_draft_whatever_the_company() -> None:
    """A request's draft does not depend on which others are drafted with it."""
    seqs = [request(prompt, resolved(VOCAB, seed=i)) for i, prompt in enumerate([[1], [2, 3, 4], [5] * 11])]
    budgets = [Budget(6, 3), Budget(2, 2), Budget(9, 4)]
    drafter, model = drafter_for(2, max_batch=3, chunk=5)
    for seq in seqs:
        drafter.open(seq)
    together = drafter.propose(seqs, budgets)
    for seq, budget, draft in zip(seqs, budgets, together, strict=True):
        alone = draft_of(seq, budget, 2)
        assert (draft.tokens, draft.parents) == (alone.tokens, alone.parents)
    assert max(model.passes[:3]) <= 5  # 15 prompt tokens, prefilled in chunks for all three together
    assert len(model.passes) == 3 + 3  # and then one pass for every level but the last


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"repetition_penalty": 1.5, "frequency_penalty": 0.3}])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_coupled_children_are_the_top_k_under_the_shared_noise(options: dict[str, Any], temperature: float) -> None:
    params = resolved(VOCAB, temperature=temperature, seed=11, **options)
    seq = request([1, 2], params, [3, 3, 4])
    draft = draft_of(seq, Budget(9, 3), branching=3)
    for node in range(ROOT, len(draft)):
        children = [draft.tokens[child] for child in draft.children(node)]
        path = [draft.tokens[i] for i in draft.path(node)]
        logits = torch.tensor([LANGUAGE((*seq.tokens, *path))])
        if temperature == 0:
            scores = process(logits, params, seq.history, [path])[0]
        else:
            scores = warp(logits, params, seq.history, [path])[0] + gumbel(11, 0, 3 + len(path), VOCAB)
        assert children == scores.topk(len(children)).indices.tolist()


def test_sampled_children_follow_the_declared_q() -> None:
    """With production chance: first and second siblings over 3000 seeds (chi-square)."""
    drafter, _ = drafter_for(2)
    first = torch.zeros(VOCAB, dtype=torch.float64)
    second = torch.zeros(VOCAB, dtype=torch.float64)
    expected_second = torch.zeros(VOCAB, dtype=torch.float64)
    for seed in range(3000):
        seq = request([1, 2], resolved(VOCAB, verify="rejection", temperature=0.8, seed=seed))
        drafter.open(seq)
        draft = drafter.propose([seq], [Budget(2, 1)])[0]
        drafter.close(seq)
        assert draft.q is not None
        q = draft.q[0].exp()
        first[draft.tokens[0]] += 1
        second[draft.tokens[1]] += 1
        rest = q.clone()
        rest[draft.tokens[0]] = 0
        expected_second += rest / rest.sum()
    for counts, expected in ((first, q * 3000), (second, expected_second)):
        assert float(((counts - expected) ** 2 / expected).sum()) < 44  # 11 d.o.f.: 1 in 100,000
    assert draft.q is not None
    want = warp(torch.tensor([LANGUAGE((1, 2))]), seq.params, seq.history, [[]])[0]
    assert torch.equal(draft.q[0], want)
    assert torch.equal(draft.q[1], want)


def test_greedy_rejection_proposes_bare_trees() -> None:
    draft = draft_of(request([1], resolved(VOCAB, temperature=0, verify="rejection")), Budget(6, 2), branching=3)
    assert draft.q is None
    assert len(draft.children(ROOT)) == 3


@pytest.mark.parametrize("branching", [1, 3])
def test_a_used_cache_drafts_like_a_fresh_one(branching: int) -> None:
    """After any history of accepted and refused nodes, pauses and repeated questions."""
    rng = random.Random(branching)
    drafter, _ = drafter_for(branching, chunk=4, max_batch=2)
    seq = request([1, 2, 3, 4, 5], resolved(VOCAB, seed=3, repetition_penalty=1.2), [])
    drafter.open(seq)
    for _ in range(25):
        budget = Budget(rng.choice([0, 3, 8]), rng.randint(1, 4))
        draft = drafter.propose([seq], [budget])[0]
        fresh = draft_of(seq, budget, branching)
        assert (draft.tokens, draft.parents) == (fresh.tokens, fresh.parents)
        if rng.random() < 0.2:
            continue  # nothing came of it: asked again for the same tokens
        path: list[int] = []
        while children := draft.children(path[-1] if path else ROOT):
            if rng.random() < 0.3:
                break
            path.append(rng.choice(children))
        seq.push([*(draft.tokens[node] for node in path), rng.randrange(VOCAB)])
        if len(seq.tokens) > 40:
            break
    assert len(seq.tokens) > 40


def test_accepted_rows_are_not_run_again() -> None:
    drafter, model = drafter_for()
    seq = request([1, 2, 3], resolved(VOCAB))
    drafter.open(seq)
    draft = drafter.propose([seq], [Budget(3, 3)])[0]
    assert model.passes == [3, 1, 1]  # the prompt, two of the three nodes
    seq.push([*draft.tokens, 7])
    drafter.propose([seq], [Budget(1, 1)])
    assert model.passes[3:] == [2]  # the node that was not run, and the target's token


def test_no_budget_no_work() -> None:
    drafter, model = drafter_for()
    seq = request([1, 2, 3], resolved(VOCAB))
    drafter.open(seq)
    assert len(drafter.propose([seq], [Budget(0, 0)])[0]) == 0
    assert model.passes == []
    seq.push([4, 5])
    assert len(drafter.propose([seq], [Budget(2, 2)])[0]) == 2
    assert model.passes == [5, 1]


@pytest.mark.parametrize("branching", [1, 3])
def test_the_context_is_never_overrun(branching: int) -> None:
    """The toy model raises when its cache would overflow; drafts shrink towards the end and then stop."""
    drafter, _ = drafter_for(branching, max_context=16)
    seq = request([1] * 9, resolved(VOCAB))
    drafter.open(seq)
    sizes = []
    while len(seq.tokens) < 20:
        sizes.append(len(drafter.propose([seq], [Budget(6, 4)])[0]))
        seq.push([len(seq.tokens) % VOCAB])
    assert sizes[0] == (4 if branching == 1 else 6)
    assert sizes[-3:] == [0, 0, 0]
    assert sizes == sorted(sizes, reverse=True)


def test_a_prompt_longer_than_the_draft_context_gets_no_draft() -> None:
    assert len(draft_of(request([1] * 17, resolved(VOCAB)), Budget(4, 4), max_context=16)) == 0


def test_models_without_trees_draft_chains() -> None:
    draft = draft_of(request([1], resolved(VOCAB)), Budget(6, 3), branching=3, supports_trees=False)
    assert list(draft.parents) == [ROOT, 0, 1]


@pytest.mark.parametrize("width", [VOCAB - 2, VOCAB + 3])
def test_padded_vocabularies(width: int) -> None:
    """The draft is as wide as the target, and proposes only tokens both have."""
    for seed in range(20):
        drafter = ModelDrafter(TableModel(LANGUAGE, VOCAB), vocab_size=width)
        seq = request([1], resolved(width, verify="rejection", temperature=3.0, seed=seed))
        drafter.open(seq)
        draft = drafter.propose([seq], [Budget(4, 4)])[0]
        assert draft.q is not None
        assert draft.q.shape == (4, width)
        assert max(draft.tokens) < min(width, VOCAB)


def test_a_token_the_draft_model_does_not_know_ends_its_drafts() -> None:
    drafter = ModelDrafter(TableModel(LANGUAGE, VOCAB), vocab_size=VOCAB + 3)
    seq = request([1], resolved(VOCAB + 3))
    drafter.open(seq)
    assert len(drafter.propose([seq], [Budget(2, 2)])[0]) == 2
    seq.push([VOCAB + 1])
    assert len(drafter.propose([seq], [Budget(2, 2)])[0]) == 0
    seq.push([1])
    assert len(drafter.propose([seq], [Budget(2, 2)])[0]) == 0


def test_slots_are_given_back() -> None:
    drafter, _ = drafter_for(max_batch=1)
    for _ in range(3):
        seq = request([1], resolved(VOCAB))
        drafter.open(seq)
        drafter.propose([seq], [Budget(1, 1)])
        drafter.observe([])
        drafter.close(seq)


def test_branching_must_make_sense() -> None:
    with pytest.raises(DrafterError, match="branching"):
        ModelDrafterConfig(0)


def test_equal_vocabularies_pass() -> None:
    check_vocabularies({"a": 0, "b": 1}, {"b": 1, "a": 0})


def test_different_vocabularies_are_described() -> None:
    target = {"a": 0, "b": 1, "c": 2, "e": 4}
    draft = {"a": 0, "b": 2, "c": 1, "d": 3, "f": 5}
    with pytest.raises(DrafterError) as caught:
        check_vocabularies(target, draft)
    message = str(caught.value)
    assert "the target has 4 tokens and the draft model 5" in message
    assert "1 of the target's are missing (first: 'e')" in message
    assert "2 are the draft model's alone (first: 'd')" in message
    assert "2 have other ids (first: 'b' is 1 in the target and 2 in the draft model)" in message
    assert "shares the target's tokenizer" in message
