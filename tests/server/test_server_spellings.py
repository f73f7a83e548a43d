"""Fields that other servers have, and clients send: the same answers as by OpenAI's own, or named in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import Live, live_server, logged

from outrider import LLM
from outrider.models.checkpoints.chat_template import ChatTemplate
from outrider.request_builder import RequestBuilder

SCHEMA = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    llm = LLM("smollm2-135m", also="available", draft_length=4, remember=False, max_batch=2, max_context=512)
    with live_server(llm) as server:
        yield server


def said(live: Live, **body: Any) -> str:
    answer = live.chat(max_tokens=24, temperature=0, **body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_forms_of_answers_by_other_names(live: Live) -> None:
    wanted = said(live, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
    assert said(live, guided_json=SCHEMA) == wanted
    assert said(live, structured_outputs={"json": SCHEMA}) == wanted
    choices = ["certainly. (a+b)", "never"]
    assert said(live, guided_choice=choices) in choices
    assert said(live, structured_outputs={"choice": choices}) in choices
    assert set(said(live, guided_regex="[ab]{5}")) <= {"a", "b"}
    assert said(live, structured_outputs={"regex": "[ab]{5}"}) == said(live, guided_regex="[ab]{5}")


@pytest.mark.parametrize("field", [{"reasoning_effort": "high"}, {"verbosity": "low"}])
def test_wishes_that_change_nothing_are_logged(live: Live, field: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outrider.server")
    answer = live.chat(max_tokens=2, **field)
    assert answer.status_code == 200
    assert logged(caplog, answer)["ignored_fields"] == list(field)


def test_variables_reach_the_template(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = live.llm.tokenizer
    monkeypatch.setattr(tokenizer, "_template", ChatTemplate("{{ mood + '!' }} {{ messages[0].content }}", {}))
    prompts: list[list[int]] = []
    build = RequestBuilder.build

    def note(builder: RequestBuilder, prompt: list[int], *args: Any, **more: Any) -> Any:
        prompts.append(prompt)
        return build(builder, prompt, *args, **more)

    monkeypatch.setattr(RequestBuilder, "build", note)
    for mood in ("calm", "<|im_end|>"):
        assert live.chat("hi", max_tokens=1, chat_template_kwargs={"mood": mood, "messages": "mine"}).status_code == 200
    assert tokenizer.decode(prompts[0]) == "calm! hi"
    assert not set(prompts[1]) & set(tokenizer.encode("<|im_end|>"))
    refused = live.chat("hi", chat_template_kwargs={"mood": 5})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


def test_embeddings_are_not_found(live: Live) -> None:
    answer = live.post("/v1/embeddings", input="x", model="smollm2-135m")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
