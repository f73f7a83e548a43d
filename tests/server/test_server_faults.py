"""What clients do wrong, on purpose or not: the right status, nothing lost, and the server still answers."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import psutil
import pytest
from live_server import Live, held, live_server, logged, soon

from outrider import LLM
from outrider.engine.request_state import OutputStream
from outrider.server.run import listen

SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", also="available", remember=False, max_batch=4, max_context=512)


@pytest.fixture(scope="module")
def live(llm: LLM) -> Iterator[Live]:
    with live_server(llm, max_queue=60) as server:
        yield server


@pytest.fixture(autouse=True)
def _still_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every fault the server answers, and holds nothing."""
    yield
    if "live" in request.fixturenames:
        live: Live = request.getfixturevalue("live")
        assert live.settled()
        assert live.post("/v1/chat/completions", **SAY).status_code == 200


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["message"]
    return dict(error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"messages": [}',
        b"\xff\xfe",
        b'{"prompt": "\xc3("}',
        b"[" * 100000,
        b'{"prompt": ' + b"1" * 5000 + b"}",
        b'{"a":' * 200 + b"1" + b"}" * 200,
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_requests(live: Live, path: str, body: bytes) -> None:
    refused(live.http.post(path, content=body, headers={"content-type": "application/json"}), 400)


def test_bodies_of_another_kind_are_refused(live: Live) -> None:
    body = json.dumps(SAY)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        refused(live.http.post("/v1/chat/completions", content=body, headers={"content-type": kind}), 415)


@pytest.mark.parametrize("chunked", [False, True])
def test_ten_megabytes_are_too_many(live: Live, chunked: bool) -> None:
    body = json.dumps({**SAY, "user": "x" * 10_000_000}).encode()
    content: Any = (body[i : i + 65536] for i in range(0, len(body), 65536)) if chunked else body
    answer = live.http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert refused(answer, 413)["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", "0.5", "temperature"),
        ("temperature", True, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", float("nan"), "temperature"),
        ("temperature", float("inf"), "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.5, "top_p"),
        ("top_k", 1.5, "top_k"),
        ("min_p", 2, "min_p"),
        ("frequency_penalty", 3, "frequency_penalty"),
        ("presence_penalty", [], "presence_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -5, "max_tokens"),
        ("max_tokens", 2.0, "max_tokens"),
        ("max_completion_tokens", 5, "max_completion_tokens"),
        ("min_tokens", 99, "min_tokens"),
        ("n", 0, "n"),
        ("n", 10_000, "n"),
        ("n", "2", "n"),
        ("seed", 2**63, "seed"),
        ("seed", 1.5, "seed"),
        ("stop", 5, "stop"),
        ("stop", [1], "stop[0]"),
        ("stop", "", "stop"),
        ("stop", ["x"] * 17, "stop"),
        ("stop_token_ids", [10**9], "stop_token_ids"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("logit_bias", {"1": 101}, "logit_bias"),
        ("logit_bias", {"99999999": 1}, "logit_bias"),
        ("logit_bias", {"1": "a"}, "logit_bias.1"),
        ("logprobs", 3, "logprobs"),
        ("top_logprobs", 3, "top_logprobs"),
        ("stream", "yes", "stream"),
        ("stream_options", 1, "stream_options"),
        ("messages", [], "messages"),
        ("messages", "hi", "messages"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        ("messages", [{"content": "x"}], "messages[0].role"),
        ("messages", [{"role": "function", "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("messages", [{"role": "user", "content": "\ud800"}], "messages"),
        ("messages", [{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ("tools", [{"type": "function"}], "tools[0].function"),
        ("functions", [{}], "functions"),
        ("audio", {"voice": "x"}, "audio"),
        ("modalities", ["text", "audio"], "modalities"),
        ("suffix", "x", "suffix"),
        ("guided_grammar", "x", "guided_grammar"),
        ("guided_json", "[", "guided_json"),
        ("guided_json", {"type": "none"}, "guided_json"),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}, "structured_outputs.choice"),
        ("response_format", {"type": "xml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema.schema"),
        ("prediction", {"type": "content"}, "prediction.content"),
        ("outrider", {"speculat": False}, "outrider.speculat"),
        ("outrider", {"speculate": {"max_nodes": -1}}, "outrider.speculate.max_nodes"),
        ("outrider", {"speculate": {"drafter": "../x"}}, "outrider.speculate.drafter"),
        ("outrider", {"verify": "sloppy"}, "outrider.verify"),
        ("model", 5, "model"),
    ],
)
def test_wrong_values_are_named(live: Live, field: str, value: Any, param: str) -> None:
    body = json.dumps({**SAY, field: value})
    answer = live.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    refused(answer, 400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": ["x"] * 65}, "n"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "n": 2, "best_of": 1}, "best_of"),
        ({"prompt": "x", "best_of": 3, "stream": True}, "stream"),
        ({"prompt": "x", "best_of": 65}, "n"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, "stream"),
        ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_wrong_prompts_are_named(live: Live, body: dict[str, Any], param: str) -> None:
    refused(live.post("/v1/completions", **body), 400, param)


def test_what_a_value_must_be_is_told_as_it_is_written(live: Live) -> None:
    tools = [{"type": "function", "function": {"name": "a b"}}]
    error = refused(live.post("/v1/chat/completions", **SAY, tools=tools), 400, "tools[0].function.name")
    assert error["message"] == "tools[0].function.name: string should match pattern '^[a-zA-Z0-9_.:-]{1,64}$'"


def test_extreme_but_valid_parameters_work(live: Live) -> None:
    for extreme in (
        {"temperature": 1e300},
        {"temperature": 5e-324},
        {"top_p": 1e-300},
        {"repetition_penalty": 100},
        {"repetition_penalty": 0.01},
        {"logit_bias": {str(i): 100 for i in range(1000)}},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"top_k": 10**9},
        {"top_k": 2**40},
        {"max_tokens": 512, "stop": "e"},
        {"best_of": 1, "tools": [], "tool_choice": "none", "modalities": ["text"], "suffix": None},
    ):
        assert live.post("/v1/chat/completions", **{**SAY, **extreme}).status_code == 200, extreme
    for beyond in (1e300, 1e-300):  # what is left of the logits would be no numbers
        refused(live.post("/v1/chat/completions", **{**SAY, "repetition_penalty": beyond}), 400, "repetition_penalty")


def test_unknown_fields_are_ignored_and_logged(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "outrider.server"):
        answer = live.chat(max_tokens=2, user="u", metadata={"a": "secret"}, frobnicate=1)
        line = logged(caplog, answer)
    assert line["ignored_fields"] == ["user", "metadata", "frobnicate"]
    assert line["status"] == 200
    assert line["completion_tokens"] <= 2
    assert "secret" not in json.dumps(line)
    assert "Name a colour" not in json.dumps(line)


def test_request_ids(live: Live) -> None:
    assert live.http.get("/health", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    for bad in ("a" * 65, "a b", "<script>", "é"):
        given = live.http.get("/health", headers={b"x-request-id": bad.encode()}).headers["x-request-id"]
        assert len(given) == 32


def test_places_that_are_not_there(live: Live) -> None:
    refused(live.http.get("/nope"), 404)
    refused(live.http.get("/v1/models/other/../../x"), 404)
    refused(live.http.get("/v1/models/{{7*7}}"), 404, "model")
    refused(live.http.get("/playground/%2e%2e/app.py"), 404)
    answer = live.http.get("/v1/chat/completions")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert "access-control-allow-origin" not in live.http.get("/health", headers={"origin": "http://evil"}).headers


def test_pages_and_health(live: Live) -> None:
    assert live.http.get("/health").json() == {"status": "ready"}
    assert live.http.get("/health?live").json() == {"status": "alive"}
    page = live.http.get("/docs")
    assert "POST /v1/chat/completions" in page.text
    assert "http" not in page.text.replace(live.url, ""), "nothing is loaded from elsewhere"
    assert "ChatRequest" in live.http.get("/openapi.json").json()["components"]["schemas"]


def send(connection: socket.socket, live: Live, body: dict[str, Any]) -> None:
    """A request for text over a bare connection."""
    connection.connect(("127.0.0.1", int(live.url.rpartition(":")[2])))
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def leave_early(live: Live, i: int) -> None:
    with socket.socket() as connection:
        send(connection, live, {"prompt": f"Story {i}:", "max_tokens": 400, "ignore_eos": True, "stream": bool(i % 5)})
        if i % 5 == 1:
            connection.recv(200)
        time.sleep(0.02 * (i % 7))


def test_fifty_clients_that_leave(live: Live) -> None:
    memory = []
    for _ in range(3):
        with ThreadPoolExecutor(50) as pool:
            list(pool.map(lambda i: leave_early(live, i), range(50)))
        assert live.settled()
        memory.append(psutil.Process().memory_info().rss)
    assert memory[2] - memory[1] < 20e6, "what was held is free again"


def test_a_full_queue_says_when_to_come_back(llm: LLM) -> None:
    with live_server(llm, max_queue=1) as small:
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "n": 5, "stream": True}
        passes = count()
        with (
            held(small.llm, lambda batch: next(passes) < 5),  # or they may have ended by the time another asks
            small.http.stream("POST", "/v1/completions", json=body) as taken,
        ):
            pieces = taken.iter_bytes()
            next(pieces)
            answer = small.post("/v1/completions", prompt="y", max_tokens=2)
            assert refused(answer, 429)["code"] == "queue_full"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert small.settled()
        assert small.post("/v1/completions", prompt="y", max_tokens=2).status_code == 200


def test_a_slow_reader_is_cut_off(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing; once the connection's own buffers are full, unread text is held up to a limit only."""
    most, errors = [], []
    take, fail = OutputStream.take, OutputStream.fail

    def watched(self: OutputStream, chunk: Any) -> bool:
        taken = take(self, chunk)
        most.append(len(self._unread))
        return taken

    def told(self: OutputStream, error: Exception) -> None:
        errors.append(str(error))
        fail(self, error)

    monkeypatch.setattr(OutputStream, "take", watched)
    monkeypatch.setattr(OutputStream, "fail", told)
    body = {"prompt": "A", "max_tokens": 450, "ignore_eos": True, "stream": True, "n": 4, "logprobs": 20}
    with live_server(llm, send_buffer=4096) as small, socket.socket() as connection:
        monkeypatch.setattr(small.backend.served().service, "_buffer", 8)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(connection, small, body)
        assert soon(lambda: bool(errors))
        assert small.settled()
    assert "too slowly" in errors[0]
    assert max(most) == 4 * 8


def test_an_api_key(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    with live_server(llm, api_key="s3cret-key") as locked, caplog.at_level(logging.DEBUG):
        for header in ({}, *({b"authorization": key.encode()} for key in ("Bearer wrong", "s3cret-key", "é"))):
            for path in ("/v1/models", "/metrics"):
                answer = locked.http.get(path, headers=header)
                assert refused(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer s3cret-key"}
        assert locked.http.get("/v1/models", headers=right).status_code == 200
        assert locked.http.post("/v1/chat/completions", json=SAY, headers=right).status_code == 200
        assert locked.http.get("/health").status_code == 200
        refused(locked.http.post("/v1/chat/completions", json=SAY), 401)
    assert "s3cret" not in caplog.text


def test_a_port_in_use_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        code = "from outrider.cli.main import main; main()"
        done = subprocess.run([sys.executable, "-c", code, "serve", "--port", port], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"error: port {port} of 127.0.0.1 is in use already; choose another with --port.\n"
