"""Who runs, and whose prompt is worked on next. Decisions only, and no torch here: the engine carries them out.

Principals take turns (`FairQueue`); of one principal's requests, first come is first served. So `running` is in the
order in which places were given, and the one to give way when room gets scarce is the last of whoever holds most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from outrider.engine.fair_queue import FairQueue, Owned, places
from outrider.errors import InvalidRequest

_LATELY = 1 / 16
"""What a step counts for in the average of them."""
_BESIDE = 512
"""Rows of one prompt beside decoding, at most: what decodes waits no longer for them, however large a chunk is."""
_LARGE = 8
"""A chunk of so many times that is one of a device on which a pass of those rows takes little longer than a short one:
there prompts get them whatever decodes."""
_PIECES = 8
"""They come in so many parts of that: passes are made for few sizes, and one that fits none is filled up."""
LOOKAHEAD = 32
"""Tokens a running request is taken to gain next: room for them is set aside."""
SPARED = 64
"""Steps in which a request that has made way for another principal is not asked to again."""
CALM = 256
"""Steps after which twice as many may run together again, where they were too many."""


class Schedulable(Owned, Protocol):
    """What a scheduler knows of a request."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        ...

    @property
    def num_uncomputed_tokens(self) -> int:
        """Rows to run before it can decode: tokens before the last that the cache does not hold. The engine keeps it
        true while the request runs."""
        ...

    @property
    def prefix_donor(self) -> Schedulable | None:
        """A request that is working on the same prompt; it is waited for."""
        ...


S = TypeVar("S", bound=Schedulable)


class SchedulerOutput(NamedTuple, Generic[S]):
    """One step: rows of prompts to run first, then the requests to decode, those included whose prompts are then
    complete."""

    prefill: list[tuple[S, int]]
    decode: list[S]


