"""Which names the server answers to. A page elsewhere may point its own name at this machine (DNS rebinding): then the
browser takes the server for part of that page, and only the Host header tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.errors import InvalidRequest
from outrider.server.errors import ApiError

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def names(host: str, others: Collection[str] = ()) -> frozenset[str] | None:
    """The names of a server that listens on `host`, and `others` it is known by; None: any. Browsers reach what listens
    on this machine alone by few names, but a server for other machines may have many that nobody told it."""
    if not (host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)) and not others:
        return None
    return frozenset(name.lower().strip("[]") for name in (*_THIS_MACHINE, host, *others))


def origins(given: Iterable[str]) -> list[str]:
    """Sites whose pages may read answers, as browsers name them."""
    for each in given:
        parts = urlsplit(each)
        if each != "*" and (
            parts.scheme not in ("http", "https") or each != f"{parts.scheme}://{parts.netloc.lower()}"
        ):
            raise InvalidRequest(
                f"allowed-origins: {each!r} is no origin; write it as browsers do: https://app.example, without a path"
            )
    return list(given)


class Hosts:
    """Refuses requests under other names. One without any is no browser's."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or _name(host) in self._names:
            await self._app(scope, receive, send)
            return
        message = "the Host header names another server; --allow-host adds a name to localhost, 127.0.0.1 and [::1]"
        await ApiError(421, message, code="unknown_host").response()(scope, receive, send)


def _name(host: str) -> str | None:
    """Without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
