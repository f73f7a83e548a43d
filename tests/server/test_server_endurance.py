"""Much of everything: hundreds of requests and of hostile connections, and the server is as it was."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from live_server import Live, live_server, soon
from tiny_llm import tiny_llm

WARM, REQUESTS = 250, 500
SLOW, QUICK = 200, 1000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tiny_llm(tmp_path_factory.mktemp("tiny"), also="available", dtype="fp32")) as server:
        yield server


def works(live: Live) -> bool:
    return live.post("/v1/completions", prompt=[30, 31], max_tokens=2).status_code == 200


def ask(live: Live, number: int) -> None:
    """Whole, streamed or broken off, by turns; with prompts, salts and every other one a schema of its own."""
    prompt = [20 + (number * 7 + i * number) % 200 for i in range(40)]
    body = {"prompt": prompt, "max_tokens": 24, "stream": number % 3 > 0, "seed": number, "cache_salt": f"{number}"}
    if number % 2:
        body["guided_json"] = {"type": "object", "properties": {f"p{number}": {"type": "integer"}}}
    with live.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code in (200, 429)
        if number % 3 < 2:
            answer.read()


def test_memory_is_back_after_500_requests(live: Live) -> None:
    def resident() -> int:
        assert live.settled()
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda number: ask(live, number), range(WARM)))
        before = resident()
        list(clients.map(lambda number: ask(live, number), range(WARM, WARM + REQUESTS)))
    assert resident() <= 1.02 * before


@pytest.mark.slow
def test_slow_heads_and_quick_connects_leave_service_to_others(live: Live) -> None:
    slow = [socket.create_connection(("127.0.0.1", live.port)) for _ in range(SLOW)]
    for each in slow:
        each.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    assert works(live)
    for _ in range(QUICK):
        socket.create_connection(("127.0.0.1", live.port)).close()
    assert works(live)
    for each in slow:
        each.close()
    assert soon(lambda: len(live.server.server_state.connections) <= 2)
    assert works(live)
