"""Many callers, from any thread, over the engines of one model.

There is no thread of its own: whoever waits for something takes the turn and steps, and what the step brings for others
waits for them. So a caller that reads alone pays nothing, and one that stops reading does not stop the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, get_ident
from time import perf_counter
from typing import TYPE_CHECKING

from outrider.core.request import Chunk
from outrider.engine.crew import Crew
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import InvalidRequest

if TYPE_CHECKING:
    from outrider.engine.service import Service


class _Caller:
    """One call: its requests, and what they have gained that was not read yet."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.engine = engine
        self.requests = tuple(requests)
        self.begun = perf_counter()
        self.unread: deque[Chunk] = deque()
        self.left = len(self.requests)
        """Requests that have not ended."""
        self.error: Exception | None = None
        """Why no more will come."""


class Turns:
    """Who steps, and whose engine.

    Invariants: engines, and what is held for callers in them, are touched only by the thread that has the turn. One
    engine at a time holds anything of the model: engines share its slots and know nothing of each other, so a caller of
    another one waits until the first is idle, and later callers wait behind it (nobody waits for ever).

    Leaving never waits: a generator may be collected anywhere, also in the middle of a step.
    """

    def __init__(self) -> None:
        self._changed = Condition()  # over an RLock: whoever is collected inside leaves from there
        self._turn: int | None = None
        """The thread that has the turn."""
        self._coming: deque[_Caller] = deque()
        """In order; not in an engine yet."""
        self._leaving: deque[_Caller] = deque()
        self._crew: Crew[_Caller] | None = None
        self._closed: str | None = None
        """Why nobody may come any more."""
        self._lent: Service | None = None
        """What has the engines until it has ended."""

    def lend(self, service: Service) -> None:
        """To a service that steps in a thread of its own; until that has ended nobody else may come."""
        with self._changed:
            if self._turn is not None or self._coming or (self._crew is not None and not self._crew.idle):
                raise InvalidRequest("this LLM, or one that shares its model, is answering; read or close that first")
            self.refuse_if_lent()
            self._lent = service

    def refuse_if_lent(self) -> None:
        if self._lent is not None and not self._lent.ended:
            raise InvalidRequest("this LLM answers through an AsyncLLM or a server; ask there, or close that first")

    def read(self, engine: Engine, requests: Sequence[Request]) -> Iterator[Chunk]:
        """What these requests gain, as it comes; they join the engine with the first `next`. Closing the iterator, or
        losing it, lets go of those that still run."""
        caller = _Caller(engine, requests)
        try:
            with self._changed:
                if self._closed is not None:
                    raise InvalidRequest(self._closed)
                self.refuse_if_lent()
                self._coming.append(caller)
            while self._await(caller):
                while caller.unread:  # nobody else takes from there
                    yield caller.unread.popleft()
        finally:
            self._leave(caller)

    @contextmanager
    def spare(self) -> Iterator[bool]:
        """A turn that nobody else wants, for other work with the model: whether there is one."""
        with self._changed:
            free = self._turn is None and not self._coming and self._closed is None
            free = free and (self._lent is None or self._lent.ended)
            if free:
                self._turn = get_ident()
        try:
            yield free
        finally:
            if free:
                self._end_turn()

    def close(self, reason: str) -> None:
        """Whoever waits or runs is told of it (`InvalidRequest`), and so is everybody who comes later."""
        me = get_ident()
        if self._turn == me:
            raise InvalidRequest("a step cannot close its own LLM")
        with self._changed:
            self._closed = reason
            while self._turn is not None:
                self._changed.wait()
            self._turn = me
            callers = list(self._coming)
            self._coming.clear()
        try:
            if self._crew is not None:
                callers += self._crew.readers
                self._crew.clear()
                self._crew = None  # it holds the engine
            for caller in callers:
                self._fail(caller, InvalidRequest(reason))
        finally:
            self._end_turn()

    def _await(self, caller: _Caller) -> bool:
        """Until there is something for the caller to read; False at the end. Steps for everybody where nobody else
        does."""
        me = get_ident()
        if self._turn == me:
            raise InvalidRequest("a step cannot ask its own LLM for text; let a drafter use another one")
        while True:
            try:
                with self._changed:
                    while (self._turn is not None or self._closing(caller)) and not caller.unread:
                        self._changed.wait()
                    if caller.unread:
                        return True
                    if caller.error is not None:
                        raise caller.error
                    if not caller.left:
                        return False
                    self._turn = me
                self._step()
            finally:
                if self._turn == me:  # also if interrupted before the step
                    self._end_turn()

    def _closing(self, caller: _Caller) -> bool:
        """Whether somebody waits for the turn to end this one: it must not take another."""
        return self._closed is not None and caller.error is None and caller.left > 0

    def _step(self) -> None:
        self._let_go()
        crew = self._seated()
        try:
            crew.step()
        except Exception as error:  # not over any one of them
            callers = crew.readers
            crew.clear()
            for caller in callers:
                self._fail(caller, error)

    def _seated(self) -> Crew[_Caller]:
        """The crew whose turn it is, with all who may join it now."""
        crew = self._crew
        with self._changed:
            if crew is None or crew.idle:
                crew = self._crew = Crew(self._coming[0].engine, self._take, self._fail)
            while self._coming and self._coming[0].engine is crew.engine:
                crew.add(self._coming.popleft())
        return crew

    def _take(self, caller: _Caller, chunk: Chunk) -> None:
        """Its reader may see the one before the other; both are told of when the turn ends."""
        caller.unread.append(chunk)
        caller.left -= chunk.completion is not None

    def _fail(self, caller: _Caller, error: Exception) -> None:
        with self._changed:
            caller.error, caller.left = error, 0

    def _leave(self, caller: _Caller) -> None:
        """Whoever has the turn lets go of it; if nobody has, at once."""
        self._leaving.append(caller)
        self._tidy()

    def _tidy(self) -> None:
        with self._changed:
            if self._turn is not None or not self._leaving:
                return
            self._turn = get_ident()
        self._end_turn()

    def _end_turn(self) -> None:
        try:
            self._let_go()
        finally:
            with self._changed:
                self._turn = None
                self._changed.notify_all()
        self._tidy()  # somebody may have left since, and seen that the turn was taken

    def _let_go(self) -> None:
        while self._leaving:
            caller = self._leaving.popleft()
            with self._changed:
                if caller in self._coming:
                    self._coming.remove(caller)
            if self._crew is not None:
                self._crew.drop(caller)
