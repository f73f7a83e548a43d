"""Decisions never change tokens: random drafts of random drafters under random costs, and the same text every time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pace import Pace
from tiny_engine import VOCAB, TinyParts
from tiny_models import decoder_of, reference

from outrider import SamplingParams
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.core.draft import ROOT, Draft, Speculation
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.core.request import RequestView
from outrider.core.step import StepShape
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build_router
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.sampling.history import History

TOKENS = 48


class Whim(FixedLength):
    """Another length for every request in every step, and any part of the draft that still is a tree."""

    def __init__(self, seed: int) -> None:
        super().__init__(12)
        self._draw = random.Random(seed)

    def draft(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        tree: bool,
        room: Sequence[int],
        seconds: Mapping[StepShape, float] | None = None,
    ) -> list[Draft]:
        drafts = super().draft(drafter, requests, tree, [min(most, self._draw.randrange(13)) for most in room], seconds)
        return [draft if draft.q is not None else self._some(draft) for draft in drafts]

    def _some(self, draft: Draft) -> Draft:
        kept: list[int] = []
        for node, parent in enumerate(draft.parents):
            if (parent == ROOT or parent in kept) and self._draw.random() < 0.8:
                kept.append(node)
        return draft.only(kept)


def random_table(draw: random.Random) -> CostTable:
    line = sorted(draw.uniform(1e-4, 1e-2) for _ in ROWS)
    cost = {name: DraftCost(draw.uniform(0, 1e-3), draw.uniform(0, 1e-3)) for name in ("head", "model")}
    return CostTable(ROWS, (0, 100), (line, [2 * seconds for seconds in line]), 0.0, cost)


def said(
    model: LanguageModel, drafter: Drafter, controller: Controller, seed: int, names: Sequence[str]
) -> list[list[int]]:
    """Four requests, ragged, greedy and sampled, each with a drafter and perhaps a prediction of its own."""
    draw, whom = random.Random(seed), random.Random(repr(names))
    engine, running = Engine(model, drafter, controller), []
    for number in range(4):
        prompt = draw.choices(range(12), k=draw.randint(1, 30))
        params = SamplingParams(
            temperature=draw.choice([0.0, 0.7, 1.3]), top_p=draw.choice([1.0, 0.9]), seed=seed + number
        )
        told = tuple(draw.choices(range(12), k=20))
        routed = Speculation(drafter=whom.choice([None, *names]), prediction=told) if names else Speculation()
        stream = TextStream(lambda token: b"", (), False)
        resolved = params.resolve({}, (), VOCAB)
        running.append(
            Request(number, prompt, len(prompt), resolved, TOKENS, stream, History(prompt), speculation=routed)
        )
        engine.add(running[-1])
    while not engine.idle:
        engine.step()
    assert engine.leaks() == []
    return [s.tokens[s.prompt_length :] for s in running]


def differences(rounds: int) -> int:
    """How many of the requests of so many rounds say something else with drafts than without."""
    source: Any = reference("llama")
    model = decoder_of(source, "native")
    wrong = 0
    for seed in range(rounds):
        draw = random.Random(seed)
        drafter = build_router("head+suffix:tiny", ["ngram", "model:tiny", "head:tiny"], TinyParts(source, model))
        controller: Controller = AutoLength(table=random_table(draw)) if seed % 2 else Whim(seed)
        plain = said(model, NoDrafter(), FixedLength(0), seed, ())
        wrong += sum(a != b for a, b in zip(said(model, drafter, controller, seed, drafter.names), plain, strict=True))
    return wrong


def test_decisions_never_change_tokens(pace: Pace) -> None:
    """50,000 tokens in full."""
    rounds = pace.fit(lambda: differences(1), 4, least=3, most=50_000 // (4 * TOKENS) + 1)
    assert differences(rounds) == 0
