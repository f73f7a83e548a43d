"""Bodies made to cost time: each is refused or answered soon, and others are answered meanwhile."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import PATIENCE, Live, live_server, logged

from outrider import LLM
from outrider.server.json_size import JsonSize
from outrider.server.parse import MAX_BODY

CHAT = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2'


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server(LLM("smollm2-135m", drafter="none", max_batch=2, max_context=512)) as server:
        yield server


def many(item: bytes, size: int = MAX_BODY - 1000) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def fields(value: bytes, size: int = MAX_BODY - 1000) -> bytes:
    return b",".join(b'"k%d":%b' % (i, value) for i in range(size // (len(value) + 12)))


def schema(properties: bytes) -> bytes:
    head = b',"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{'
    return CHAT + head + properties + b"}}}}}"


BODIES = {
    "numbers as messages": b'{"messages":[' + many(b"1") + b"]}",
    "an unknown list": CHAT + b',"x":[' + many(b"{}") + b"]}",
    "unknown fields": CHAT + b"," + fields(b"1") + b"}",
    "unknown fields of ours": CHAT + b',"outrider":{' + fields(b"1") + b"}}",
    "biases": CHAT + b',"logit_bias":{' + fields(b'"x"') + b"}}",
    "parts": b'{"messages":[{"role":"user","content":[' + many(b'{"type":1}') + b"]}]}",
    "long numbers": CHAT + b',"x":[' + many(b"1" * 4000) + b"]}",
    "decimals": CHAT + b',"x":[' + many(b"1.2345678901234567e-300") + b"]}",
    "many levels": CHAT + b',"x":' + b"[" * (MAX_BODY - 1000),
    "a long stop string": CHAT + b',"stop":"' + b"a" * (MAX_BODY - 1000) + b'"}',
    "escapes": CHAT + b',"stop":"' + b"\\\\" * (MAX_BODY // 2 - 1000) + b'"}',
    "properties": schema(fields(b"true")),
    "fewer properties": schema(fields(b"true", 100_000)),
    "a factor": schema(b'"a":{"type":"integer","multipleOf":999983}'),
}


def post(live: Live, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
    return httpx.post(live.url + path, content=body, headers={"content-type": "application/json"}, timeout=PATIENCE)


def while_others_ask(live: Live, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
    """The answer, once it is there; checks that it did not take long, nor hold up others. In this process's own time,
    so that a busy machine does not matter: what is tested here took ten times as long or more."""
    began = time.process_time()
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=live.url, timeout=PATIENCE) as http:
        answer = pool.submit(post, live, body, path)
        waits: list[float] = []
        while not waits or not answer.done():
            asked = time.process_time()
            assert http.get("/health").status_code == 200
            waits.append(time.process_time() - asked)
            time.sleep(0.01)
        assert max(waits) < 4
        assert time.process_time() - began < 15
        return answer.result()


@pytest.mark.parametrize("name", BODIES)
def test_a_body_made_to_cost_time_does_not(live: Live, name: str) -> None:
    body = BODIES[name]
    assert len(body) <= MAX_BODY
    answer = while_others_ask(live, body)
    assert answer.status_code == (200 if name == "decimals" else 400), answer.text


def test_ten_bodies_at_once_do_not_hold_others_up(live: Live) -> None:
    body = BODIES["numbers as messages"]
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(post, live, body) for _ in range(10)]
        assert while_others_ask(live, CHAT + b"}").status_code == 200
        assert all(answer.result().status_code == 400 for answer in answers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1.5] * 200_000}),
        ("/v1/completions", {"prompt": [[1]] * 100_000}),
        ("/v1/completions", {"prompt": ["x y z"] * 1000}),
        ("/v1/completions", {"prompt": "1" * 80_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<|im_end|>" * 8_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 5000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stop": ["a" * 257]}),
        ("/detokenize", {"tokens": [10**6] * 200_000}),
    ],
)
def test_long_lists_and_texts_within_the_body_limit_are_refused_soon(live: Live, path: str, body: Any) -> None:
    assert while_others_ask(live, json.dumps(body).encode(), path).status_code == 400


def test_the_longest_of_lists_is_taken(live: Live) -> None:
    answer = while_others_ask(live, json.dumps({"tokens": [5] * 200_000}).encode(), "/detokenize")
    assert answer.status_code == 200
    factor = while_others_ask(live, schema(b'"a":{"type":"integer","multipleOf":0.25}'))
    assert factor.status_code == 200


@given(
    st.recursive(
        st.none() | st.integers() | st.text('a"\\[]{},:\n', max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\[{:', max_size=4), inner, max_size=4),
        max_leaves=20,
    )
)
def test_shapes_are_those_of_what_is_parsed(data: Any) -> None:
    def count(part: Any) -> tuple[int, int, int]:
        """Levels, items (with an empty list or object counted as one), keys."""
        if not isinstance(part, list | dict):
            return 0, 0, 0
        below = [count(item) for item in (part.values() if isinstance(part, dict) else part)]
        return (
            1 + max((levels for levels, _, _ in below), default=0),
            max(1, len(part)) + sum(items for _, items, _ in below),
            (len(part) if isinstance(part, dict) else 0) + sum(keys for _, _, keys in below),
        )

    shape = JsonSize.of(json.dumps(data, ensure_ascii=False).encode())
    assert (shape.levels, shape.items, shape.keys) == count(data)


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ({"temperature": "my secret"}, {"param": "temperature", "reason": "float_type"}),
        ({"messages": [{"role": "my secret"}]}, {"param": "messages[0].role", "reason": "literal_error"}),
        ({"messages": [{"role": "user", "content": {"my secret": 1}}]}, {"param": "messages[0].content"}),
        ({"logit_bias": {"my secret": 1}}, {"param": "logit_bias", "reason": "refused"}),
        ({"logit_bias": {"my secret": "x"}}, {"param": "logit_bias.*", "reason": "float_type"}),
        ({"outrider": {"my secret": 1}}, {"param": "outrider.*", "reason": "extra_forbidden"}),
        ({"functions": ["my secret"]}, {"param": "functions", "reason": "not supported"}),
        ({"tools": ["my secret"]}, {"param": "tools[0]", "reason": "model_type"}),
        ({"top_p": 7}, {"param": "top_p", "reason": "refused"}),
        ({"logprobs": True, "top_logprobs": 50}, {"param": "top_logprobs", "reason": "refused"}),
        ({"max_tokens": 0}, {"param": "max_tokens", "reason": "refused"}),
        ({"max_completion_tokens": 0}, {"param": "max_completion_tokens", "reason": "refused"}),
        ({"messages": []}, {"param": "messages", "reason": "too_short"}),
        (["my secret"], {"reason": "not an object"}),
        (b'{"my secret', {"reason": "not JSON"}),
        (b'"\xff"', {"reason": "not UTF-8"}),
        (b"[" * 99, {"reason": "too many levels"}),
        ({"messages": [{"role": "user", "content": "x " * 9999}]}, {"reason": "context_length_exceeded"}),
    ],
)
def test_a_refusal_is_logged_with_where_and_why_but_not_what(
    live: Live, body: Any, facts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    if isinstance(body, dict):
        body = {"messages": [{"role": "user", "content": "Hi"}], **body}
    with caplog.at_level(logging.INFO, "outrider.server"):
        answer = post(live, body if isinstance(body, bytes) else json.dumps(body).encode())
        line = logged(caplog, answer)
    assert answer.status_code == 400
    assert facts.items() <= line.items()
    assert "secret" not in json.dumps(line)
