"""API keys: who may use the server, by which name, and how much of it."""

from __future__ import annotations

import hashlib
import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Protocol

from outrider.errors import InvalidRequest

log = logging.getLogger("outrider.server")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_RATES = ("requests_per_minute", "tokens_per_minute")
_FIELDS = ("key", "sha256", "admin", *_RATES)
_LOOK = 1.0
"""Seconds between looks at the file."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What comes with a key. `name`: the principal it stands for; none where all callers have the same one."""

    name: str = ""
    admin: bool = False
    """Whether it may see what was reused of others' requests."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Keys(Protocol):
    """The keys a server asks for. They are looked up by their digests, so that an answer's delay tells nothing."""

    @property
    def names(self) -> list[str]:
        """Of the principals there are."""
        ...

    def find(self, given: bytes) -> ApiKey | None: ...


class OneKey:
    """The same for everybody."""

    names: ClassVar[list[str]] = []

    def __init__(self, key: str) -> None:
        self._digest = _digest(key.encode())

    def find(self, given: bytes) -> ApiKey | None:
        return ApiKey() if _digest(given) == self._digest else None


class KeyFile:
    """A TOML file with a table for each name, read again when it has changed. One that cannot be read then is told of
    in the log, and the keys stay as they were."""

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path = path
        self._clock = clock
        self._seen = _state(path)
        self._keys = _read(path)
        self._next = clock() + _LOOK

    @property
    def names(self) -> list[str]:
        return [key.name for key in self._keys.values()]

    def find(self, given: bytes) -> ApiKey | None:
        if self._clock() >= self._next:
            self._next = self._clock() + _LOOK
            self._look()
        return self._keys.get(_digest(given))

    def _look(self) -> None:
        state = _state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = _read(self._path)
        except InvalidRequest as error:
            log.error("the file of API keys is left unread", extra={"facts": {"reason": str(error)}})
        else:
            log.info("API keys read again", extra={"facts": {"keys": len(self._keys)}})


def trust(keys: Keys | None) -> str:
    """Who can find out what others have sent."""
    if keys and len(keys.names) > 1:
        return f"{len(keys.names)} keys: each is a trust domain of its own, and nothing is reused between them"
    shared = "all who have the key" if keys else "everybody"
    return (
        f"all callers are one trust domain: requests without cache_salt reuse what {shared} sent, and can tell by the "
        "time they take; see docs/server.md"
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None: it is not there."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size, told.st_ino


def _read(path: Path) -> dict[bytes, ApiKey]:
    """The keys by their digests."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"api-keys: {path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"api-keys: {path} is not TOML ({error}).") from None
    keys: dict[bytes, ApiKey] = {}
    for name, table in tables.items():
        digest, key = _entry(name, table)
        if digest in keys:
            raise InvalidRequest(f"api-keys: {keys[digest].name} and {name} have the same key; give each its own.")
        keys[digest] = key
    if not keys:
        raise InvalidRequest(f'api-keys: {path} has no keys; add [NAME] and below it key = "…".')
    return keys


def _entry(name: str, table: Any) -> tuple[bytes, ApiKey]:
    """One name's. What is wrong is told without the key."""

    def wrong(what: str) -> InvalidRequest:
        return InvalidRequest(f"api-keys: [{name}] {what}.")

    if not _NAME.fullmatch(name) or not isinstance(table, Mapping):
        raise InvalidRequest(f"api-keys: {name[:64]!r} must be a table whose name is a word of at most 64 letters.")
    if unknown := [field for field in table if field not in _FIELDS]:
        raise wrong(f"has {unknown[0][:64]!r}, which is none of {', '.join(_FIELDS)}")
    key, hashed, admin = table.get("key"), table.get("sha256"), table.get("admin", False)
    if (key is None) == (hashed is None):
        raise wrong("needs either key or sha256")
    if key is not None and (not isinstance(key, str) or not key or key != key.strip()):
        raise wrong("needs a key that is text, without space around it")
    if hashed is not None and not (isinstance(hashed, str) and _DIGEST.fullmatch(hashed)):
        raise wrong("needs a sha256 of 64 hexadecimal digits")
    if not isinstance(admin, bool):
        raise wrong("needs an admin that is true or false")
    for field in _RATES:
        rate = table.get(field, 1)
        if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
            raise wrong(f"needs a {field} that is a whole number from 1 on")
    digest = bytes.fromhex(hashed) if hashed is not None else _digest(str(key).encode())
    return digest, ApiKey(name, admin, table.get(_RATES[0]), table.get(_RATES[1]))
