"""HEAD, for every place that has GET."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Head:
    """Has HEAD answered as GET. The server beneath knows what was asked, and leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = {**scope, "method": "GET"} if scope["type"] == "http" and scope["method"] == "HEAD" else scope
        await self._app(asked, receive, send)
