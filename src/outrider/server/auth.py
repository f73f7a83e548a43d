"""The API key, where the server has one."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.server.errors import ApiError
from outrider.server.salts import note_owner

_OPEN = ("/health", "/docs", "/openapi.json", "/", "/favicon.ico")
"""No secret and no work behind these: how the server feels, and pages that ask for the key themselves."""


class Auth:
    """Lets requests through that bring the key as `Authorization: Bearer …`.

    Keys are compared as digests in constant time, so that an answer's delay tells nothing, not even the length.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN or scope["path"].startswith("/playground/"):
            await self._app(scope, receive, send)
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip().encode("latin-1")), self._digest)
        if scheme.lower() != "bearer" or not right:
            error = ApiError(401, "a valid API key is needed, as in: Authorization: Bearer KEY", code="invalid_api_key")
            await error.response()(scope, receive, send)
            return
        note_owner(scope, self._digest)
        await self._app(scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
