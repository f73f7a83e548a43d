"""The chains that a device drafts: how long the next ones are, for all requests of a step alike.

A device never waits for the host, so a length is given before the steps under way are observed, and their outcomes come
in the order of the lengths. What a step takes with each length the device has measured itself; estimated here is how
often each level of a request's chains is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from outrider.control.ledger import Ledger
from outrider.control.levels import HOPE, Levels
from outrider.control.silence import LATEST, SOONEST, Silence
from outrider.types import Commit

LENGTHS = (0, 1, 2, 3, 4, 6, 8)
"""Those a device is asked for."""
_PLAIN_EVERY, _PLAIN_SOON = 128, 16
"""Drafting steps in a row before a plain one: what that takes, all else is compared with; and before the first one."""
_WORTHWHILE = 1.01
"""What a chain must bring, of plain steps' tokens a second: the drafter has prompts to read as well."""
_LEVEL = 0.1
"""What a level is taken to cost, of a plain step, until something is measured."""


@dataclass(slots=True)
class ChainState:
    """What is known of one request's chains."""

    levels: Levels
    """How often each was right."""
    issued: deque[tuple[int, float]] = field(default_factory=deque)
    """Lengths of steps that have not been observed yet, the oldest first, and how much longer than a plain one each
    takes."""


class Chains:
    def __init__(self, nodes: int, silence: Silence) -> None:
        """Of at most `nodes` nodes. A length of 0 adds to the `silence`, which may have begun on the host."""
        self._newcomers = Levels([HOPE**k for k in range(1, nodes + 1)], HOPE, 1 / 64, 4)
        """What is believed of a request of which nothing is known yet."""
        self._silence = silence
        self._since_plain = _PLAIN_EVERY - _PLAIN_SOON
        self._pause = SOONEST
        """Steps of silence after which a length is tried; longer after every try that did not pay."""

    def newcomer(self) -> ChainState:
        return ChainState(self._newcomers.copy(rate=1 / 24, weight=8))

    def length(
        self, states: Sequence[ChainState], ledgers: Sequence[Ledger], seconds: Mapping[int, float], most: int
    ) -> int:
        """The length, at most `most`, with the most tokens expected a second, so that no request pays much for
        another's. Where that is 0, another is tried now and then. `seconds`: of a step, by its length."""
        if not seconds:
            seconds = {length: 1 + _LEVEL * length for length in LENGTHS}
        plain = seconds[min(seconds)]
        gained = {length: [state.levels.total(length) for state in states] for length in seconds if length <= most}

        def rate(length: int) -> float:
            return (len(states) + sum(gained[length])) / seconds[length]

        patience, left = [ledger.patience for ledger in ledgers], sum([ledger.left for ledger in ledgers])

        def fair(length: int) -> bool:
            stretch = seconds[length] / plain - 1
            return stretch <= min(map(add, patience, gained[length])) and stretch * len(states) <= left

        lengths = [length for length in gained if not length or fair(length)]
        best = max(lengths, key=rate, default=0)
        if best and rate(best) < _WORTHWHILE * len(states) / plain:
            best = 0
        self._since_plain = self._since_plain + 1 if best and self._since_plain < _PLAIN_EVERY else 0
        best = best if self._since_plain else 0
        self._silence.step(best > 0)
        if self._silence.steps >= self._pause:
            self._silence.step(True)  # a try ends it, even one that there is no room for
            self._pause = min(LATEST, 2 * self._pause)
            best = min((length for length in seconds if 0 < length <= most), default=0)
        elif best:
            self._pause = SOONEST
        for state in states:
            state.issued.append((best, seconds[best] / plain - 1))
        return best

    def observe(
        self, states: Sequence[ChainState], ledgers: Sequence[Ledger], commits: Sequence[Commit], step: int
    ) -> None:
        """The oldest step under way of each request is over, step number `step` of all."""
        shared = step % len(states)  # what newcomers begin with is learned from one after the other
        for i, (state, ledger, commit) in enumerate(zip(states, ledgers, commits, strict=True)):
            length, stretch = state.issued.popleft() if state.issued else (0, 0.0)
            length = max(length, len(commit.draft))
            ledger.step(stretch, len(commit.tokens) - 1, stretch)
            if not length:
                continue
            state.levels.observe_hits(len(commit.path), length)
            if i == shared:
                self._newcomers.observe_hits(len(commit.path), length)
