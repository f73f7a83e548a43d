"""The model behind the server: being loaded, ready, failed or on its way out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from outrider.engine.service import Service
from outrider.engine.tickets import Load
from outrider.errors import Unavailable
from outrider.llm import LLM
from outrider.server.errors import ApiError
from outrider.server.tools.dialect import Dialect, dialect_of

log = logging.getLogger("outrider.server")

Status = Literal["loading", "ready", "failed", "stopping"]


@dataclass(frozen=True)
class Served:
    """A model that answers. `name` is what clients call it."""

    name: str
    llm: LLM
    service: Service

    @property
    def drafters(self) -> Sequence[str]:
        """What a request may name: `auto` is the server's own choice, `none` drafts nothing."""
        return ["auto", *(name for name in self.llm.drafters if name != "auto")]

    @property
    def default_drafter(self) -> str:
        """Who `auto` is."""
        return self.llm.drafter.name

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes function calls."""
        return dialect_of(self.llm.tokenizer.chat_template)

    @cached_property
    def longest_text(self) -> int:
        """Bytes no prompt can have more of and still fit: every token at its longest."""
        longest = max(len(token.encode()) for token in self.llm.tokenizer.vocabulary())
        return longest * self.llm.model.max_context


class Backend:
    """Knows one model by one name; others are not found, and names are compared, never looked up."""

    def __init__(self, name: str, *, max_queue: int) -> None:
        self.name = name
        self.error: BaseException | None = None
        """Why the model could not be loaded."""
        self._max_queue = max_queue
        self._served: Served | None = None
        self._stopping = False

    @property
    def status(self) -> Status:
        if self._stopping:
            return "stopping"
        if self.error is not None or (self._served is not None and self._served.service.failure is not None):
            return "failed"
        return "loading" if self._served is None else "ready"

    @property
    def load(self) -> Load:
        return Load() if self._served is None else self._served.service.load

    async def open(self, make: Callable[[], LLM]) -> None:
        """Load the model in a thread, so that /health answers meanwhile; raises what loading raises."""
        try:
            llm = await asyncio.to_thread(make)
        except BaseException as error:
            self.error = error
            raise
        service = llm.service(max_queue=self._max_queue)
        served = Served(self.name, llm, service)
        _ = served.longest_text
        service.start()
        self._served = served

    async def stop(self, grace: float) -> None:
        self._stopping = True
        if self._served is not None:
            await self._served.service.stop(grace)

    def served(self, model: str | None) -> Served:
        """The model a request names (none: the only one there is)."""
        if model is not None and model != self.name:
            raise ApiError(
                404, f"this server has no model of that name, but {self.name}", param="model", code="model_not_found"
            )
        if self._served is None:
            raise Unavailable(
                "the model could not be loaded; see the server's log" if self.error else "the model is being loaded"
            )
        return self._served
