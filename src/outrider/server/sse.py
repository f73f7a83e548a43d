"""Server-sent events: sent while they come, given up when the reader goes (`connections` has a stalled one go)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.connections import CUT
from outrider.server.records import record

DONE = b"data: [DONE]\n\n"

Result = TypeVar("Result")


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


class EventStream(Response):
    """A response whose body is made while it is sent. `close` is called at the end, however it comes about."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], close: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_gone(self._send(send), receive)
        except Gone:
            record(scope).break_off("cancelled", scope["state"].get(CUT, "client left"))
        finally:
            self._close()
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        async for body in self._events:
            # Waits while the connection's buffer is full. There must be no time limit around it: `wait_for` of Python
            # 3.11 does not pass a cancellation on that comes as the wait ends, as it does when the client leaves.
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Gone(Exception):
    """The client has left."""


async def unless_gone(work: Awaitable[Result], receive: Receive) -> Result:
    """The result of `work`, or `Gone` as soon as the client leaves; its body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
