"""Drafting what the caller expects: following, losing and finding the place again; the same text, sooner."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from toy import Sequence_, request, resolved

from outrider import LLM, InvalidRequest, SamplingParams
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Commit
from outrider.core.request import Completion
from outrider.drafters.prediction import PredictionDrafter

TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]


def predicted(*tokens: int) -> tuple[PredictionDrafter, Sequence_]:
    seq = request((1, 2), resolved())
    seq.speculation = Speculation(prediction=tokens)
    drafter = PredictionDrafter()
    drafter.open(seq)
    return drafter, seq


def next_draft(drafter: PredictionDrafter, seq: Sequence_, *tokens: int) -> list[int]:
    """What is drafted once the output has grown by `tokens`, one step each."""
    for token in tokens:
        seq.push([token])
        drafter.observe([Commit(seq, Draft(), (), (token,))])
    return list(drafter.propose([seq], [Budget(4, 4)])[0].tokens)


def test_follows_and_ends() -> None:
    drafter, seq = predicted(*TEXT)
    assert next_draft(drafter, seq) == [10, 11, 12, 13]
    assert next_draft(drafter, seq, 10, 11, 12) == [13, 14, 15, 16]
    assert next_draft(drafter, seq, *range(13, 22)) == [22, 23]
    assert next_draft(drafter, seq, 22, 23) == []
    assert next_draft(drafter, seq, 99) == []


@pytest.mark.parametrize(
    ("written", "drafted"),
    [
        ([10, 11, 12, 99], []),
        ([10, 11, 12, 99, 14], [15, 16, 17, 18]),  # one replaced
        ([10, 11, 12, 97, 98, 99, 13], [14, 15, 16, 17]),  # three put in
        ([10, 11, 12, 17], [18, 19, 20, 21]),  # four left out
        ([10, 11, 12, 99, 98, 11], []),  # going back takes more than one token
        ([10, 11, 12, 13, 14, 99, 10, 11, 12], [13, 14, 15, 16]),  # said again
    ],
)
def test_finds_its_place_again(written: list[int], drafted: list[int]) -> None:
    drafter, seq = predicted(*TEXT)
    assert next_draft(drafter, seq, *written) == drafted


def test_prefers_the_longest_match_then_the_nearest_ahead() -> None:
    text = [5, 6, 50, 51, 5, 6, 60, 61, 7, 6, 70, 71]
    drafter, seq = predicted(*text)
    assert next_draft(drafter, seq, 5, 6, 50, 51, 99, 6) == [60, 61, 7, 6]
    drafter, seq = predicted(*text)
    assert next_draft(drafter, seq, 5, 6, 50, 51, 99, 7, 6) == [70, 71]
    far = [1, 2, 3, *range(100, 160), 8, 9, 30, 31]
    drafter, seq = predicted(*far)
    assert next_draft(drafter, seq, 1, 2, 3, 77, 8) == [], "one token is too little for a leap"
    assert next_draft(drafter, seq, 9) == [30, 31]


def test_budget_and_confidence() -> None:
    drafter, seq = predicted(*TEXT)
    sure = drafter.propose([seq], [Budget(6, 3)])[0]
    assert len(sure) == 3
    assert list(sure.confidence) == sorted(sure.confidence, reverse=True)
    next_draft(drafter, seq, 10, 11, 99, 13)
    unsure = drafter.propose([seq], [Budget(6, 6)])[0]
    assert unsure.confidence[0] < 0.5 < sure.confidence[0]
    assert len(drafter.propose([seq], [Budget(6, 6, floor=0.2)])[0]) < len(unsure)
    assert not drafter.propose([seq], [Budget(0, 0)])[0]
    drafter.close(seq)
    plain = request((1, 2), resolved())
    drafter.open(plain)
    assert not drafter.propose([plain], [Budget(4, 4)])[0]
    drafter.close(plain)


def test_long_and_repetitive_predictions_stay_cheap() -> None:
    """Nothing but one token, always lost: places are compared up to a bound."""
    drafter, seq = predicted(*[3, 4] * 20_000)
    rng = random.Random(0)
    for _ in range(300):
        next_draft(drafter, seq, rng.choice([3, 4, 5]))


# ---- the real model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(drafter="none", also=("suffix",), draft_length=12, max_batch=3, max_context=768)


def run(llm: LLM, prompt: list[int], params: SamplingParams, speculation: Speculation) -> Completion:
    running = llm.request(prompt, params, speculation=speculation)
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
            llm.request("Hi", SamplingParams(), speculation=bad)
    alone = llm.with_drafter("suffix", llm.engine.controller)
    with pytest.raises(InvalidRequest, match="prediction: what with_drafter makes takes none"):
        alone.request("Hi", SamplingParams(), speculation=Speculation(prediction=(1,)))
