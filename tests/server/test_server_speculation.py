"""Speculation as clients ask for it, see it and feed it predictions; no answer changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import Live, live_server

from outrider import LLM

MODEL = "smollm2-135m"
MESSAGES: Any = [{"role": "user", "content": "Write one sentence about rivers."}]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Drafts have a fixed length: whether they pay is the machine's to say, and nothing here may depend on it."""
    llm = LLM(MODEL, also="available", draft_length=4, remember=False, max_batch=2, max_context=512)
    with live_server(llm) as server:
        yield server


def test_speculation_is_the_clients_to_control_and_to_see(live: Live) -> None:
    options: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 32, "temperature": 0}
    plain = live.openai.chat.completions.create(**options, extra_body={"outrider": {"speculate": False, "trace": True}})
    guess: Any = {"type": "content", "content": plain.choices[0].message.content}
    traced = live.openai.chat.completions.create(**options, prediction=guess, extra_body={"outrider": {"trace": True}})
    assert traced.choices[0].message.content == plain.choices[0].message.content
    for answer in (traced, plain):
        trace, measured = answer.choices[0].model_extra["outrider"], answer.model_extra["metrics"]
        counts = measured["speculative_decoding"]
        assert len(trace["tokens"]) == answer.usage.completion_tokens
        assert len(trace["steps"]) == counts["steps"]
        assert sum(len(step["drafted"]) for step in trace["steps"]) == counts["drafted_tokens"]
        assert sum(step["accepted"] for step in trace["steps"]) == counts["accepted_tokens"]
        assert sum(token["kind"] == "drafted" for token in trace["tokens"]) == counts["accepted_tokens"]
        assert all((token["origin"] == "target") == (token["kind"] != "drafted") for token in trace["tokens"])
        assert all(step["seconds"] > 0 for step in trace["steps"])
    assert traced.model_extra["metrics"]["speculative_decoding"]["accepted_tokens"] > 0
    assert plain.model_extra["metrics"]["speculative_decoding"]["drafted_tokens"] == 0
    narrow = {"outrider": {"speculate": {"max_nodes": 1, "drafter": "auto"}, "trace": True}}
    chunks = list(live.openai.chat.completions.create(**options, extra_body=narrow, stream=True))
    steps = [c.choices[0].model_extra["outrider"]["step"] for c in chunks if "outrider" in c.choices[0].model_extra]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == plain.choices[0].message.content
    assert max(len(step["drafted"]) for step in steps) <= 1
    assert len(steps) == chunks[-1].model_extra["metrics"]["speculative_decoding"]["steps"]
    off = {"outrider": {"speculate": {"drafter": "none"}, "verify": "rejection"}}
    assert live.openai.chat.completions.create(**options, extra_body=off).choices[0].message.content


def test_a_request_may_name_its_drafter(live: Live) -> None:
    first: Any = live.openai.models.list().data[0]
    served = first.model_extra["outrider"]
    assert {"auto", "none", "suffix", "head"} <= set(served["drafters"])
    texts = set()
    for name in served["drafters"]:
        answer = live.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=24,
            seed=7,
            extra_body={"outrider": {"speculate": {"drafter": name}}},
        )
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        live.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={"outrider": {"speculate": {"drafter": "oracle"}}}
        )
    assert refused.value.param == "outrider.speculate.drafter"


def test_predicted_outputs_are_drafted_and_counted(live: Live) -> None:
    """The prediction is the answer with an edit in the middle: drafting finds its way back after it."""
    words: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 48, "temperature": 0.0}
    expected = live.openai.chat.completions.create(**words, extra_body={"outrider": {"speculate": False}})
    text = expected.choices[0].message.content or ""
    middle = len(text) // 2
    guess = text[:middle] + " entirely otherwise " + text[middle:]
    answer = live.openai.chat.completions.create(**words, prediction={"type": "content", "content": guess})
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > answer.usage.completion_tokens // 3
    assert (details.rejected_prediction_tokens or 0) > 0
    assert answer.model_extra["metrics"]["speculative_decoding"]["steps"] < answer.usage.completion_tokens // 2


def test_a_prediction_is_tried_whether_or_not_drafting_pays(live: Live) -> None:
    """The second step is the only one that may draft here, and the first with a pass of its own of an engine that knows
    nothing yet."""
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, "temperature": 0}
    said = live.openai.chat.completions.create(**asked).choices[0].message.content
    llm = LLM(MODEL, also="available", remember=False, max_batch=1, max_context=256)
    with live_server(llm) as fresh:
        for _ in range(2):
            guess: Any = {"type": "content", "content": f"{said} flow."}
            answer = fresh.openai.chat.completions.create(**asked, prediction=guess)
            assert answer.usage is not None
            details = answer.usage.completion_tokens_details
            assert details is not None
            assert (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0) == 1
