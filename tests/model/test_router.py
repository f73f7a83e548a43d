"""Requests that choose their drafter, together in one engine: each gets what it gets alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prompts import PROMPTS

from outrider import LLM, DrafterError, InvalidRequest, SamplingParams
from outrider.control.auto import AutoLength
from outrider.core.draft import Speculation
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build_router
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.llm import over_engine


@pytest.fixture(scope="module", params=["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def llm(request: pytest.FixtureRequest) -> LLM:
    return LLM(also=("head", "suffix", "ngram"), draft_length=8, dtype=request.param, max_batch=8, max_context=384)


def speculations(llm: LLM, answers: list[list[int]]) -> list[Speculation]:
    return [
        Speculation(),
        Speculation(drafter="head"),
        Speculation(drafter="suffix", max_nodes=3),
        Speculation(max_nodes=0),
        Speculation(drafter="none"),
        Speculation(drafter="head", prediction=tuple(answers[5])),
        Speculation(drafter="ngram", prediction=tuple(answers[6][4:])),
        Speculation(drafter="auto", max_nodes=1),
    ]


def mixed_params() -> list[SamplingParams]:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "repetition_penalty": 1.2},
        {"temperature": 1.0},
        {"temperature": 0.0},
        {"temperature": 0.0, "verify": "rejection"},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.0},
    ]
    return [SamplingParams(seed=i, max_tokens=12 + i, **kind) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]


def together(engine: Engine, requests: list[Request]) -> None:
    for request in requests:
        engine.add(request)
    while any(s.finish_reason is None for s in requests):
        engine.step()


@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
def test_a_mixed_batch_gives_each_what_it_gets_alone(llm: LLM, auto: bool) -> None:
    params, prompts = mixed_params(), PROMPTS[:8]
    plain = llm.generate(prompts, [replace(p, verify="coupled") for p in params], speculate=False)
    answers = [c.token_ids for c in plain]
    engine = Engine(llm.model, llm.engine.drafter, AutoLength()) if auto else llm.engine
    asked = speculations(llm, answers)
    running = [llm.requests.build(t, p, speculation=s) for t, p, s in zip(prompts, params, asked, strict=True)]
    together(engine, running)
    done = [s.completion() for s in running]
    assert [c.token_ids for c in done] == answers
    assert all(sum(c.acceptance) == c.steps for c in done)
    if auto:
        return
    assert not done[3].sources
    assert not done[4].sources
    assert set(done[1].sources) <= {"head"}
    assert set(done[2].sources) <= {"suffix"}
    assert done[5].sources["prediction"].accepted > 8
    assert set(done[5].origins) <= {"prediction", "head", "target"}
    for completion, most in ((done[2], 3), (done[7], 1)):
        assert completion.drafted <= most * completion.steps
        assert len(completion.acceptance) <= most + 1


def test_rejection_beside_coupled_requests(llm: LLM) -> None:
    """Its draws depend on nothing but its own drafts: alone and in company the same tokens with a fixed budget."""
    params = SamplingParams(temperature=1.0, seed=9, max_tokens=14, verify="rejection")
    speculation = Speculation(drafter="head")
    alone = llm.requests.build(PROMPTS[0], params, speculation=speculation)
    together(llm.engine, [alone])
    again = llm.requests.build(PROMPTS[0], params, speculation=speculation)
    others = [llm.requests.build(text, SamplingParams(temperature=1.0, seed=3, max_tokens=14)) for text in PROMPTS[1:4]]
    together(llm.engine, [again, *others])
    assert again.tokens == alone.tokens


def test_unknown_drafters_are_refused_when_asked(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="there is no 'magic' here; choose auto, head"):
        llm.requests.build("Hi", SamplingParams(), speculation=Speculation(drafter="magic"))
    plain = over_engine(llm, Engine(llm.model, NoDrafter(), AutoLength()))
    assert plain.drafters == ("none",)
    assert plain.requests.build("Hi", SamplingParams(), speculation=Speculation(drafter="none")).room == 0


def test_heads_are_shared(llm: LLM) -> None:
    router = llm.engine.drafter
    assert router.default.head.head is router._named["head"].head  # type: ignore[attr-defined]
    with pytest.raises(DrafterError, match="only one head"):
        build_router("head", ["head+suffix:elsewhere"], llm._parts)
    with pytest.raises(DrafterError, match="could not tell it"):
        build_router("head", ["head:elsewhere"], llm._parts)
