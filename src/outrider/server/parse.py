"""From the bytes of a request to a checked model, within limits that hold while they are read.

Bytes are made into a model in a thread, and of few bodies at a time: others are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from outrider.server.errors import ApiError
from outrider.server.json_size import JsonSize
from outrider.server.protocol import ApiModel
from outrider.server.records import record
from outrider.server.unsupported import ignored

MAX_BODY = 4 << 20
"""Bytes; a context of 128k tokens is a fifth of it."""
MAX_HELD = 128 << 20
"""Bytes of all bodies that are on their way."""
PATIENCE = 30.0
"""Seconds the body may take to arrive."""
_AT_ONCE = 2
_MAX_LEVELS = 64
_MAX_ITEMS = 1 << 18
"""Of all lists and objects: the token ids of a context of 128k, and as many again."""
_MAX_KEYS = 1 << 14
_MAX_DIGITS = 400
"""Of a number; those of the longest that means anything to a program."""

Wanted = TypeVar("Wanted", bound=ApiModel)


class BodyReader:
    """Reads the bodies of one application's requests."""

    def __init__(self) -> None:
        self._parsing = asyncio.Semaphore(_AT_ONCE)
        self._held = 0

    async def read(self, request: HttpRequest, wanted: type[Wanted]) -> Wanted:
        """The body as `wanted`; `ApiError` says what is wrong with it, and where."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # also keeps other sites' forms out: browsers ask before they send this type
            raise ApiError(415, "send JSON: the content-type must be application/json")
        body = bytearray()
        try:
            await self._receive(request, body)
            async with self._parsing:
                parsed, names = await asyncio.to_thread(_parse, bytes(body), wanted)
        finally:
            self._held -= len(body)
        record(request.scope).ignored = names
        return parsed

    async def _receive(self, request: HttpRequest, body: bytearray) -> None:
        """Add to `body` what arrives, and count it as held."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > MAX_BODY:
            raise _too_large()
        try:
            async with asyncio.timeout(PATIENCE):
                async for piece in request.stream():
                    body += piece
                    self._held += len(piece)
                    if len(body) > MAX_BODY:
                        raise _too_large()
                    if self._held > MAX_HELD:
                        raise ApiError(503, "too much is being sent at once", code="too_many_bodies", retry_after=1)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {PATIENCE:.0f} seconds") from None
        except ClientDisconnect:
            raise ApiError(400, "the client left before its body arrived", reason="client left") from None


async def read(request: HttpRequest, wanted: type[Wanted]) -> Wanted:
    """By the application's `BodyReader`."""
    reader: BodyReader = request.app.state.reader
    return await reader.read(request, wanted)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY >> 20} MiB", code="body_too_large")


def _parse(body: bytes, wanted: type[Wanted]) -> tuple[Wanted, list[str]]:
    """The model, and the names of fields it leaves unread."""
    shape = JsonSize.of(body)
    for count, most, words in (
        (shape.levels, _MAX_LEVELS, "levels deep"),
        (shape.keys, _MAX_KEYS, "fields"),
        (shape.items, _MAX_ITEMS, "items"),
    ):
        if count > most:
            raise ApiError(400, f"the body has more than {most} {words}", reason=f"too many {words.split()[0]}")
    data = _json(body)
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", reason="not an object")
    try:
        parsed = wanted.model_validate(data)
    except ValidationError as error:
        raise _first_fault(error, data) from None
    return parsed, ignored(parsed)


def _json(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body is not valid UTF-8: byte {error.start} cannot be read"
        raise ApiError(400, message, reason="not UTF-8") from None
    try:
        # NaN is read, to be refused by the name of its field.
        return json.loads(text, parse_int=_whole, parse_float=_decimal)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", reason="not JSON") from None
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON this server reads: a number too long", reason="not JSON") from None


def _whole(digits: str) -> int:
    """Of a few digits: reading thousands takes time in their square. (Also, where Python is called for each number
    other threads get their turn.)"""
    if len(digits) > _MAX_DIGITS:
        raise ValueError
    return int(digits)


def _decimal(digits: str) -> float:
    if len(digits) > _MAX_DIGITS:
        raise ValueError
    return float(digits)


def _first_fault(error: ValidationError, data: dict[str, Any]) -> ApiError:
    """The fault that goes deepest: among the ways a value could be read, the one that came closest."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    params = [(_place(each, data), each) for each in details]
    field = params[0][0].partition(".")[0].partition("[")[0]
    mine = [(place, each) for place, each in params if place.partition(".")[0].partition("[")[0] == field]
    place, fault = max(mine, key=lambda pair: len(pair[0]))
    messages = dict.fromkeys(each["msg"][0].lower() + each["msg"][1:] for where, each in mine if where == place)
    if fault["type"] == "missing":
        return ApiError(400, f"{place} is required", param=place, reason="missing")
    if fault["type"] == "too_short":  # at least one is asked for wherever a number is
        return ApiError(400, f"{place} must not be empty", param=place, reason=fault["type"])
    return ApiError(400, f"{place}: {', or '.join(messages)}", param=place, reason=fault["type"])


def _place(fault: ErrorDetails, data: Any) -> str:
    """Where in the request, as a path. pydantic's own has names of types in it where there is a choice of them."""
    path, value = "", data
    steps = list(fault["loc"])
    for i, step in enumerate(steps):
        missing = fault["type"] == "missing" and i == len(steps) - 1
        if isinstance(value, dict) and isinstance(step, str) and (step in value or missing):
            path += f".{step}" if path else step
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            path += f"[{step}]"
            value = value[step]
    return path or "body"
