"""Who sent a request, as far as can be told, and whose work it may use.

A request that begins like an earlier one is answered sooner, and beginnings can be tried token by token. So who shares
them can find out what the others have sent: nothing is shared between principals, or between salts of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from outrider.server.addresses import household
from outrider.server.keys import ApiKey
from outrider.server.rates import Meter

_SCOPE = "outrider.caller"
_LONGEST = 64
"""Letters of an address that a proxy names."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's sender. `key` is None where the server asks for none."""

    address: str
    key: ApiKey | None = None
    meter: Meter | None = None

    @property
    def name(self) -> str:
        """Of its key; empty where that is everybody's, or there is none."""
        return self.key.name if self.key else ""

    @property
    def admin(self) -> bool:
        return self.key is not None and self.key.admin

    @property
    def principal(self) -> str:
        """Whose turn its requests take: those of one name, or else of one address."""
        return f"key {self.name}" if self.name else f"address {household(self.address)}"

    def salt(self, given: str | None) -> str | None:
        """The salt of a request that asks for `given`: under another name the same word is another salt. None: it
        shares with everybody who has neither."""
        return f"{self.name}/{given or ''}" if self.name or given else None

    def begin(self) -> None:
        """Another request for text; `ApiError` where the key allows no more of them for now."""
        if self.key and self.meter:
            self.meter.begin(self.key)

    def spend(self, tokens: int) -> None:
        if self.key and self.meter:
            self.meter.spend(self.key, tokens)


def note_caller(scope: Scope, caller: Caller) -> None:
    scope[_SCOPE] = caller


def is_known(scope: Scope) -> bool:
    return _SCOPE in scope


def caller_of(scope: Scope) -> Caller:
    known: Caller = scope[_SCOPE]
    return known


def address_of(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0][:_LONGEST] if client else ""


async def within_limits(request: Request) -> None:
    """Of the caller's key. Asked before anything is done for the request."""
    caller_of(request.scope).begin()
