"""What an answer is where the client leaves something open or asks for more than there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from live_server import Live, live_server

from outrider import LLM, SamplingParams

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"prompt": "The sea"}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(drafter="suffix", also="available", draft_length=4, remember=False, max_batch=4, max_context=72)


@pytest.fixture(scope="module")
def live(llm: LLM) -> Iterator[Live]:
    with live_server(llm) as server:
        yield server


@pytest.mark.parametrize("most", [73, 10**30, *(pytest.param(most, marks=pytest.mark.slow) for most in (2**62, 2**63))])
@pytest.mark.parametrize(
    ("path", "asked", "name"),
    [
        ("/v1/chat/completions", CHAT, "max_tokens"),
        ("/v1/chat/completions", CHAT, "max_completion_tokens"),
        ("/v1/completions", TEXT, "max_tokens"),
    ],
)
def test_more_tokens_than_fit_end_with_the_context(
    live: Live, path: str, asked: dict[str, Any], name: str, most: int
) -> None:
    answer = live.post(path, **asked, **{name: most}, ignore_eos=True, temperature=0)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == 72


def test_a_temperature_not_given_is_the_models_own(live: Live) -> None:
    """0.6 for the default model, also where its folder was converted before that was known."""
    assert live.llm.generation_config["temperature"] == 0.6
    own, cold, hot = (
        live.post("/v1/completions", **TEXT, max_tokens=24, seed=11, **given).json()["choices"][0]["text"]
        for given in ({}, {"temperature": 0}, {"temperature": 1.0})
    )
    drawn = [
        live.alone.generate([TEXT["prompt"]], SamplingParams(max_tokens=24, seed=11, temperature=temperature))[0].text
        for temperature in (0.6, 0.0, 1.0, None)
    ]
    assert [own, cold, hot] == drawn[:3]
    assert len(set(drawn)) == 3
    assert drawn[3] == cold, "the library is greedy unless the model's generation_config says do_sample"


def structured(schema: dict[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {**CHAT, "response_format": wanted, "temperature": 0, "max_tokens": 30}


def kinds(count: int) -> dict[str, Any]:
    """More than 2,000 kinds of lists are too many for llguidance, which it notices after the bracket. The server takes
    schemas of that size."""
    return {"anyOf": [{"const": [f"k{i}"]} for i in range(count)]}


def holding(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": value}, "required": ["x"], "additionalProperties": False}


def test_a_schema_too_large_is_refused(live: Live) -> None:
    answer = live.post("/v1/chat/completions", **structured(kinds(2030)))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "response_format"
    assert "too large" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_schema_that_turns_out_too_large_is_an_error_and_never_a_stop(live: Live) -> None:
    """Inside another object nobody sees it before the model gets there. Whoever is beside it goes on."""
    late = structured(holding(kinds(2030)))
    beside = {**TEXT, "max_tokens": 60, "ignore_eos": True, "seed": 5}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(live.post, "/v1/completions", **beside)
        whole = live.post("/v1/chat/completions", **late, n=2)
        assert whole.status_code == 500, whole.text
        error = whole.json()["error"]
        assert (error["type"], "grammar: it is too large" in error["message"]) == ("server_error", True)
        events = live.post("/v1/chat/completions", **late, stream=True).text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        *before, last = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        assert "too large" in last["error"]["message"]
        assert [each["choices"][0]["finish_reason"] for each in before] == [None] * len(before)
        text = other.result().json()["choices"][0]["text"]
    assert text == live.post("/v1/completions", **beside).json()["choices"][0]["text"]


def test_a_pattern_too_long_to_finish_is_cut_like_any_other_text(live: Live) -> None:
    answer = live.post("/v1/chat/completions", **structured(holding({"type": "string", "pattern": "^a{50000}$"})))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"
