"""Connections that say nothing, read nothing, or are simply too many: each is let go of, and the others are served."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from live_server import PATIENCE, Live, live_server, soon

from outrider import LLM
from outrider.server.connections import Connection, ConnectionLimits

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
LONG: dict[str, Any] = {"prompt": "A", "max_tokens": 4000, "ignore_eos": True, "n": 4}
FLOOD: dict[str, Any] = {**LONG, "prompt": " " * 2048, "n": 64, "stream": True, "echo": True}
"""Of few tokens, but there is much to read at once: the prompt 64 times. Four choices are computed at a time."""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", drafter="none", max_batch=4, max_context=4100)


@pytest.fixture(scope="module")
def live(llm: LLM) -> Iterator[Live]:
    """With little patience, and buffers that are soon full."""
    limits = ConnectionLimits(head=2, idle=2, window=1.0, least=16 << 10)
    with live_server(llm, limits=limits, send_buffer=4096) as server:
        yield server
        assert server.settled()


def connect(live: Live, source: str = "127.0.0.1", buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(PATIENCE)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", live.port))
    return connection


def ask(connection: socket.socket, **body: Any) -> None:
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def hung_up(connection: socket.socket, drip: bytes = b"") -> bool:
    """Whether the server closes the connection, though a byte comes now and then."""
    connection.settimeout(0.1)
    deadline = time.monotonic() + PATIENCE
    for i in range(100_000):
        if time.monotonic() > deadline:
            return False
        try:
            if drip:
                connection.sendall(drip[i % len(drip) :][:1])
            if not connection.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def served(live: Live) -> list[Connection]:
    return [each for each in list(live.server.server_state.connections) if isinstance(each, Connection)]


def full(live: Live) -> bool:
    """Whether the server waits for a reader."""
    return any(each.flow.write_paused for each in served(live))


def endings(caplog: pytest.LogCaptureFixture) -> list[str]:
    facts = [getattr(record, "facts", {}) for record in caplog.records]
    return [fact["ended"] for fact in facts if "ended" in fact]


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_with_its_buffer_full_is_cancelled(llm: LLM, reset: bool, caplog: Any) -> None:
    with live_server(llm, send_buffer=4096) as patient, caplog.at_level(logging.INFO, "outrider.server"):
        connection = connect(patient, buffer=4096)
        ask(connection, **FLOOD)
        assert soon(lambda: full(patient))
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        assert patient.settled()
        assert soon(lambda: endings(caplog)[-1:] == ["client left"])


@pytest.mark.parametrize("piece", [0, 64])
def test_a_reader_that_stalls_or_trickles_is_cut_off(live: Live, piece: int, caplog: Any) -> None:
    with connect(live, buffer=4096) as connection, caplog.at_level(logging.INFO, "outrider.server"):
        ask(connection, **FLOOD)
        assert soon(lambda: full(live) or bool(endings(caplog)))
        connection.settimeout(0.05)

        def cut() -> bool:
            if piece:
                with suppress(OSError):
                    connection.recv(piece)
            return not served(live)

        assert soon(cut)
        assert live.settled()
        assert soon(lambda: endings(caplog)[-1:] == ["reader stalled"])


def test_a_reader_that_keeps_up_with_the_least_rate_is_not_cut_off(llm: LLM) -> None:
    """It is slower than the text, but in every window takes what it must."""
    window = 3.0
    with (
        live_server(llm, send_buffer=4096, limits=ConnectionLimits(window=window, least=1)) as slow,
        connect(slow, buffer=4096) as connection,
    ):
        ask(connection, **FLOOD)
        assert soon(lambda: full(slow))
        until = time.monotonic() + 2.5 * window
        while time.monotonic() < until:
            assert connection.recv(2048)
            time.sleep(0.01)
        assert served(slow)


def test_what_is_left_unread_after_an_answer_does_not_keep_a_connection(live: Live) -> None:
    with connect(live, buffer=4096) as connection:
        before = live.server.server_state.total_requests
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert soon(lambda: live.server.server_state.total_requests > before)
        assert soon(lambda: not served(live))


def test_a_client_that_sends_ahead_and_leaves_is_cancelled(live: Live) -> None:
    with connect(live) as connection:
        ask(connection, **LONG)
        service = live.backend.served().service
        assert soon(lambda: service.load.stats.running > 0)
        connection.sendall(HEAD)
        time.sleep(0.2)
    assert live.settled()


@pytest.mark.parametrize("drip", [b"", HEAD + b"X-Slow: " + b"a" * 5000])
def test_a_connection_without_a_request_is_closed(live: Live, drip: bytes) -> None:
    with connect(live) as connection:
        assert hung_up(connection, drip)


@pytest.mark.parametrize("drip", [b"", HEAD + b"X-Slow: " + b"a" * 5000])
def test_a_connection_is_closed_some_time_after_its_answer(live: Live, drip: bytes) -> None:
    with connect(live) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert hung_up(connection, drip)


def test_a_body_that_goes_on_after_its_answer_is_not_waited_for(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert hung_up(connection, b"x" * 5000)


def test_what_is_no_http_is_told_so_in_our_form(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"nosniff" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_body_that_ends_in_no_http_is_no_fault_of_the_server_s(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """It is answered while the application is about to: its answer is then nobody's."""
    with connect(live) as connection, caplog.at_level(logging.INFO, "outrider.server"):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"no length\r\n")
        assert b"this is not HTTP that can be read" in connection.recv(65536)
        assert hung_up(connection)
        assert soon(lambda: any(record.getMessage() == "request" for record in caplog.records))
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_connections_are_limited_in_all_and_per_address(llm: LLM, caplog: Any) -> None:
    with live_server(llm, limits=ConnectionLimits(connections=4, per_address=3)) as live:
        _check_limits(live, caplog)


