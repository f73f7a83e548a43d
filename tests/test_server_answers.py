"""What an answer is where the client leaves something open or asks for more than there is."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.mark.parametrize("most", [73, 2**62, 2**63, 10**30])
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
        live.llm.generate(
            [TEXT["prompt"]], SamplingParams(max_tokens=24, seed=11, temperature=temperature), speculate=False
        )[0].text
        for temperature in (0.6, 0.0, 1.0, None)
    ]
    assert [own, cold, hot] == drawn[:3]
    assert len(set(drawn)) == 3
    assert drawn[3] == cold, "the library is greedy unless the model's generation_config says do_sample"
