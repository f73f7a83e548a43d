"""Headers that have browsers do no more with an answer than show it."""

from __future__ import annotations

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]

_SAFE = {
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}


def hardened(headers: Headers) -> list[tuple[bytes, bytes]]:
    """`headers`, and ours where they do not say otherwise: a page names what it may load."""
    given = list(headers)
    names = {name.lower() for name, _ in given}
    return given + [(name, value) for name, value in _SAFE.items() if name not in names]