class Scheduler(Generic[S]):
    """Requests wait, then run until finished or aborted. Per step: `preempt`, `admit`, `schedule`.

    Invariants: at most `max_running` run (fewer after `narrow`); after `preempt` and `admit` their tokens and what they
    are about to gain fit into `kv_tokens`, and the caches hold them, unless only one runs; a request that waits never
    overtakes one of its principal and priority that came before it; one that makes way for another principal does so at
    most once in `SPARED` steps.
    """

    def __init__(
        self,
        max_running: int,
        kv_tokens: int,
        chunk: int,
        holds: Callable[[Sequence[int]], bool] = lambda lengths: True,
    ) -> None:
        """`chunk`: rows of prompts per step, while nobody decodes. `holds`: whether the caches have room for requests
        of so many tokens, as they are now."""
        if kv_tokens < 1:
            raise InvalidRequest(f"kv_tokens must be at least 1, got {kv_tokens}")
        self.kv_tokens = kv_tokens
        self._max_running = max_running
        self._most = max_running
        """Those that may run together now."""
        self._narrowed = 0
        """The step in which that was last changed."""
        self._chunk = chunk
        self._holds = holds
        self._gained = 1.0
        """Tokens that a step has lately brought each of those in it."""
        self._waiting: FairQueue[S] = FairQueue()
        self.running: list[S] = []
        self._step = 0
        self._spared: dict[int, int] = {}
        """By a request's `id()`, as long as it is here: the step until which it has made way enough."""
        self._came_together: set[int] = set()
        """`id()` of those here that ran when nobody decoded last, and of whoever came while the first of them were
        read."""
        self._still_coming = False
        """Whether whoever comes now is one of those."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.running

    @property
    def kv_used(self) -> int:
        """Tokens of the running requests."""
        return sum([len(request.tokens) for request in self.running])

    def add(self, request: S) -> None:
        self._waiting.add(request)

    def remove(self, request: S) -> None:
        """Take a request out, waiting or running; one that has left already stays out."""
        if request in self.running:
            self.running.remove(request)
        if request in self._waiting:
            self._waiting.remove(request)
        self._spared.pop(id(request), None)
        self._came_together.discard(id(request))

    def narrow(self, running: int) -> None:
        """A step of so many has failed, over none of them alone: half as many run together, for a while."""
        self._most, self._narrowed = max(1, running // 2), self._step

    def gained(self, requests: int, tokens: int) -> None:
        """A step has brought so many requests so many tokens."""
        self._gained += _LATELY * (tokens / requests - self._gained)

    def preempt(self) -> list[S]:
        """Send back to the front of their lines what no longer fits, and then what has to make way for principals that
        hold less; what they hold must be let go. They keep their tokens, and are run again from the first when they are
        admitted again."""
        self._step += 1
        if self._most < self._max_running and self._step - self._narrowed >= CALM:
            self._most, self._narrowed = min(2 * self._most, self._max_running), self._step
        return self.shed() + self._make_way()

    def shed(self) -> list[S]:
        """The first part of `preempt`, until nobody has to go: what requests share they have let go of only then."""
        gone: list[S] = []
        while len(self.running) > 1 and not self._is_room():
            gone.append(_youngest(self.running, places(self.running)))
            self.running.remove(gone[-1])
            self._waiting.put_back(gone[-1])
        return gone

    def _is_room(self) -> bool:
        """For what runs."""
        lengths = [len(request.tokens) for request in self.running]
        # Nobody claims more than so much, which at most steps is room enough for all.
        most = sum(lengths) + LOOKAHEAD * len(lengths)
        fit = most <= self.kv_tokens or sum(map(_claim, self.running)) <= self.kv_tokens
        return fit and self._holds(lengths)

    def _make_way(self) -> list[S]:
        """Requests sent back so that the next in the queue has a place. Its principal holds at least two fewer than
        theirs, so that nobody makes way who would be asked to come back for it; and where that would not be room enough
        nobody does."""
        held = places(self.running) if self._waiting else Counter[str]()
        newcomer = self._waiting.next(held)
        if newcomer is None or max(held.values(), default=0) < held[newcomer.principal] + 2:
            return []
        staying, gone = list(self.running), list[S]()
        while not self._fits(newcomer, staying):
            able = [s for s in staying if self._may_go(s) and held[s.principal] >= held[newcomer.principal] + 2]
            if not able:
                return []
            gone.append(_youngest(able, held))
            staying.remove(gone[-1])
            held[gone[-1].principal] -= 1
        for request in gone:
            self._spared[id(request)] = self._step + SPARED
            self._waiting.put_back(request)
        self.running[:] = staying
        return gone

    def _may_go(self, request: S) -> bool:
        return self._spared.get(id(request), 0) <= self._step

    def _fits(self, newcomer: S, running: Sequence[S]) -> bool:
        """A newcomer needs room for itself, and leaves the others twice their claim: otherwise it might soon have to go
        again, and its prompt would have been run for nothing."""
        if len(running) >= self._most:
            return False
        wanted = [len(s.tokens) + min(s.remaining, 2 * LOOKAHEAD) for s in (*running, newcomer)]
        return not running or (sum(wanted) <= self.kv_tokens and self._holds(wanted))

    def admit(self) -> list[S]:
        """Move waiting requests, in order, into the running set while they fit; the engine begins them."""
        joined: list[S] = []
        held = places(self.running) if self._waiting else Counter[str]()
        while (request := self._waiting.next(held)) is not None and self._fits(request, self.running):
            self._waiting.serve(request)
            self.running.append(request)
            joined.append(request)
            held[request.principal] += 1
            if id(request) in self._spared:  # its prompt is run again: that must not be for nothing
                self._spared[id(request)] = self._step + SPARED
        return joined

    def schedule(self) -> SchedulerOutput[S]:
        """The next step of what runs.

        While some decode, prompts get as large a part of `chunk` as there are requests with prompts among all, or
        principals that have nothing but prompts, but at least a quarter of what one may bring beside decoding, and at
        most that for each: decoding goes on, and so does every prompt. Steps that bring several tokens each leave as
        much more to prompts, which would otherwise wait for requests that finish sooner. Of a large chunk every prompt
        gets what it may bring, all together a quarter: what is given in small pieces takes longer for all. Where all
        that decode came together with those, it is as large a part as there are with prompts, and all of it where that
        is enough for the rest: they wait as they might have for their own first token.
        Half of the rows go to the prompt that came first, so that a long one progresses; the rest to principals by
        turns, and of each to the prompt with the least to do, so that short ones overtake it.
        """
        joining = [s for s in self.running if s.num_uncomputed_tokens]
        if not joining:
            self._came_together.clear()
            return SchedulerOutput([], list(self.running))
        rows = self._chunk
        if len(joining) < len(self.running):
            rows = self._beside_decoding(joining)
        else:
            self._came_together, self._still_coming = {id(s) for s in joining}, True
        able = [s for s in joining if s.prefix_donor is None]
        given = {id(s): 0 for s in able}
        turns = [(s, -(-rows // 2)) for s in able[:1]] + [(s, rows) for s in _by_turns(able)]
        for request, most in turns:
            taken = min(request.num_uncomputed_tokens - given[id(request)], most, rows)
            given[id(request)] += taken
            rows -= taken
        prefill = [(s, given[id(s)]) for s in able if given[id(s)]]
        complete = {id(s) for s, count in prefill if count == s.num_uncomputed_tokens}
        return SchedulerOutput(prefill, [s for s in self.running if not s.num_uncomputed_tokens or id(s) in complete])

    def _beside_decoding(self, joining: Sequence[S]) -> int:
        """Rows of prompts in a step in which others decode."""
        beside = min(self._chunk, _BESIDE)
        if self._chunk < _LARGE * beside:
            piece = max(1, beside // _PIECES)
            part = max(beside // 4, _share(self._chunk, self.running, joining)) * max(1.0, self._gained)
            return min(beside, max(1, round(part / piece)) * piece)
        usual = min(beside * len(joining), self._chunk // 4)
        if not self._came_together.issuperset([id(s) for s in self.running if not s.num_uncomputed_tokens]):
            return usual
        if self._still_coming:
            self._came_together.update(map(id, joining))
            self._still_coming = False
        if sum([s.num_uncomputed_tokens for s in joining]) <= self._chunk:
            return self._chunk
        return max(usual, self._chunk * len(joining) // len(self.running))


def _youngest(requests: Sequence[S], held: Mapping[str, int]) -> S:
    """The one of least priority that was given its place last, of the principal that holds most."""
    return max(enumerate(requests), key=lambda pair: (held[pair[1].principal], pair[1].priority, pair[0]))[1]


def _share(rows: int, running: Sequence[Schedulable], joining: Sequence[Schedulable]) -> int:
    """As large a part of the rows as there are among all, requests or principals, those with prompts and nothing to
    decode."""
    everybody = {s.principal for s in running}
    decoding = {s.principal for s in running if not s.num_uncomputed_tokens}
    return max(rows * len(joining) // len(running), rows * (len(everybody) - len(decoding)) // len(everybody))


def _by_turns(requests: Sequence[S]) -> list[S]:
    """Of each principal the one with the least to do, then of each the next."""
    turn: Counter[str] = Counter()
    order: list[tuple[int, int, int, S]] = []
    for request in sorted(requests, key=lambda s: s.num_uncomputed_tokens):
        order.append((turn[request.principal], request.num_uncomputed_tokens, len(order), request))
        turn[request.principal] += 1
    return [request for *_, request in sorted(order, key=lambda entry: entry[:3])]


def _claim(request: Schedulable) -> int:
    return len(request.tokens) + min(request.remaining, LOOKAHEAD)
