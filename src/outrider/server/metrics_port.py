"""A port of its own for those who watch the server: all metrics and its health, without a key, and nothing else."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.server.callers import Caller, address_of, note_caller
from outrider.server.errors import ApiError
from outrider.server.keys import ApiKey

_PATHS = ("/metrics", "/health")


class MetricsPort:
    """Takes requests that came in by `port` for an admin's. The port is the socket's own: no header can name it."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server: tuple[str, int | None] | None = scope.get("server")
        if scope["type"] == "http" and server is not None and server[1] == self._port:
            if scope["path"] not in _PATHS:
                message = "on this port there are /metrics and /health only"
                await ApiError(404, message).response()(scope, receive, send)
                return
            note_caller(scope, Caller(address_of(scope), ApiKey(admin=True)))
        await self._app(scope, receive, send)
