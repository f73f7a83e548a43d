"""What the caller expects, drafted for the real model: the same text, in fewer steps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, InvalidRequest, SamplingParams
from outrider.core.draft import Speculation
from outrider.core.request import Completion


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(drafter="none", also=("suffix",), draft_length=12, max_batch=3, max_context=768)


def run(llm: LLM, prompt: list[int], params: SamplingParams, speculation: Speculation) -> Completion:
    running = llm.requests.build(prompt, params, speculation=speculation)
    llm.engine.add(running)
    while running.finish_reason is None:
        llm.engine.step()
    return running.completion()


def test_an_edit_in_fewer_steps(llm: LLM) -> None:
    """The answer with a few words changed is the prediction: few steps, the same tokens, and who accepted what."""
    question = Path(__file__).parents[2].joinpath("examples", "edit_function.txt").read_text()
    prompt = llm.encode_chat([{"role": "user", "content": question}])
    params = SamplingParams(temperature=0, max_tokens=90)
    plain = llm.generate([prompt], params, speculate=False)[0]
    expected = list(plain.token_ids)
    edited = [*expected[:20], 198, 198, *expected[21:45], *expected[47:70], 99, *expected[71:]]
    fast = run(llm, prompt, params, Speculation(prediction=tuple(edited)))
    assert fast.token_ids == plain.token_ids
    assert fast.steps * 4 <= plain.steps
    tally = fast.sources["prediction"]
    assert tally.accepted == fast.origins.count("prediction") >= 60
    assert tally.drafted > tally.accepted
    assert sum(fast.acceptance) == fast.steps
    assert sum(n * steps for n, steps in enumerate(fast.acceptance)) == fast.accepted


def test_any_prediction_leaves_the_text_alone(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("Once upon a time there was a")
    for verify, temperature in (("coupled", 1.0), ("coupled", 0.0), ("rejection", 0.0)):
        params = SamplingParams(temperature=temperature, seed=4, max_tokens=10, verify=verify)  # type: ignore[arg-type]
        plain = llm.generate([prompt], replace(params, verify="coupled"), speculate=False)[0].token_ids
        rng = random.Random(1)
        shuffled = [token for token in plain for _ in range(rng.randint(0, 2))]
        for wrong in (plain, shuffled, plain[::-1], [198] * 50):
            for drafter in (None, "suffix"):
                speculation = Speculation(prediction=tuple(wrong), drafter=drafter)
                assert run(llm, prompt, params, speculation).token_ids == plain


def test_what_is_asked_for_is_checked(llm: LLM) -> None:
    for bad in (Speculation(prediction=(10**6,)), Speculation(prediction=(-1,)), Speculation(max_nodes=-1)):
        with pytest.raises(InvalidRequest, match=r"prediction|max_nodes"):
            llm.requests.build("Hi", SamplingParams(), speculation=bad)
    alone = llm.with_drafter("suffix", llm.engine.controller)
    with pytest.raises(InvalidRequest, match="prediction: what with_drafter makes takes none"):
        alone.requests.build("Hi", SamplingParams(), speculation=Speculation(prediction=(1,)))
