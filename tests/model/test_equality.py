"""Level A and C on the real default model: with any drafter, draft length and batch, the same tokens as plain decoding.

Every case is one (prompt, temperature, processors) with its own seed; plain decoding of all of them is computed once
and every drafter must reproduce it token for token, alone or in a ragged batch. bf16 is bit-exact (level C), fp32 and
int8 weights too. How many cases there are, and how long, follows the machine; every drafter, temperature and processor
has its turn on all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pace import Pace
from prompts import PROMPTS
from tiny_head import sensible_head

from outrider import LLM, Completion, SamplingParams
from outrider.control.auto import AutoLength
from outrider.control.controller import FixedLength
from outrider.core.draft import ROOT, Draft
from outrider.core.drafter import Drafter
from outrider.core.model import DraftHead, LanguageModel
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.model import ModelDrafter, ModelDrafterConfig
from outrider.drafters.registry import build
from outrider.engine.engine import Engine
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.head.load import load_head, place_head
from outrider.models.head.shipped import shipped_head
from outrider.models.load import load_model, placement

TOKENS = 32
TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
PROCESSORS: list[dict[str, Any]] = [
    {},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.6, "presence_penalty": 0.4},
    {"logit_bias": {198: -2.0, 284: 1.5}, "min_tokens": 12},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1, "frequency_penalty": 0.3},
    {"ignore_eos": True},
]
Case = tuple[str, SamplingParams]
CASES: list[Case] = [
    (prompt, SamplingParams(temperature=t, seed=1000 + i, max_tokens=TOKENS, **{"ignore_eos": True, **processors}))
    for i, ((prompt, t), processors) in enumerate(
        zip(itertools.product(PROMPTS, TEMPERATURES), itertools.cycle(PROCESSORS))
    )
]
STRIDE = 37
"""Cases in this stride: all prompts, temperatures and processors alternate, however few are taken."""


@pytest.fixture(
    scope="module", params=["bf16", *(pytest.param(other, marks=pytest.mark.slow) for other in ("fp32", "int8"))]
)
def llm(request: pytest.FixtureRequest) -> LLM:
    return LLM(drafter="none", dtype=request.param, max_batch=8, max_context=512)


@pytest.fixture(scope="module")
def cases(pace: Pace, sixteen_rows: Callable[[], None]) -> list[Case]:
    count = pace.fit(sixteen_rows, 1.5, least=3 * len(DRAFTERS), most=len(CASES))
    tokens = pace.fit(sixteen_rows, 1.0, least=12, most=TOKENS)
    chosen = (CASES[i * STRIDE % len(CASES)] for i in range(count))
    return [(prompt, replace(params, max_tokens=tokens)) for prompt, params in chosen]


@pytest.fixture(scope="module")
def fixed_cases(pace: Pace) -> list[Case]:
    """As many, and as long, on every machine: so are the drafts that are accepted."""
    return [CASES[i * STRIDE % len(CASES)] for i in range(len(CASES) if pace.full else 3 * len(DRAFTERS))]


def decode(llm: LLM, cases: list[Case], **options: Any) -> list[Completion]:
    prompts, params = zip(*cases, strict=True)
    return llm.generate(list(prompts), list(params), **options)


@pytest.fixture(scope="module")
def plain(llm: LLM, cases: list[Case]) -> list[list[int]]:
    return [c.token_ids for c in decode(llm, cases, speculate=False)]


@pytest.fixture(scope="module")
def fixed_plain(llm: LLM, fixed_cases: list[Case]) -> list[list[int]]:
    return [c.token_ids for c in decode(llm, fixed_cases, speculate=False)]


@pytest.fixture(scope="module")
def draft_model(llm: LLM, truncated_model_dir: Path) -> LanguageModel:
    dtype = "fp32" if "float32" in str(llm.model.dtype) else "bf16"  # type: ignore[attr-defined]
    place = placement(device="auto", dtype=dtype, bitwise=None, threads=None, max_batch=8, max_context=512)
    return load_model(open_checkpoint(str(truncated_model_dir), SilentProgress()), place)


class Adversary(Drafter):
    """Random trees of likely and unlikely tokens: what no sane drafter proposes must not matter either."""

    name = "adversary"

    def propose(self, requests: Any, budgets: Any) -> list[Draft]:
        drafts = []
        for request, budget in zip(requests, budgets, strict=True):
            seen = request.tokens[-40:]
            tokens, parents = [], []
            for i in range(min(budget.nodes, 9)):
                tokens.append(seen[(7 * i) % len(seen)] if i % 3 else 198 + i)
                parents.append(i // 2 - 1)
            unique = dict.fromkeys(zip(parents, tokens, strict=True))
            if len(unique) < len(tokens):
                tokens, parents = tokens[:1], [ROOT]
            drafts.append(Draft(tokens, parents, [0.5] * len(tokens), self.name))
        return drafts


@pytest.fixture(scope="module")
def head(llm: LLM, default_checkpoint: Checkpoint) -> DraftHead:
    """The one that comes with the package; until there is one, one made of the target's own last layer."""
    if folder := shipped_head("smollm2-135m"):
        return load_head(folder, llm.model)
    source = dict(default_checkpoint.tensors(torch.float32))
    architecture = Architecture.from_config(default_checkpoint.config)
    return place_head(sensible_head(source, architecture, torch.arange(0, 49152, 6)), llm.model)


