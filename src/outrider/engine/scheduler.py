"""Who runs, and whose prompt is worked on next. Decisions only, and no torch here: the engine carries them out.

Sequences come first come, first served. Those that run always came before those that wait, so `running` is in order of
arrival, and the one to give way when room gets scarce is the last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from outrider.errors import InvalidRequest

_LATELY = 1 / 16
"""What a step counts for in the average of them."""
_BESIDE = 512
"""Rows of one prompt beside decoding, at most: what decodes waits no longer for them, however large a chunk is."""
_PIECES = 8
"""They come in so many parts of that: passes are made for few sizes, and one that fits none is filled up."""
LOOKAHEAD = 32
"""Tokens a running sequence is taken to gain next: room for them is set aside."""


class Schedulable(Protocol):
    """What a scheduler knows of a sequence."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        ...

    @property
    def missing(self) -> int:
        """Rows to run before it can decode: tokens before the last that the cache does not hold. The engine keeps it
        true while the sequence runs."""
        ...

    @property
    def leader(self) -> Schedulable | None:
        """A sequence that is working on the same prompt; it is waited for."""
        ...


S = TypeVar("S", bound=Schedulable)


class Plan(NamedTuple, Generic[S]):
    """One step: rows of prompts to run first, then the sequences to decode, those included whose prompts are then
    complete."""

    prefill: list[tuple[S, int]]
    decode: list[S]


class Scheduler(Generic[S]):
    """Sequences wait, then run until finished or aborted. Per step: `preempt`, `admit`, `plan`.

    Invariants: at most `max_running` run; after `preempt` and `admit` their tokens and what they are about to gain fit
    into `kv_tokens`, unless only one runs; a sequence that waits never overtakes one that came before it.
    """

    def __init__(self, max_running: int, kv_tokens: int, chunk: int) -> None:
        """`chunk`: rows of prompts per step, while nobody decodes."""
        if kv_tokens < 1:
            raise InvalidRequest(f"kv_tokens must be at least 1, got {kv_tokens}")
        self.kv_tokens = kv_tokens
        self._max_running = max_running
        self._chunk = chunk
        self._gained = 1.0
        """Tokens that a step has lately brought each of those in it."""
        self._waiting: deque[S] = deque()
        self.running: list[S] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.running

    @property
    def kv_used(self) -> int:
        """Tokens of the running sequences."""
        return sum([len(sequence.tokens) for sequence in self.running])

    def add(self, sequence: S) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: S) -> None:
        """Take a sequence out, waiting or running; one that has left already stays out."""
        for group in (self.running, self._waiting):
            if sequence in group:
                group.remove(sequence)

    def gained(self, sequences: int, tokens: int) -> None:
        """A step has brought so many sequences so many tokens."""
        self._gained += _LATELY * (tokens / sequences - self._gained)

    def preempt(self) -> list[S]:
        """Send back to the front of the queue what no longer fits, the youngest first; what they hold must be let go.
        They keep their tokens, and are run again from the first when they are admitted again."""
        gone: list[S] = []
        if self.kv_used + LOOKAHEAD * len(self.running) <= self.kv_tokens:
            return gone
        while len(self.running) > 1 and sum(map(_claim, self.running)) > self.kv_tokens:
            gone.append(self.running.pop())
            self._waiting.appendleft(gone[-1])
        return gone

    def admit(self) -> list[S]:
        """Move waiting sequences, in order, into the running set while they fit; the engine begins them.

        A newcomer needs room for itself, and leaves the others twice their claim: otherwise it might soon have to go
        again, and its prompt would have been run for nothing."""
        joined: list[S] = []
        if not self._waiting:
            return joined
        spare = self.kv_tokens - sum(len(s.tokens) + min(s.remaining, 2 * LOOKAHEAD) for s in self.running)
        while self._waiting and len(self.running) < self._max_running:
            sequence = self._waiting[0]
            spare -= len(sequence.tokens) + min(sequence.remaining, 2 * LOOKAHEAD)
            if spare < 0 and self.running:
                break
            joined.append(self._waiting.popleft())
            self.running.append(joined[-1])
        return joined

    def plan(self) -> Plan[S]:
        """The next step of what runs.

        While some decode, prompts get as large a part of `chunk` as there are sequences with prompts among all, but at
        least a quarter of _BESIDE and at most that for each of them, and half a chunk for all, where it is larger than
        that: decoding goes on, and so does every prompt. Steps that bring several tokens each leave as much
        more to prompts, which would otherwise wait for sequences that finish sooner. Half of the rows go to the prompt
        that came first, so that a long one progresses; the rest to those with the least to do, so that short ones
        overtake it.
        """
        joining = [s for s in self.running if s.missing]
        ready = len(self.running) - len(joining)
        rows = self._chunk
        if ready and joining:
            beside = min(rows, _BESIDE)
            piece = max(1, beside // _PIECES)
            part = max(beside // 4, rows * len(joining) // len(self.running)) * max(1.0, self._gained)
            most = min(beside * len(joining), max(beside, rows // 2))
            rows = min(most, max(1, round(part / piece)) * piece)
        able = [s for s in joining if s.leader is None]
        given = {id(s): 0 for s in able}
        turns = [(s, -(-rows // 2)) for s in able[:1]] + [(s, rows) for s in sorted(able, key=_missing)]
        for sequence, most in turns:
            taken = min(sequence.missing - given[id(sequence)], most, rows)
            given[id(sequence)] += taken
            rows -= taken
        prefill = [(s, given[id(s)]) for s in able if given[id(s)]]
        complete = {id(s) for s, count in prefill if count == s.missing}
        return Plan(prefill, [s for s in self.running if not s.missing or id(s) in complete])


def _missing(sequence: Schedulable) -> int:
    return sequence.missing


def _claim(sequence: Schedulable) -> int:
    return len(sequence.tokens) + min(sequence.remaining, LOOKAHEAD)
