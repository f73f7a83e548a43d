"""Under load, with drafts that are really accepted, every answer is the one it would have been alone and undrafted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import Live, live_server

from outrider import LLM

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LEAST = 500
"""Drafted tokens to be accepted, or the test says nothing."""
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "occupation": {"enum": ["lighthouse keeper", "cartographer", "glassblower"]},
        "favourite_colours": {
            "type": "array",
            "items": {"enum": ["vermilion", "turquoise"]},
            "minItems": 3,
            "maxItems": 3,
        },
    },
    "required": ["first_name", "occupation", "favourite_colours"],
}
TOOL = {"type": "function", "function": {"name": "register_inhabitant", "parameters": PERSON}}


def chat(words: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": words}], "max_tokens": 48, **more}


def requests() -> list[tuple[str, dict[str, Any]]]:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    called: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 96,
    }
    return [
        *(chat("Invent a person.", response_format=form, max_tokens=96, seed=seed) for seed in (1, 2)),
        *(chat("Register somebody.", **called, seed=seed) for seed in (3, 4)),
        chat("Name three rivers.", n=3, seed=5, temperature=0.9),
        chat("Write about a lighthouse.", n=3, seed=6, temperature=0.7, top_p=0.9),
        chat("Repeat ten times: the sea is calm.", temperature=0),
        (TEXT, {"prompt": "one two three one two three one two", "max_tokens": 48, "temperature": 0}),
        (TEXT, {"prompt": "The colours of the rainbow are", "max_tokens": 48, "seed": 7, "temperature": 1.2, "n": 2}),
    ]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    llm = LLM(drafter="suffix", also="available", draft_length=8, bitwise=True, max_batch=6, max_context=320)
    with live_server(llm) as server:
        yield server


def said(answer: dict[str, Any]) -> list[Any]:
    """What an answer says, less the ids that are drawn for calls."""
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or ():
            del call["id"]
    return [[choice.get("message", choice.get("text")), choice["finish_reason"]] for choice in answer["choices"]]


def texts(answer: dict[str, Any]) -> str:
    """Of the first choice: what it is then expected to say again."""
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


def expecting(body: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The request with a prediction of its answer, which all its choices draft from."""
    text = texts(before)
    return {**body, "prediction": {"type": "content", "content": text}} if text else body


@pytest.mark.slow
def test_answers_under_load_are_those_of_plain_decoding_alone(live: Live) -> None:
    asked = requests()
    alone = []
    for path, body in asked:
        answer = live.http.post(path, json={**body, "outrider": {"speculate": False}})
        assert answer.status_code == 200, answer.text
        alone.append(answer.json())
    assert sum(each["metrics"]["speculative_decoding"]["accepted_tokens"] for each in alone) == 0
    order = [i for i in range(len(asked)) for _ in range(2)]
    random.Random(3).shuffle(order)

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=live.url, timeout=300) as client:
            return await asyncio.gather(
                *(client.post(asked[i][0], json=expecting(asked[i][1], alone[i])) for i in order)
            )

    answers = [answer.json() for answer in asyncio.run(together())]
    expected = [said(each) for each in alone]
    for i, answer in zip(order, answers, strict=True):
        assert said(answer) == expected[i], asked[i]
    accepted = [answer["metrics"]["speculative_decoding"]["accepted_tokens"] for answer in answers]
    assert sum(accepted) >= LEAST
    for kind, mine in (("schemas", (0, 1)), ("tools", (2, 3)), ("several choices", (4, 5))):
        assert any(count for i, count in zip(order, accepted, strict=True) if i in mine), kind
