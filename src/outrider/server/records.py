"""What is known of a request, for its line in the log; kept with the request itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from starlette.types import Scope

_KEY = "outrider.record"


@dataclass(slots=True)
class Record:
    """What is known of one request."""

    id: str
    started: float = field(default_factory=perf_counter)
    ignored: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def begin_record(scope: Scope, id_: str) -> Record:
    scope[_KEY] = begun = Record(id_)
    return begun


def record(scope: Scope) -> Record:
    known: Record = scope[_KEY]
    return known