def _check_limits(live: Live, caplog: Any) -> None:
    def is_served(connection: socket.socket) -> bool:
        connection.sendall(HEAD + b"\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200")

    def is_refused(connection: socket.socket) -> bool:
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
        assert b"retry-after: 1" in head.lower()
        return bool(json.loads(body)["error"]["code"] == "too_many_connections")

    with ExitStack() as stack, caplog.at_level(logging.WARNING, "outrider.server"):

        def another(source: str) -> socket.socket:
            return stack.enter_context(connect(live, source))

        assert all(is_served(another("127.0.0.1")) for _ in range(3))
        assert is_refused(another("127.0.0.1")), "one address has all it may"
        assert is_served(another("127.0.0.2"))
        assert is_refused(another("127.0.0.3")), "all are taken"
    assert [record.message for record in caplog.records] == ["too many connections"], "said once"
    assert soon(lambda: not served(live))
    with connect(live) as connection:
        assert is_served(connection)


def test_running_out_of_files_is_said_once_and_passes(llm: LLM, caplog: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # files that are let go of later would be there for connections
    with live_server(llm) as server, ExitStack() as stack, caplog.at_level(logging.WARNING):
        clients = [stack.enter_context(socket.socket()) for _ in range(8)]
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            for client in clients:
                client.settimeout(PATIENCE)
                client.connect(("127.0.0.1", server.port))
            assert soon(lambda: bool(caplog.records))
            time.sleep(1.5)  # asyncio tries again after a second
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        clients[0].sendall(HEAD + b"\r\n")
        assert clients[0].recv(65536).startswith(b"HTTP/1.1 200")
    assert [record.message for record in caplog.records] == ["no connection can be accepted"]


def test_answers_are_sent_without_delay(llm: LLM) -> None:
    """Nagle's algorithm holds the second of two small packets back until the first is acknowledged, 40 ms later."""
    with live_server(llm) as live, connect(live) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(65536)
        accepted = served(live)[0].transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
