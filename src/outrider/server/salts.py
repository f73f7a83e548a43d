"""Whose requests may use what was computed for one another: those of one salt.

A request that begins like an earlier one is answered sooner, and beginnings can be tried token by token. So who shares
them can find out what the others have sent.
"""

from __future__ import annotations

from starlette.types import Scope

_OWNER = "outrider.owner"


def note_owner(scope: Scope, digest: bytes) -> None:
    """The request came with this API key."""
    scope[_OWNER] = digest.hex()


def salt_of(scope: Scope, given: str | None) -> str | None:
    """The salt of a request that asks for `given`: the same word under another key is another salt. None: it shares
    with everybody who has neither."""
    owner: str = scope.get(_OWNER, "")
    return f"{owner}/{given or ''}" if owner or given else None