class Parts:
    """What the registry's drafters are made of here: nothing."""

    vocab_size = 49152
    remember = True
    has_head = False

    def draft_model(self, path: str) -> LanguageModel:
        raise AssertionError("no draft model was asked for")

    def head(self, path: str) -> DraftHead:
        raise AssertionError("no head was asked for")


def make(name: str, draft_model: LanguageModel, head: DraftHead) -> Drafter:
    if name == "adversary":
        return Adversary()
    if name == "tree":
        return ModelDrafter(draft_model, ModelDrafterConfig(branching=3))
    if name == "model":
        return ModelDrafter(draft_model)
    if name.startswith("head"):
        return HeadDrafter(head, 49152, HeadDrafterConfig(branching=1 if name == "head-chain" else 4))
    return build(name, Parts())


DRAFTERS = [
    ("ngram", 6),
    ("suffix", 12),
    ("model", 4),
    ("tree", 8),
    ("adversary", 9),
    ("head-chain", 5),
    ("head-tree", 16),
]
UNSURE = {"adversary"} if shipped_head("smollm2-135m") else {"adversary", "head-chain", "head-tree"}
"""Drafters that need not be right."""


def compare(
    llm: LLM, cases: list[Case], plain: list[list[int]], drafter: Drafter, length: int, turns: list[int]
) -> tuple[int, int]:
    """Run the cases in batches of 8, 3 and 1; returns how many tokens were compared and how many drafts accepted."""
    llm._engine = Engine(llm.model, drafter, FixedLength(length))
    compared = accepted = 0
    sizes = itertools.cycle([8, 3, 8, 1])
    while turns:
        size = next(sizes)
        group, turns = turns[:size], turns[size:]
        for i, completion in zip(group, decode(llm, [cases[i] for i in group]), strict=True):
            assert completion.token_ids == plain[i], f"{drafter.name}: case {i} differs: {cases[i]}"
            compared += len(completion.token_ids)
            accepted += completion.accepted
    return compared, accepted


def test_same_tokens_as_plain(
    llm: LLM, cases: list[Case], plain: list[list[int]], draft_model: LanguageModel, head: DraftHead
) -> None:
    """Every case with one drafter after the other in turn, all cases and all drafters covered."""
    total = useful = 0
    for turn, (name, length) in enumerate(DRAFTERS):
        turns = list(range(turn, len(cases), len(DRAFTERS)))
        compared, accepted = compare(llm, cases, plain, make(name, draft_model, head), length, turns)
        total += compared
        useful += 0 if name in UNSURE else accepted
    assert total == sum(map(len, plain))
    assert useful > total // 10, "too few accepted drafts for the comparison to mean anything"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), DRAFTERS)
def test_same_tokens_as_plain_with_every_drafter(
    llm: LLM,
    fixed_cases: list[Case],
    fixed_plain: list[list[int]],
    draft_model: LanguageModel,
    head: DraftHead,
    name: str,
    length: int,
) -> None:
    """Every case with every drafter."""
    turns = list(range(len(fixed_cases)))
    compared, accepted = compare(llm, fixed_cases, fixed_plain, make(name, draft_model, head), length, turns)
    assert compared == sum(map(len, fixed_plain))
    assert name in UNSURE or accepted > compared // 20


def test_auto_draft_length(llm: LLM, cases: list[Case], plain: list[list[int]]) -> None:
    """The controller reacts to measured time, so its drafts vary from run to run; the tokens must not."""
    llm._engine = Engine(llm.model, build("auto", Parts()), AutoLength())
    assert [c.token_ids for c in decode(llm, cases[::4])] == plain[::4]
