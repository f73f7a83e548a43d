"""A model behind the server: being loaded, ready, failed, unloaded or on its way out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Literal
from weakref import ref

from outrider.engine.engine import Engine
from outrider.engine.request_state import Load
from outrider.engine.service import Service
from outrider.errors import Unavailable
from outrider.llm import LLM
from outrider.server.cards import Card, card_of, unknown_card
from outrider.server.served import Served

Status = Literal["unloaded", "loading", "ready", "failed", "stopping"]
_AGAIN = 30.0
"""Seconds after which loading is tried again."""
_COLLECTIONS = 5
"""How often a model's memory is asked back: an answer that is just being sent may hold on to it."""


class Backend:
    """One model. `make` loads it, whenever it is opened."""

    def __init__(self, name: str, make: Callable[[], LLM], *, max_queue: int) -> None:
        self.name = name
        self.error: BaseException | None = None
        """Why the model could not be loaded."""
        self.card: Card = unknown_card(name)
        """What is known of it, also while it is not loaded."""
        self.used = monotonic()
        """When somebody last asked for it."""
        self._wanted = 0
        self._make = make
        self._max_queue = max_queue
        self._served: Served | None = None
        self._opening = False
        self._failed = 0.0
        """When it could not be loaded."""
        self._stopping = False
        self._freeing: asyncio.Task[None] | None = None

    @property
    def status(self) -> Status:
        if self._stopping:
            return "stopping"
        if self.error is not None or (self._served is not None and self._served.service.failure is not None):
            return "failed"
        if self._served is not None:
            return "ready"
        return "loading" if self._opening else "unloaded"

    @property
    def service(self) -> Service | None:
        """While it is loaded."""
        return None if self._served is None else self._served.service

    @property
    def in_use(self) -> bool:
        """Whether a request is on its way to it or through it."""
        return self._wanted > 0 or (self._served is not None and self._served.service.open > 0)

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """It is in use meanwhile: a request is being read, though the engine does not know of it yet."""
        self._wanted += 1
        try:
            yield
        finally:
            self._wanted -= 1

    @property
    def load(self) -> Load:
        return Load() if self._served is None else self._served.service.load

    @property
    def worth_trying(self) -> bool:
        """Whether it is unloaded, or could not be loaded a while ago: what was in the way may be gone."""
        failed_to_load = self.error is not None and self._served is None and not self._opening
        return self.status == "unloaded" or (failed_to_load and monotonic() - self._failed >= _AGAIN)

    async def open(self) -> None:
        """Load the model in a thread, so that /health answers meanwhile; raises what loading raises."""
        self._opening, self.error = True, None
        try:
            llm = await asyncio.to_thread(self._make)
        except BaseException as error:
            self.error, self._failed = error, monotonic()
            raise
        finally:
            self._opening = False
        service = llm.service(max_queue=self._max_queue)
        served = Served(self.name, llm, service)
        _ = served.longest_text
        service.start()
        self._served, self.card, self.used = served, card_of(served), monotonic()

    async def close(self) -> None:
        """Let go of the model, and soon of its memory; nothing may be on its way. It may be opened again."""
        served, self._served = self._served, None
        if served is not None:
            engine = ref(served.llm.engine)
            await served.service.stop(0)
            del served
            self._freeing = asyncio.ensure_future(_free(engine))

    async def stop(self, grace: float) -> None:
        self._stopping = True
        if self._served is not None:
            await self._served.service.stop(grace)

    def served(self) -> Served:
        if self._served is None:
            failed, stopping = "the model could not be loaded; see the server's log", "the server is stopping"
            raise Unavailable(failed if self.error else stopping if self._stopping else "the model is being loaded")
        self.used = monotonic()
        return self._served


async def _free(engine: ref[Engine]) -> None:
    """Collect garbage, for its parts know each other, until it is gone or something else holds it."""
    collected = 0
    while engine() is not None and collected < _COLLECTIONS:
        collected += _collect()
        await asyncio.sleep(0.2)


def _collect() -> bool:
    """Whether garbage was collected: while another thread collects, the interpreter ignores whoever else asks."""
    before = gc.get_stats()
    gc.collect()
    return gc.get_stats()[-1] != before[-1]
