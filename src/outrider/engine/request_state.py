"""What is kept for each request: a reader on the caller's side, a state per request on the engine's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

from outrider.control.belief import Belief
from outrider.core.draft import Draft
from outrider.core.request import Chunk, StepTrace
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.stats import Stats


class Reader(Protocol):
    """Whoever reads what a few requests gain."""

    @property
    def requests(self) -> tuple[Request, ...]: ...
    @property
    def begun(self) -> float:
        """When it asked."""
        ...


R = TypeVar("R", bound=Reader)


class Load(NamedTuple):
    """What the engine is busy with, as of its last step."""

    stats: Stats = Stats(0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
    budgets: tuple[int, ...] = ()
    """Nodes drafted for each running request."""
    belief: Belief | None = None
    """What the controller's decisions rest on."""

    @staticmethod
    def of(engine: Engine) -> Load:
        stats = engine.stats
        controller = engine.controller
        return Load(stats, tuple(controller.issued) if stats.running else (), controller.belief)


class OutputStream:
    """Chunks of a few requests in the order they come; an async iterator with a bounded buffer.

    Lives on the event loop. Iteration ends when all requests have; an error is raised once what came before it has
    been read. Closing it (`close`, or leaving its `with` block) cancels what still runs.
    """

    def __init__(self, requests: Sequence[Request], buffer: int, cancel: Callable[[OutputStream], None]) -> None:
        self.requests = tuple(requests)
        self.left = len(requests)
        """Requests that have not ended."""
        self.begun = perf_counter()
        self._most = buffer * len(requests)
        self._cancel = cancel
        self._unread: deque[Chunk] = deque()
        self._wake = asyncio.Event()
        self._error: Exception | None = None

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> Chunk:
        while not self._unread:
            if self._error is not None:
                raise self._error
            if not self.left:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._unread.popleft()

    def close(self) -> None:
        self.left = 0
        self._wake.set()
        self._cancel(self)

    def take(self, chunk: Chunk) -> bool:
        """False where there is no room: the reader is too slow."""
        if len(self._unread) >= self._most:
            return False
        self._unread.append(chunk)
        self.left -= chunk.completion is not None
        self._wake.set()
        return True

    def fail(self, error: Exception) -> None:
        self.left = 0
        self._error = error
        self._wake.set()


@dataclass(slots=True)
class RequestState(Generic[R]):
    """One request in the engine, and how much of it has been handed out. Lives on the engine's thread."""

    request: Request
    stream: R
    index: int
    tokens: int = 0
    characters: int = 0
    last: float | None = None
    """When its last step ended."""

    def addressed(self, chunk: Chunk, now: float) -> Chunk:
        """What its request gained in a step that ended now, as its reader gets it."""
        request = self.request
        chunk.index = self.index
        chunk.seconds = now - (self.last or request.admitted or self.stream.begun)
        if request.finish_reason is not None:  # one that has failed is told so instead
            chunk.completion = request.completion()
        self.last = now
        self.tokens += len(chunk.token_ids)
        self.characters += len(chunk.text)
        return chunk

    def missed(self, now: float) -> Chunk | None:
        """What the request gained in a step that failed afterwards, over another one, before it was handed out; or that
        it cannot go on."""
        s = self.request
        if s.generated == self.tokens and s.failure is None:
            return None
        chunk = Chunk(
            index=s.id,
            text=s.stream.text[self.characters :],
            token_ids=tuple(s.tokens[s.prompt_length + self.tokens :]),
            origins=tuple(s.origins[self.tokens :]),
            step=StepTrace(Draft(), (), s.tokens[-1], "target"),
            logprobs=tuple(s.logprobs[self.tokens :]) if s.logprobs else (),
        )
        return self.addressed(chunk, now)
