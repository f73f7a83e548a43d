"""Around every request: an id, a line in the log, and an answer even to what nobody foresaw.

A log line holds what happened, never what was said: no bodies, headers, queries or keys.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.callers import address_of
from outrider.server.errors import INTERNAL, ApiError
from outrider.server.records import Record, begin_record
from outrider.server.safety import hardened

log = logging.getLogger("outrider.server")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Tracking:
    """The outermost layer. A client's own x-request-id is kept if it is a plain word of at most 64 characters. All
    `watchers` are told how each request came out, by its status."""

    def __init__(self, app: ASGIApp, watchers: Sequence[Callable[[Scope, Record, int], None]]) -> None:
        self._app = app
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        mine = begin_record(scope, given if _ID.fullmatch(given) else uuid.uuid4().hex)
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = hardened([*message.get("headers", ()), (b"x-request-id", mine.id.encode())])
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception:
            log.exception("unforeseen", extra={"facts": {"request_id": mine.id}})
            if not status:
                await ApiError(500, INTERNAL).response()(scope, receive, tell)
        finally:
            for ended in self._watchers:
                ended(scope, mine, status)
            self._write(scope, mine, status)

    @staticmethod
    def _write(scope: Scope, mine: Record, status: int) -> None:
        facts: dict[str, Any] = {
            "request_id": mine.id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "client": address_of(scope),
            "status": status,
            "seconds": round(perf_counter() - mine.started, 4),
            **mine.facts,
        }
        if mine.ignored:
            facts["ignored_fields"] = [name[:64] for name in mine.ignored[:32]]
        quiet = scope["path"] in ("/health", "/metrics")
        log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"facts": facts})
