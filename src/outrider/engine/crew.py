"""Everybody in one engine, stepped together: what one of them does never reaches another.

A sequence may make a step fail, and the exception does not say whose it was. Then all leave the engine, those that ran
are tried alone, whoever fails again is told, and the others go on from the tokens they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic

from outrider.engine.engine import Engine
from outrider.engine.sequence import NO_SLOT
from outrider.engine.sequence import Sequence as Running
from outrider.engine.tickets import Delivery, R, Ticket
from outrider.types import Chunk

log = logging.getLogger("outrider.engine")

_UNEXPLAINED = 3
"""Failed steps in a row that nobody, tried alone, can be blamed for: then it is the engine."""


class Crew(Generic[R]):
    """The sequences of any number of readers. `deliver` is given what a reader's sequences gain, `fail` why a reader
    gets no more; all of its sequences have left by then, since an answer short of a choice is none. `probe` makes a
    small sequence, run after a failure to find out whether the engine still works.

    Belongs to the thread that steps it. Invariant: outside of `step`, the engine holds exactly the sequences that have
    tickets here.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[R, Delivery], None],
        fail: Callable[[R, Exception], None],
        probe: Callable[[], Running] | None = None,
    ) -> None:
        self.engine = engine
        self._deliver = deliver
        self._fail = fail
        self._probe = probe
        self._tickets: dict[int, Ticket[R]] = {}
        """By the sequence's id."""
        self._unexplained = 0

    @property
    def idle(self) -> bool:
        return not self._tickets

    @property
    def readers(self) -> list[R]:
        return list(dict.fromkeys(ticket.stream for ticket in self._tickets.values()))

    def add(self, reader: R) -> None:
        for index, sequence in enumerate(reader.sequences):
            self._tickets[sequence.id] = Ticket(sequence, reader, index)
            self.engine.add(sequence)

    def drop(self, reader: R) -> None:
        """Nobody reads what it would still gain; safe to repeat."""
        for sequence in reader.sequences:
            if self._tickets.pop(sequence.id, None) is not None:
                self.engine.remove(sequence)

    def clear(self) -> None:
        for reader in self.readers:
            self.drop(reader)

    def step(self) -> None:
        """One step of the engine, and what everybody gained is delivered. Raises only where the engine itself does not
        work any more, or was interrupted (Ctrl-C): the readers are then still here."""
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
        now = perf_counter()
        for chunk in chunks:
            if gaining := self._tickets.get(chunk.index):
                self._hand_out(gaining, gaining.delivery(chunk, now))

    def _hand_out(self, ticket: Ticket[R], delivery: Delivery) -> None:
        if ticket.sequence.failure is not None:
            self.drop(ticket.stream)
            self._fail(ticket.stream, ticket.sequence.failure)
            return
        if ticket.sequence.finish_reason is not None:
            del self._tickets[ticket.sequence.id]
        self._deliver(ticket.stream, delivery)

    def _recover(self, error: Exception) -> None:
        """A step has failed, and nobody knows over whom."""
        held = list(self._tickets.values())
        ran = [ticket for ticket in held if ticket.sequence.slot != NO_SLOT] or held
        self._out()
        guilty = False
        for ticket in ran:
            if ticket.sequence.id in self._tickets:
                guilty = not self._passes(ticket) or guilty
        if guilty:
            self._check()
        else:
            log.warning("a step has failed, but over nobody alone; it is taken again", exc_info=error)
            self._unexplained += 1
            if self._unexplained >= _UNEXPLAINED:
                raise error
        self._return(held)

    def _out(self) -> list[Ticket[R]]:
        """Everybody leaves the engine, with what a step that was broken off had still given them."""
        held = list(self._tickets.values())
        for ticket in held:
            self.engine.remove(ticket.sequence)
        for ticket in held:
            if ticket.sequence.id in self._tickets and (missed := ticket.missed(perf_counter())) is not None:
                self._hand_out(ticket, missed)
        return held

    def _return(self, tickets: Sequence[Ticket[R]]) -> None:
        """Those of them that are still wanted and not finished go on."""
        for ticket in tickets:
            if ticket.sequence.id in self._tickets:
                self.engine.add(ticket.sequence)

    def _passes(self, ticket: Ticket[R]) -> bool:
        """One step of this sequence alone; it is out of the engine again afterwards."""
        try:
            self.engine.add(ticket.sequence)
            chunks = self._first(ticket.sequence)
        except Exception as error:
            self.engine.remove(ticket.sequence)
            self.drop(ticket.stream)
            self._fail(ticket.stream, error)
            return False
        self.engine.remove(ticket.sequence)
        for chunk in chunks:
            self._hand_out(ticket, ticket.delivery(chunk, perf_counter()))
        return True

    def _first(self, sequence: Running) -> Sequence[Chunk]:
        """Steps until the sequence gains something; those before only fill its cache."""
        while not (chunks := self.engine.step()):
            pass
        return [chunk for chunk in chunks if chunk.index == sequence.id]

    def _check(self) -> None:
        """Does the engine still work? Raises where it does not."""
        if self._probe is None:
            return
        probe = self._probe()
        self.engine.add(probe)
        try:
            self._first(probe)
        finally:
            self.engine.remove(probe)
