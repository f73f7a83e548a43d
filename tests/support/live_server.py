"""A real server on a free port of this machine, for tests to talk to."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from openai import OpenAI

from outrider import LLM
from outrider.control.controller import FixedLength
from outrider.engine.turns import Turns
from outrider.server.app import make_app
from outrider.server.backend import Backend
from outrider.server.connections import ConnectionLimits
from outrider.server.hosts import names
from outrider.server.keys import Keys, OneKey
from outrider.server.logs import JsonLines
from outrider.server.models import Models
from outrider.server.run import Server, listen

PATIENCE = 120.0
"""Seconds, for a machine that is busy with something else: waiting for what does come takes no longer."""


def soon(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def logged(caplog: pytest.LogCaptureFixture, answer: httpx.Response) -> dict[str, Any]:
    """The server's line on this answer, which it may write after the client has read it."""
    mine = answer.headers["x-request-id"]

    def lines() -> list[dict[str, Any]]:
        every = (json.loads(JsonLines().format(record)) for record in list(caplog.records))
        return [line for line in every if line.get("request_id") == mine]

    assert soon(lambda: bool(lines()))
    return lines()[-1]


class Live:
    """The server's address, its parts, and ways to talk to it."""

    models: Models
    watched: str
    """Where the metrics are for those who run the server."""

    def __init__(self, port: int, llm: LLM, alone: LLM, backend: Backend, server: Server) -> None:
        self.port = port
        self.url = url = f"http://127.0.0.1:{port}"
        self.llm = llm
        self.alone = alone
        """The same weights, decoding plainly without the server; only while that is idle."""
        self.backend = backend
        self.server = server
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)
        self.openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, content: str = "Name a colour.", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **body)

    def settled(self) -> bool:
        """Whether everything is let go of, soon."""
        service = self.backend.served().service
        # The load is as of the last step, the engine's own state as of now.
        return soon(lambda: not service.open and self.llm.engine.idle and service.load.stats.running == 0)

    def metric(self, name: str) -> float:
        """The sum over a metric's labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"outrider:{name}{{"))


@contextmanager
def held(llm: LLM, may: Callable[[Sequence[Any]], bool]) -> Iterator[None]:
    """Within the block a pass over a batch waits until it `may`: others' requests come in time, whatever the machine
    does meanwhile."""
    model: Any = llm.engine.model
    forward, over = model.forward, Event()

    def waiting(batch: Sequence[Any]) -> Any:
        assert soon(lambda: over.is_set() or may(batch))
        return forward(batch)

    model.forward = waiting
    try:
        yield
    finally:
        over.set()
        del model.forward


def _lent(llm: LLM) -> LLM:
    """The same once more: a test's own server may run beside the module's, and one of them is asked at a time."""
    other = copy(llm)
    other._turns = Turns()
    return other


@contextmanager
def live_server(
    llm: LLM,
    *,
    max_queue: int = 64,
    api_key: str | None = None,
    keys: Keys | None = None,
    send_buffer: int = 0,
    limits: ConnectionLimits | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    others: Collection[Backend] = (),
    idle: float | None = None,
    watchers: Sequence[Any] = (),
) -> Iterator[Live]:
    """Serves `llm` from a thread of its own until the block ends; checks that it stops, with everything let go.
    `others`: further models, and of all of them what is not used for `idle` seconds is unloaded."""
    alone = llm.with_drafter("none", FixedLength(0))
    llm = _lent(llm)
    backend = Backend("smollm2-135m", lambda: llm, max_queue=max_queue)
    models = Models([backend, *others], idle)
    listener: socket.socket = listen("127.0.0.1", 0)
    watched: socket.socket = listen("127.0.0.1", 0)
    app = make_app(
        models,
        keys=OneKey(api_key) if api_key else keys,
        hosts=names("127.0.0.1", hosts),
        origins=origins,
        watchers=watchers,
        metrics_port=watched.getsockname()[1],
    )
    server = Server(app, models, grace=1.0, limits=limits)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)

    async def main() -> None:
        await models.open()
        await server.serve(sockets=[listener, watched])

    thread = Thread(target=lambda: asyncio.run(main()))
    thread.start()
    live = Live(listener.getsockname()[1], llm, alone, backend, server)
    live.models = models
    live.watched = f"http://127.0.0.1:{watched.getsockname()[1]}"
    try:
        assert soon(lambda: not thread.is_alive() or (models.status == "ready" and server.started))
        assert thread.is_alive(), "the server has started"
        yield live
    finally:
        live.http.close()
        live.openai.close()
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server has stopped"
        assert llm.engine.idle
        assert llm.engine.leaks() == []
