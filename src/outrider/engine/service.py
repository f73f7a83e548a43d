"""The engine behind an asyncio face: one thread owns it, any number of coroutines read from it.

What happens to one request stays with it. Its reader may leave (cancelled before the next step), fall too far behind
(cancelled, so that unread text cannot pile up), or it may itself make a step fail: then everybody is taken out of the
engine and tried alone, the culprit is told, and the others go on from the tokens they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter

from outrider.engine.engine import Engine
from outrider.engine.sequence import NO_SLOT
from outrider.engine.sequence import Sequence as Running
from outrider.engine.tickets import Delivery, Load, Stream, Ticket
from outrider.errors import Busy, InvalidRequest, RequestFailed, Unavailable
from outrider.types import Chunk

log = logging.getLogger("outrider.engine")

_UNEXPLAINED = 3
"""Failed steps in a row that nobody, tried alone, can be blamed for: then it is the engine."""


class Service:
    """Takes sequences from the event loop, gives back what they gain, step by step.

    At most `max_batch` of the model plus `max_queue` sequences are on their way at a time, and at most `buffer`
    deliveries per sequence lie unread. `probe` makes a small sequence of its own, run after a failure to find out
    whether the engine still works.

    The methods are for the event loop's thread; names with `_engine_` belong to the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_queue: int = 64,
        buffer: int = 512,
        probe: Callable[[], Running] | None = None,
    ) -> None:
        self.capacity = engine.model.max_batch + max_queue
        self.load = Load()
        self.failure: str | None = None
        """Why the engine is of no use any more."""
        self._engine = engine
        self._buffer = buffer
        self._probe = probe
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: set[Stream] = set()
        self._typical = 1.0
        """Seconds a sequence lately took from coming to leaving."""
        self._tickets: dict[int, Ticket] = {}
        """The engine thread's: every sequence it holds, by id."""
        self._unexplained = 0
        self._over = False
        self._thread = Thread(target=self._engine_run, name="outrider-engine", daemon=True)

    # -- the event loop's side

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._thread.is_alive() and not self._stopping and self.failure is None

    @property
    def open(self) -> int:
        """Sequences on their way."""
        return sum(stream.left for stream in self._streams)

    def stream(self, *sequences: Running) -> Stream:
        """Begin sequences, all or none; iterate over what they gain, and close it when done. `Busy` where the queue is
        full, `Unavailable` where nothing can be begun at all."""
        if self.failure is not None:
            raise Unavailable(f"the engine has failed ({self.failure}); restart the server")
        if not self.ready:
            raise Unavailable("the server is stopping; ask again once it is back")
        if len(sequences) > self.capacity:
            raise InvalidRequest(f"n: {len(sequences)} answers at once are too many; at most {self.capacity} fit")
        waiting = self.open + len(sequences) - self.capacity
        if waiting > 0:
            seconds = self._typical * waiting / self._engine.model.max_batch
            raise Busy("too many requests are waiting; ask again later", min(60.0, max(1.0, seconds)))
        stream = Stream(sequences, self._buffer, self._cancel)
        self._streams.add(stream)
        self._orders.put(partial(self._engine_add, stream))
        return stream

    async def stop(self, grace: float = 30.0) -> None:
        """Take nothing new; finish what runs within `grace` seconds, then cancel the rest and end the thread."""
        self._stopping = True
        deadline = perf_counter() + grace
        while self._streams and self.failure is None and perf_counter() < deadline:
            await asyncio.sleep(0.02)
        for stream in list(self._streams):
            self._end(stream, Unavailable("the server is stopping; ask again once it is back"))
        self._orders.put(self._engine_stop)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, 30)

    def _cancel(self, stream: Stream) -> None:
        """Nobody wants it any more."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._orders.put(partial(self._engine_drop, stream))

    def _end(self, stream: Stream, error: Exception) -> None:
        self._cancel(stream)
        stream.fail(error)

    def _take(self, stream: Stream, delivery: Delivery) -> None:
        """What the engine hands over, back on the loop's thread."""
        if stream not in self._streams:
            return
        if not stream.take(delivery):
            self._end(stream, RequestFailed("the answer was read too slowly and has been cancelled"))
        elif delivery.chunk.completion is not None:
            self._typical += 0.1 * (perf_counter() - stream.begun - self._typical)
            if not stream.left:
                self._streams.discard(stream)

    def _failed(self, reason: str) -> None:
        self.failure = reason
        for stream in list(self._streams):
            self._end(stream, Unavailable(f"the engine has failed ({reason}); restart the server"))

    # -- the engine thread's side

    def _engine_run(self) -> None:
        try:
            while self._engine_obey():
                self._engine_step()
                self._engine_note()
        except BaseException as error:
            log.exception("the engine has failed")
            self._engine_tell(self._failed, f"{type(error).__name__}: {error}")

    def _engine_obey(self) -> bool:
        """Carry out what the loop asked for; waits while there is nothing to do. False: the end."""
        wait = not self._tickets
        while True:
            try:
                order = self._orders.get(block=wait)
            except Empty:
                return not self._over
            order()
            wait = not self._tickets and not self._over
            if wait:
                self._engine_note()

    def _engine_add(self, stream: Stream) -> None:
        for index, sequence in enumerate(stream.sequences):
            self._tickets[sequence.id] = Ticket(sequence, stream, index)
            self._engine.add(sequence)

    def _engine_drop(self, stream: Stream) -> None:
        for sequence in stream.sequences:
            if self._tickets.pop(sequence.id, None) is not None:
                self._engine.remove(sequence)

    def _engine_stop(self) -> None:
        for ticket in list(self._tickets.values()):
            self._engine.remove(ticket.sequence)
        self._tickets.clear()
        self._over = True

    def _engine_step(self) -> None:
        started = perf_counter()
        if not self._tickets:
            return
        try:
            chunks = self._engine.step()
        except Exception as error:
            log.exception("a step has failed")
            self._engine_recover(error)
            return
        self._unexplained = 0
        now = perf_counter()
        for ticket in self._tickets.values():
            ticket.note_admission(started)
        for chunk in chunks:
            if gaining := self._tickets.get(chunk.index):
                self._engine_gained(gaining, gaining.delivery(chunk, now))

    def _engine_gained(self, ticket: Ticket, delivery: Delivery) -> None:
        if ticket.sequence.failure is not None:
            self._engine_fail(ticket, ticket.sequence.failure)
            return
        if ticket.sequence.finish_reason is not None:
            del self._tickets[ticket.sequence.id]
        self._engine_tell(self._take, ticket.stream, delivery)

    def _engine_fail(self, ticket: Ticket, error: Exception) -> None:
        """The whole request goes: an answer short of a choice is none."""
        self._engine_drop(ticket.stream)
        if not isinstance(error, RequestFailed):
            error = RequestFailed(f"this request could not be carried through: {type(error).__name__}: {error}")
        self._engine_tell(self._end, ticket.stream, error)

    def _engine_recover(self, error: Exception) -> None:
        """A step has failed, and nobody knows over whom: all leave, those that ran are tried one by one, and whoever
        passes comes back and is computed again from its tokens."""
        held = list(self._tickets.values())
        ran = [ticket for ticket in held if ticket.sequence.slot != NO_SLOT] or held
        for ticket in held:
            self._engine.remove(ticket.sequence)
        guilty = False
        for ticket in ran:
            if ticket.sequence.id in self._tickets and (missed := ticket.missed(perf_counter())) is not None:
                self._engine_gained(ticket, missed)
            if ticket.sequence.id in self._tickets:
                guilty = not self._engine_passes(ticket) or guilty
        if guilty:
            self._engine_check()
        else:
            self._unexplained += 1
            if self._unexplained >= _UNEXPLAINED:
                raise error
        for ticket in held:
            if ticket.sequence.id in self._tickets:
                self._engine.add(ticket.sequence)

    def _engine_passes(self, ticket: Ticket) -> bool:
        """One step of this sequence alone; it is out of the engine again afterwards."""
        try:
            self._engine.add(ticket.sequence)
            chunks = self._engine_first(ticket.sequence)
        except Exception as error:
            log.exception("a request has failed")
            self._engine_fail(ticket, error)
            return False
        finally:
            self._engine.remove(ticket.sequence)
        for chunk in chunks:
            self._engine_gained(ticket, ticket.delivery(chunk, perf_counter()))
        return True

    def _engine_first(self, sequence: Running) -> Sequence[Chunk]:
        """Steps until the sequence gains something; those before only fill its cache."""
        while not (chunks := self._engine.step()):
            pass
        return [chunk for chunk in chunks if chunk.index == sequence.id]

    def _engine_check(self) -> None:
        """Does the engine still work? Raises where it does not."""
        if self._probe is None:
            return
        probe = self._probe()
        self._engine.add(probe)
        try:
            self._engine_first(probe)
        finally:
            self._engine.remove(probe)

    def _engine_note(self) -> None:
        self.load = Load.of(self._engine)

    def _engine_tell(self, act: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None, "the service has been started"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *arguments)
