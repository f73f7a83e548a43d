"""Refused requests in the log: which field, and why, but nothing of what was said."""

from __future__ import annotations

import re

from pydantic import BaseModel
from starlette.requests import Request

from outrider.server import protocol, unsupported
from outrider.server.errors import ApiError
from outrider.server.records import record
from outrider.server.responses import asked

_STEP = re.compile(r"(\[\d{1,7}\])|[^.\[]+")
_PARTS = {**vars(protocol), **vars(asked)}
_MODELS = [kind for kind in _PARTS.values() if isinstance(kind, type) and issubclass(kind, BaseModel)]
_NAMES = {field.alias or name for kind in _MODELS for name, field in kind.model_fields.items()} | unsupported.NAMES


def note(request: Request, error: ApiError) -> None:
    """For the request's line. A name that is none of ours is the client's own words, and becomes a star."""
    if error.status != 400:
        return
    facts = record(request.scope).facts
    facts["reason"] = error.reason
    if error.param is not None:
        facts["param"] = _STEP.sub(lambda step: step[0] if step[1] or step[0] in _NAMES else "*", error.param)[:200]
