"""Everybody in one engine, stepped together: what one of them does never reaches another.

A request may make a step fail, and the exception does not say whose it was. Then all leave the engine, those that ran
are tried alone, whoever fails again is told, and the others go on from the tokens they have.

An error of the device is nobody's at first: all come back, and are computed again from their tokens. Where that fails
soon again, they are tried alone; and if nobody can be blamed, fewer run together for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Generic

from outrider.core.request import Chunk
from outrider.engine.engine import Engine
from outrider.engine.request import NO_SLOT, Request
from outrider.engine.request_state import R, RequestState

log = logging.getLogger("outrider.engine")

_UNEXPLAINED = 3
"""Failed steps in a row that nobody, tried alone, can be blamed for: then it is the engine."""
_CALM = 256
"""Steps without an error of the device after which one is nobody's."""


class Crew(Generic[R]):
    """The requests of any number of readers. `deliver` is given what a reader's requests gain, `fail` why a reader
    gets no more; all of its requests have left by then, since an answer short of a choice is none. `probe` makes a
    small request, run after a failure to find out whether the engine still works.

    Belongs to the thread that steps it. Invariant: outside of `step`, the engine holds exactly the requests that have
    states here.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[R, Chunk], None],
        fail: Callable[[R, Exception], None],
        probe: Callable[[], Request] | None = None,
    ) -> None:
        self.engine = engine
        self._deliver = deliver
        self._fail = fail
        self._probe = probe
        self._states: dict[int, RequestState[R]] = {}
        """By the request's id."""
        self._unexplained = 0
        self._calm = _CALM
        """Steps since the last error of the device."""

    @property
    def idle(self) -> bool:
        return not self._states

    @property
    def readers(self) -> list[R]:
        return list(dict.fromkeys(state.stream for state in self._states.values()))

    def add(self, reader: R) -> None:
        for index, request in enumerate(reader.requests):
            self._states[request.id] = RequestState(request, reader, index)
            self.engine.add(request)

    def drop(self, reader: R) -> None:
        """Nobody reads what it would still gain; safe to repeat."""
        for request in reader.requests:
            if self._states.pop(request.id, None) is not None:
                self.engine.remove(request)

    def clear(self) -> None:
        for reader in self.readers:
            self.drop(reader)

    def step(self) -> None:
        """One step of the engine, and what everybody gained is delivered. Raises only where the engine itself does not
        work any more (`DeviceLost` where its device does not), or was interrupted (Ctrl-C): the readers are then still
        here."""
        if self.idle:
            return
        try:
            chunks = self.engine.step()
        except Exception as error:
            self._recover(error)
            return
        except BaseException:
            self._return(self._out())
            raise
        self._unexplained = 0
        self._calm += 1
        now = perf_counter()
        states = self._states
        for chunk in chunks:
            if gaining := states.get(chunk.index):
                self._hand_out(gaining, gaining.addressed(chunk, now))

    def _hand_out(self, state: RequestState[R], chunk: Chunk) -> None:
        request = state.request
        if request.failure is not None:
            self.drop(state.stream)
            self._fail(state.stream, request.failure)
            return
        if request.finish_reason is not None:
            del self._states[request.id]
        self._deliver(state.stream, chunk)

    def _recover(self, error: Exception) -> None:
        """A step has failed, and nobody knows over whom."""
        device = self.engine.recover(error)
        held = list(self._states.values())
        ran = [state for state in held if state.request.slot != NO_SLOT] or held
        self._out()
        if device:
            calm, self._calm = self._calm, 0
            log.warning("the device has failed, and works again; what ran is computed again", exc_info=error)
            if calm >= _CALM:
                self._return(held)
                return
        guilty = False
        for state in ran:
            if state.request.id in self._states:
                guilty = not self._passes(state) or guilty
        if guilty:
            self._check()
        elif device:
            self.engine.scheduler.narrow(len(ran))
        else:
            log.warning("a step has failed, but over nobody alone; it is taken again", exc_info=error)
            self._unexplained += 1
            if self._unexplained >= _UNEXPLAINED:
                raise error
        self._return(held)

    def _out(self) -> list[RequestState[R]]:
        """Everybody leaves the engine, with what a step that was broken off had still given them."""
        held = list(self._states.values())
        for state in held:
            self.engine.remove(state.request)
        for state in held:
            if state.request.id in self._states and (missed := state.missed(perf_counter())) is not None:
                self._hand_out(state, missed)
        return held

    def _return(self, states: Sequence[RequestState[R]]) -> None:
        """Those of them that are still wanted and not finished go on."""
        for state in states:
            if state.request.id in self._states:
                self.engine.add(state.request)

    def _passes(self, state: RequestState[R], again: bool = True) -> bool:
        """Steps of this request alone; it is out of the engine again afterwards. An error of the device is believed
        the second time: `again`."""
        try:
            self.engine.add(state.request)
            for chunk in self._first(state.request):
                self._hand_out(state, state.addressed(chunk, perf_counter()))
        except Exception as error:
            device = self.engine.recover(error)
            self.engine.remove(state.request)
            if device and again:
                return self._passes(state, again=False)
            self.drop(state.stream)
            self._fail(state.stream, error)
            return False
        self.engine.remove(state.request)
        return True

    def _first(self, request: Request) -> Iterator[Chunk]:
        """Steps of this request alone until it has gained something twice: the first time may be by the pass of its
        prompt, without a step's draft and pass; those before only fill its cache. Ends where the request does, or is
        dropped."""
        gained = 0
        while gained < 2 and not self.engine.idle:
            for chunk in self.engine.step():
                gained += 1
                yield chunk

    def _check(self) -> None:
        """Does the engine still work? Raises where it does not."""
        if self._probe is None:
            return
        probe = self._probe()
        self.engine.add(probe)
        try:
            for _ in self._first(probe):
                pass
        except Exception as error:
            self.engine.recover(error)
            raise
        finally:
            self.engine.remove(probe)
