"""Who may ask, and who they are."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.server.callers import Caller, address_of, is_known, note_caller
from outrider.server.errors import ApiError
from outrider.server.keys import Keys
from outrider.server.rates import Meter
from outrider.server.records import record

_OPEN = ("/health", "/docs", "/openapi.json", "/", "/favicon.ico")
"""No secret and no work behind these: how the server feels, and pages that ask for the key themselves."""


class Auth:
    """Notes who sends a request. Where there are `keys`, those without one as `Authorization: Bearer …` are refused."""

    def __init__(self, app: ASGIApp, keys: Keys | None) -> None:
        self._app = app
        self._keys = keys
        self._meters: dict[str, Meter] = {}
        """By name: a key that is given out anew goes on where the one before stopped."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_known(scope):
            await self._app(scope, receive, send)
            return
        caller = Caller(address_of(scope))
        if self._keys is not None and not _is_open(scope["path"]):
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            brought = given.strip(" \t").encode("latin-1") if scheme.lower() == "bearer" else b""
            key = self._keys.find(brought) if brought else None
            if key is None:
                message = "a valid API key is needed, as in: Authorization: Bearer KEY"
                await ApiError(401, message, code="invalid_api_key").response()(scope, receive, send)
                return
            caller = Caller(caller.address, key, self._meters.setdefault(key.name, Meter()))
            if key.name:
                record(scope).facts["principal"] = key.name
        note_caller(scope, caller)
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith("/playground/")
