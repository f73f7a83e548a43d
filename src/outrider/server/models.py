"""All models of a server, by name: which of them are loaded, and until when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from time import monotonic

from outrider.engine.request_state import Load
from outrider.errors import DeviceLost, Unavailable
from outrider.server.backend import Backend, Status
from outrider.server.cards import Card
from outrider.server.errors import ApiError
from outrider.server.served import Served

log = logging.getLogger("outrider.server")

_LOOKS = 4
"""How often in the time after which a model counts as idle it is looked whether one is."""


class Models:
    """The first is the default, and loaded when the server starts; others are when somebody asks for them, one at a
    time. What nobody has used for `idle` seconds is unloaded again (None: never). Names are compared, never looked up.
    """

    def __init__(self, backends: Sequence[Backend], idle: float | None = None) -> None:
        self._backends = {backend.name: backend for backend in backends}
        self._default = backends[0]
        self._idle = idle
        self._loading = asyncio.Lock()
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        return list(self._backends)

    @property
    def status(self) -> Status:
        """The default's. Once it was loaded requests are answered, also while it is unloaded again."""
        status = self._default.status
        return status if status != "unloaded" else "loading" if self._watch is None else "ready"

    @property
    def lost(self) -> DeviceLost | None:
        """Why only another process can answer."""
        services = [backend.service for backend in self._backends.values()]
        return next((service.lost for service in services if service is not None and service.lost is not None), None)

    @property
    def loads(self) -> Mapping[str, Load]:
        return {name: backend.load for name, backend in self._backends.items()}

    @property
    def cards(self) -> list[Card]:
        if "capabilities" not in self._default.card:
            raise Unavailable("the model is being loaded")
        return [self.card(name) for name in self._backends]

    def card(self, name: str) -> Card:
        backend = self._find(name)
        return {**backend.card, "status": backend.status}

    async def open(self) -> None:
        """Load the default; raises what loading raises."""
        await self._default.open()
        self._watch = asyncio.ensure_future(self._unload_idle())

    async def stop(self, grace: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(backend.stop(grace) for backend in self._backends.values()))

    @asynccontextmanager
    async def served(self, name: str | None) -> AsyncIterator[Served]:
        """The model a request names (none: the default), once it is loaded; it is not unloaded within the block."""
        backend = self._find(name)
        with backend.wanted():
            if backend.worth_trying and self._watch is not None and backend.name not in self._waking:
                self._waking[backend.name] = asyncio.ensure_future(self._wake(backend))
            if (waking := self._waking.get(backend.name)) is not None:
                await asyncio.wait({waking})
            yield backend.served()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """All that is loaded stands still meanwhile: what passes of another model take is being measured."""
        with ExitStack() as stack:
            for backend in self._backends.values():
                if backend.service is not None:
                    stack.enter_context(backend.service.paused())
            yield

    def _find(self, name: str | None) -> Backend:
        if name is None:
            return self._default
        if name not in self._backends:
            there = ", ".join(self._backends)
            message = f"this server has no model of that name, but {there}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self._backends[name]

    async def _wake(self, backend: Backend) -> None:
        try:
            async with self._loading:
                await backend.open()
            log.info("a model was loaded", extra={"facts": {"model": backend.name}})
        except Exception:
            log.exception("a model could not be loaded", extra={"facts": {"model": backend.name}})
        finally:
            del self._waking[backend.name]

    async def _unload_idle(self) -> None:
        while self._idle is not None:
            await asyncio.sleep(self._idle / _LOOKS)
            for backend in self._backends.values():
                if backend.in_use:
                    backend.used = monotonic()
                elif backend.status == "ready" and monotonic() - backend.used > self._idle:
                    await backend.close()
                    log.info("a model was unloaded", extra={"facts": {"model": backend.name}})
