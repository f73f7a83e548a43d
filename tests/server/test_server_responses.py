"""POST /v1/responses by the official client: the chat's answers in the newer form, whole and in events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from live_server import Live, live_server
from pydantic import BaseModel

from outrider import LLM

MODEL = "smollm2-135m"
TOOL: Any = {
    "type": "function",
    "name": "get_time",
    "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]},
}


class Sky(BaseModel):
    colour: Literal["blue", "grey"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    llm = LLM(MODEL, also="available", draft_length=4, remember=False, max_batch=2, max_context=1024)
    with live_server(llm) as server:
        yield server


def ask(live: Live, **options: Any) -> Any:
    words = {"model": MODEL, "input": "Name a colour.", "max_output_tokens": 40, "temperature": 0}
    return live.openai.responses.create(**{**words, **options})


def test_the_answer_is_the_chats(live: Live) -> None:
    said = ask(live, instructions="Be brief.")
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    chat = live.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=40, temperature=0)
    assert said.output_text == chat.choices[0].message.content
    assert said.usage.output_tokens == chat.usage.completion_tokens  # type: ignore[union-attr]
    assert said.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
    assert said.status == {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]
    short = ask(live, max_output_tokens=2)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("options", [{}, {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}])
def test_events_say_what_the_whole_answer_says(live: Live, options: Any) -> None:
    whole = ask(live, **options)
    events = list(ask(live, **options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1].response
    assert events[-1].type == f"response.{final.status}"
    assert final.status == whole.status
    assert final.output_text == whole.output_text
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert deltas == whole.output_text
    arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    calls = [item for item in whole.output if item.type == "function_call"]
    assert arguments == "".join(call.arguments for call in calls)
    assert [e.item for e in events if e.type == "response.output_item.done"] == final.output
    assert len(calls) == bool(options)


def test_a_conversation_with_a_call(live: Live) -> None:
    history: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]}]
    named = {"type": "function", "name": "get_time"}
    first = ask(live, input=history, tools=[TOOL], tool_choice=named)
    (call,) = first.output
    assert json.loads(call.arguments)["zone"] in ("UTC", "CET")
    history += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]
    said = ask(live, input=history, tools=[TOOL], tool_choice="none")
    assert said.output_text
    chat: Any = [
        {"role": "user", "content": "What time is it?"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "noon"},
    ]
    same = live.openai.chat.completions.create(model=MODEL, messages=chat, max_tokens=40, temperature=0)
    assert said.output_text == same.choices[0].message.content


def test_structured_output(live: Live) -> None:
    said = live.openai.responses.parse(model=MODEL, input="The sky, as JSON.", text_format=Sky, temperature=0)
    assert isinstance(said.output_parsed, Sky)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"input": "word " * 2000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "none"}}}}, "text.format"),
    ],
)
def test_what_cannot_be_is_refused_by_name(live: Live, change: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(live, **change)
    assert (refused.value.param or "").startswith(param)
