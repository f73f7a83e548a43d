"""The engine behind an asyncio face: one thread owns it, any number of coroutines read from it.

What happens to one request stays with it. Its reader may leave (cancelled before the next step), fall too far behind
(cancelled, so that unread text cannot pile up), or make a step fail (`Crew`): then it is told so, and the others go on.
A device that fails is no request's doing: what ran is computed again, unless only another process can use it (`lost`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import perf_counter

from outrider.core.request import Chunk
from outrider.engine.crew import Crew
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.request_state import Load, OutputStream
from outrider.errors import Busy, DeviceLost, InvalidRequest, RequestFailed, Unavailable

log = logging.getLogger("outrider.engine")

_LONGEST = 60.0
"""Seconds to ask again in, at most: clients that are told more go by a guess of their own."""


class Service:
    """Takes requests from the event loop, gives back what they gain, step by step.

    At most `max_batch` of the model plus `max_queue` requests are on their way at a time (up to twice as many where
    each belongs to another principal), and at most `buffer` chunks per request lie unread. `probe` makes a small
    request of its own, run after a failure to find out whether the engine still works.

    The methods are for the event loop's thread; names with `_engine_` belong to the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_queue: int = 64,
        buffer: int = 512,
        probe: Callable[[], Request] | None = None,
    ) -> None:
        self.capacity = engine.model.max_batch + max_queue
        self.load = Load()
        self.failure: str | None = None
        """Why the engine is of no use any more."""
        self.lost: DeviceLost | None = None
        """The same, where it is of use to another process."""
        self._engine = engine
        self._buffer = buffer
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: set[OutputStream] = set()
        self._typical = 1.0
        """Seconds a request lately kept its place."""
        self._crew: Crew[OutputStream] = Crew(engine, self._engine_hand_out, self._engine_fail, probe)
        """The engine thread's: every request it holds."""
        self._over = False
        self._untold: list[Callable[[], None]] = []
        """The engine thread's: what the loop is to carry out once the load is as of this step."""
        self._thread = Thread(target=self._engine_run, name="outrider-engine", daemon=True)

    # -- the event loop's side

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._thread.is_alive() and not self._stopping and self.failure is None

    @property
    def ended(self) -> bool:
        """Whether nothing steps here: it was not started, or `stop` has come to its end."""
        return not self._thread.is_alive()

    @property
    def open(self) -> int:
        """Requests on their way."""
        return sum(stream.left for stream in self._streams)

    def stream(self, *requests: Request) -> OutputStream:
        """Begin requests, all or none; iterate over what they gain, and close it when done. `Busy` where the queue is
        full, `Unavailable` where nothing can be begun at all."""
        if self.failure is not None:
            raise self._unavailable()
        if not self.ready:
            raise Unavailable("the engine is stopping; ask again once it is back")
        if len(requests) > self.capacity:
            raise InvalidRequest(f"n: {len(requests)} answers at once are too many; at most {self.capacity} fit")
        if self._full(requests):
            raise Busy("too many requests are waiting; ask again later", self._patience(len(requests)))
        stream = OutputStream(requests, self._buffer, self._cancel)
        self._streams.add(stream)
        self._commands.put(partial(self._crew.add, stream))
        return stream

    def _full(self, requests: Sequence[Request]) -> bool:
        """A principal that has nothing on its way yet, and asks for little, is taken beyond the limit, up to twice of
        it: no few can keep others out."""
        coming, little = self.open + len(requests), len(requests) <= max(1, self.capacity // 8)
        mine = any(stream.left and stream.requests[0].principal == requests[0].principal for stream in self._streams)
        return coming > self.capacity * (2 if little and not mine else 1)

    def _patience(self, coming: int) -> float:
        """Seconds until those who wait, and so many more, have places, going by how long others kept theirs."""
        most = self._engine.model.max_batch
        return min(_LONGEST, max(1.0, self._typical * (self.open + coming - most) / most))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The engine stands still meanwhile, between two steps; for any thread but its own."""
        reached, done = Event(), Event()

        def stand_still() -> None:
            reached.set()
            done.wait()

        self._commands.put(stand_still)
        try:
            while self.ready and not reached.wait(0.1):
                pass
            yield
        finally:
            done.set()

    async def stop(self, grace: float = 30.0) -> None:
        """Take nothing new; finish what runs within `grace` seconds, then cancel the rest and end the thread."""
        self._stopping = True
        deadline = perf_counter() + grace
        while self._streams and self.failure is None and perf_counter() < deadline:
            await asyncio.sleep(0.02)
        for stream in list(self._streams):
            self._end(stream, Unavailable("the engine is stopping; ask again once it is back"))
        self._commands.put(self._engine_stop)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, 30)

    def _cancel(self, stream: OutputStream) -> None:
        """Nobody wants it any more."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._commands.put(partial(self._crew.drop, stream))

    def _end(self, stream: OutputStream, error: Exception) -> None:
        self._cancel(stream)
        stream.fail(error)

    def _carry_out(self, acts: Sequence[Callable[[], None]]) -> None:
        """What a step brought: the loop is woken once for all of it, and what goes wrong with one stays with it."""
        for act in acts:
            asyncio.get_running_loop().call_soon(act)

    def _take(self, stream: OutputStream, chunk: Chunk) -> None:
        """What the engine hands over, back on the loop's thread."""
        if stream not in self._streams:
            return
        if not stream.take(chunk):
            self._end(stream, RequestFailed("the answer was read too slowly and has been cancelled"))
        elif chunk.completion is not None:
            begun = stream.requests[chunk.index].admitted or stream.begun
            self._typical += 0.1 * (perf_counter() - begun - self._typical)
            if not stream.left:
                self._streams.discard(stream)

    def _failed(self, error: BaseException) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self.lost = error if isinstance(error, DeviceLost) else None
        for stream in list(self._streams):
            self._end(stream, self._unavailable())

    def _unavailable(self) -> Unavailable:
        if self.lost is not None:
            return DeviceLost(*self.lost.args)
        return Unavailable(f"the engine has failed ({self.failure}); load the model again (restart the server)")

    # -- the engine thread's side

    def _engine_run(self) -> None:
        try:
            while self._engine_drain():
                self._crew.step()
                self._engine_note()
        except BaseException as error:
            log.exception("the engine has failed")
            self._untold.append(partial(self._failed, error))
            self._engine_tell()

    def _engine_drain(self) -> bool:
        """Carry out what the loop asked for; waits while there is nothing to do. False: the end."""
        wait = self._crew.idle
        while True:
            try:
                command = self._commands.get(block=wait)
            except Empty:
                return not self._over
            command()
            wait = self._crew.idle and not self._over
            if wait:
                self._engine_note()

    def _engine_stop(self) -> None:
        self._crew.clear()
        self._over = True

    def _engine_hand_out(self, stream: OutputStream, chunk: Chunk) -> None:
        self._untold.append(partial(self._take, stream, chunk))

    def _engine_fail(self, stream: OutputStream, error: Exception) -> None:
        if not isinstance(error, RequestFailed):
            log.error("a request has failed", exc_info=error)
            error = RequestFailed(f"this request could not be carried through: {type(error).__name__}: {error}")
        self._untold.append(partial(self._end, stream, error))

    def _engine_note(self) -> None:
        """The load first: whoever has an answer must not find it running still."""
        self.load = Load.of(self._engine)
        self._engine_tell()

    def _engine_tell(self) -> None:
        assert self._loop is not None, "the service has been started"
        if self._untold and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._carry_out, self._untold)
            self._untold = []
