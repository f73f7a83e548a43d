"""The coupled rule: the tokens of plain decoding, whatever is drafted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from enumeration import plain_probabilities
from toy import (
    Language,
    Sequence_,
    TableModel,
    between,
    emitted,
    finished,
    language,
    request,
    resolved,
    rows_of,
)

from outrider.core.draft import ROOT, Budget, Draft
from outrider.core.request import ResolvedParams
from outrider.drafters.model import ModelDrafter, ModelDrafterConfig
from outrider.sampling.noise import Key, gumbel, gumbel_rows
from outrider.sampling.random_source import KeyedRandom
from outrider.verify import RULES

VOCAB, LENGTH = 8, 16
pytestmark = pytest.mark.long
PROMPT = (3, 1, 4, 1)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "cool": {"temperature": 0.7},
    "one": {"temperature": 1.0},
    "hot": {"temperature": 1.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": 0.9},
    "greedy penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {2: 2.0, 5: -3.0}},
    "eos": {"eos": [6], "min_tokens": 5},
}
Propose = Callable[[Sequence_, Budget], Draft]


def plain(target: Language, params: ResolvedParams) -> list[int]:
    """The definition: the largest log-probability + noise, one token at a time."""
    output: list[int] = []
    while len(output) < params.max_tokens and not (output and output[-1] in params.stop_token_ids):
        p = plain_probabilities(target((*PROMPT, *output)), params, PROMPT, output)
        noise = gumbel(params.seed, params.choice, len(output), len(p)).tolist()
        scores = [math.log(x) + g if x > 0 else -math.inf for x, g in zip(p, noise, strict=True)]
        output.append(p.index(1.0) if params.temperature == 0 else scores.index(max(scores)))
    return output


def speculative(target: Language, propose: Propose, params: ResolvedParams, budget: Budget) -> tuple[list[int], int]:
    """The tokens, and the number of target passes."""
    seq = request(PROMPT, params)
    passes = 0
    while not finished(seq):
        room = params.max_tokens - seq.generated - 1
        draft = propose(seq, Budget(budget.nodes if room else 0, min(budget.depth, room), 0.0, budget.tree))
        chance = KeyedRandom(params.seed, params.choice, seq.generated)
        verdict = RULES["coupled"](draft, rows_of(target, seq, draft), chance)
        seq.push(emitted(seq, draft, verdict.path, verdict.token))
        passes += 1
    return seq.tokens[len(PROMPT) :], passes


def from_model(draft_language: Language, branching: int) -> Propose:
    drafter = ModelDrafter(TableModel(draft_language, VOCAB, max_batch=1), ModelDrafterConfig(branching))
    opened: list[Sequence_] = []

    def propose(seq: Sequence_, budget: Budget) -> Draft:
        if seq not in opened:
            for old in opened:
                drafter.close(old)
            opened[:] = [seq]
            drafter.open(seq)
        return drafter.propose([seq], [budget])[0]

    return propose


def random_trees(seed: int) -> Propose:
    """Trees of any shape with any tokens."""
    rng = random.Random(seed)

    def propose(seq: Sequence_, budget: Budget) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        depth: dict[int, int] = {ROOT: 0}
        for _ in range(rng.randint(0, budget.nodes)):
            parent = rng.choice([node for node in depth if depth[node] <= budget.depth])
            token = rng.randrange(VOCAB)
            if (parent, token) not in set(zip(parents, tokens, strict=True)):
                depth[len(tokens)] = depth[parent] + 1
                tokens.append(token)
                parents.append(parent)
        return Draft(tokens, parents)

    return propose


def foreseeing(target: Language, params: ResolvedParams, wrong_after: int) -> Propose:
    """Knows the answer, and proposes it up to a point among decoys; from there on, decoys only."""
    answer = plain(target, params)

    def propose(seq: Sequence_, budget: Budget) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        parent = ROOT
        for i in range(min(budget.depth, len(answer) - seq.generated)):
            right = answer[seq.generated + i]
            decoy = (right + 1) % VOCAB
            tokens += [decoy, right] if i < wrong_after else [decoy]
            parents += [parent] * (2 if i < wrong_after else 1)
            parent = len(tokens) - 1
        return Draft(tokens, parents)

    return propose


@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_are_those_of_plain_decoding(name: str) -> None:
    budget = Budget(nodes=7, depth=4)
    for seed in range(12):
        params = resolved(VOCAB, max_tokens=LENGTH, **{"seed": seed, **OPTIONS[name]})
        target = language(VOCAB, seed)
        want = plain(target, params)
        near = between(target, language(VOCAB, seed + 500), 0.4)
        drafters: dict[str, Propose] = {
            "none": lambda seq, budget: Draft(),
            "chain": from_model(near, 1),
            "tree": from_model(near, 3),
            "random": random_trees(seed),
            "foreseeing": foreseeing(target, params, wrong_after=2),
        }
        for drafter, propose in drafters.items():
            got, _ = speculative(target, propose, params, budget)
            assert got == want, (drafter, seed)


def test_the_texts_are_not_trivial() -> None:
    """Guards the test above: seeds and options really lead to different texts."""
    texts = {
        tuple(plain(language(VOCAB, 0), resolved(VOCAB, max_tokens=LENGTH, **{"seed": seed, **options})))
        for seed in range(5)
        for options in OPTIONS.values()
    }
    assert len(texts) > 40


def test_a_foreseeing_drafter_saves_passes() -> None:
    params = resolved(VOCAB, max_tokens=LENGTH)
    target = language(VOCAB, 1)
    _, passes = speculative(target, foreseeing(target, params, wrong_after=4), params, Budget(8, 4))
    assert passes == math.ceil(LENGTH / 5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("branching", [1, 2])
def test_a_draft_model_equal_to_the_target_is_always_right(temperature: float, branching: int) -> None:
    """Only with the very same noise at the very same positions."""
    target = language(VOCAB, 2)
    for seed in range(5):
        params = resolved(VOCAB, max_tokens=LENGTH, temperature=temperature, seed=seed, repetition_penalty=1.3)
        _, passes = speculative(target, from_model(target, branching), params, Budget(3 * branching, 3))
        assert passes == math.ceil(LENGTH / 4)


def test_agreement_is_as_good_as_coupling_promises() -> None:
    """Draft and target agree with probability at least (1 - TV) / (1 + TV): here against 4000 positions."""
    target = language(VOCAB, 3)
    near = between(target, language(VOCAB, 4), 0.5)
    p, q = (torch.softmax(torch.tensor(lang(PROMPT), dtype=torch.float64), -1) for lang in (target, near))
    distance = float((p - q).abs().sum()) / 2
    noise = gumbel_rows([Key(0, 0, position) for position in range(4000)], VOCAB)
    agree = int(((p.log() + noise).argmax(-1) == (q.log() + noise).argmax(-1)).sum())
    promise = (1 - distance) / (1 + distance)
    assert agree / 4000 > promise - 5 * math.sqrt(promise * (1 - promise) / 4000)
    assert distance > 0.1
