"""From the bytes of a request to a checked model, within limits that hold while they are read."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from outrider.server.errors import ApiError
from outrider.server.protocol import Request
from outrider.server.tracking import record
from outrider.server.unsupported import ignored

MAX_BODY = 4 << 20
"""Bytes; a context of 128k tokens is a fifth of it."""
PATIENCE = 30.0
"""Seconds the body may take to arrive."""
_MAX_DEPTH = 64

Wanted = TypeVar("Wanted", bound=Request)


async def read(request: HttpRequest, wanted: type[Wanted]) -> Wanted:
    """The body as `wanted`; `ApiError` says what is wrong with it, and where."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also keeps other sites' forms out: browsers ask before they send this type
        raise ApiError(415, "send JSON: the content-type must be application/json")
    data = _json(await _body(request))
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object")
    try:
        parsed = wanted.model_validate(data)
    except ValidationError as error:
        raise _first_fault(error, data) from None
    if names := ignored(parsed):
        record(request.scope).ignored = names
    return parsed


async def _body(request: HttpRequest) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {PATIENCE:.0f} seconds") from None
    except ClientDisconnect:
        raise ApiError(400, "the client left before its body arrived") from None
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY >> 20} MiB", code="body_too_large")


def _json(body: bytes) -> Any:
    def refuse(name: str) -> float:
        raise ApiError(400, f"the body is not valid JSON: {name} is not a JSON number")

    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8: byte {error.start} cannot be read") from None
    try:
        data = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets of thousands of levels
        raise ApiError(400, "the body is not JSON this server reads: a number too long, or too many levels") from None
    if _deep(data):
        raise ApiError(400, f"the body is nested more than {_MAX_DEPTH} levels deep")
    return data


def _deep(data: Any) -> bool:
    level = [data]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _first_fault(error: ValidationError, data: dict[str, Any]) -> ApiError:
    """The fault that goes deepest: among the ways a value could be read, the one that came closest."""
    details = error.errors(include_url=False, include_context=False)
    params = [(_place(each, data), each) for each in details]
    field = params[0][0].partition(".")[0].partition("[")[0]
    mine = [(place, each) for place, each in params if place.partition(".")[0].partition("[")[0] == field]
    place, fault = max(mine, key=lambda pair: len(pair[0]))
    messages = dict.fromkeys(each["msg"].lower() for where, each in mine if where == place)
    if fault["type"] == "missing":
        return ApiError(400, f"{place} is required", param=place)
    return ApiError(400, f"{place}: {', or '.join(messages)}", param=place)


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
