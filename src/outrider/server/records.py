"""What is known of a request, for its line in the log; kept with the request itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from starlette.types import Scope

_KEY = "outrider.record"


@dataclass(slots=True)
class Record:
    """What is known of one request."""

    id: str
    started: float = field(default_factory=perf_counter)
    ignored: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    broken_off: Literal["", "cancelled", "failed"] = ""
    """Whether the answer did not come to its end although one was begun: the client left, or something went wrong."""

    def break_off(self, how: Literal["cancelled", "failed"], why: str) -> None:
        self.broken_off = how
        self.facts["ended"] = why


def begin_record(scope: Scope, id_: str) -> Record:
    scope[_KEY] = begun = Record(id_)
    return begun


def record(scope: Scope) -> Record:
    known: Record = scope[_KEY]
    return known
