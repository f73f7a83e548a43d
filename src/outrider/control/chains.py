"""The drafts of steps on a device: how large the next ones are, for all requests of a step alike, and whose.

A device never waits for the host, so a step is given its shape before those under way are observed, and their outcomes
come in the order of the shapes. What a step of each shape takes the device has measured itself; estimated here is how
often each level of the chains drafted there is right, and from that what trees bring (`trees`). For some requests there
is also something looked up to offer (`offers`): that is verified where it still holds and is expected to bring more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple

from outrider.control.ledger import Ledger
from outrider.control.levels import HOPE, Levels, hoped
from outrider.control.offers import Found
from outrider.control.silence import LATEST, SOONEST, Silence
from outrider.control.trees import TreeGains
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import PLAIN, StepPlan, StepShape

LENGTHS = (0, 1, 2, 3, 4, 6, 8)
"""Those a device is asked for."""
OFFERED_LENGTHS = (4, 8, 16)
"""And beside any of those, where something was looked up."""
LEAST_OFFERED = 4
"""Where many share a step there is room for fewer tokens than this: nothing is looked up for those."""
_LOOKUP, _LOOKUPS = 30e-6, 0.1
"""Seconds that following and weighing what was looked up take the host for each request, and how much of a step that
may be: on an H200, 16 requests of a small model lost most of their gain to it."""
_PLAIN_EVERY, _PLAIN_SOON = 128, 16
"""Drafting steps in a row before a plain one: what that takes, all else is compared with; and before the first one."""
_WORTHWHILE = 1.01
"""What a chain must bring, of plain steps' tokens a second."""
_UNREAD = 64
"""Steps in a row for which drafts were not expected to pay: after so many newcomers' prompts are not read for the
drafter, which costs the host, and others the time. Until then they are: without, drafts are poor."""
_READ_EVERY, _READ_FOR = 512, 16
"""Steps after which prompts are read for a few all the same: what drafts bring without is no measure of them."""
_WEIGHT = 4
"""Drafts that what is believed of newcomers counts like: requests differ, and one that gains little by steps that take
longer for its sake and others' is to be known soon."""
_REST = 8
"""Steps for which nothing is thought about where nothing has paid for a while: with many requests, thinking costs."""
_THOUGHT = 16
"""And where something does pay, a plan stands for a step more with every so many requests."""


def time_to_look_up(requests: int, plain: float) -> bool:
    """Whether the host has the time, where so many requests share a plain step of so many seconds."""
    return requests * _LOOKUP <= _LOOKUPS * plain


@dataclass(slots=True, eq=False)
class ChainState:
    """What is known of one request's chains."""

    levels: Levels
    """How often each was right of those drafted on the device."""
    rested: int
    """`Chains.rested` when the ledger was told of it."""
    read: bool
    """Whether the drafter was to read its prompt."""
    guided: bool = False
    """Whether it has a grammar: nothing that the device drafts is verified for it, and all its tokens are known when a
    step of it is planned."""
    since: int | None = None
    """The first step it was in; None: it was in none, or has left the device since."""


class Issued(NamedTuple):
    """A step that has not been observed yet."""

    number: int
    shape: StepShape
    stretch: float
    """How much longer than a plain one it takes."""
    sources: Mapping[ChainState, str]
    """Who found what some were offered."""


_RESTED = Issued(-1, PLAIN, 0.0, {})
"""A plain step that nothing was thought about."""


class Chains:
    def __init__(self, nodes: int, silence: Silence, acceptance: Sequence[float] = ()) -> None:
        """Of at most `nodes` nodes. A step for which nobody drafts adds to the `silence`, which may have begun on the
        host. `acceptance`: as `DraftHead.acceptance`."""
        first = hoped(acceptance, nodes)
        self._newcomers = {read: Levels(first, HOPE, 1 / 128, 4) for read in (True, False)}
        """What is believed of a request of which nothing is known yet but whether the drafter has read its prompt."""
        self._trees = TreeGains()
        self._silence = silence
        self._since_plain = _PLAIN_EVERY - _PLAIN_SOON
        self._pause = SOONEST
        """Steps of silence after which a draft is tried; longer after every try that did not pay."""
        self._rest = self._resting = 0
        """Steps for which the last plan stands, for about so many requests."""
        self._last = _RESTED
        self._under_way: deque[Issued] = deque()
        """The oldest first."""
        self._number = 0
        self.rested = 0
        """Steps observed that nothing was thought about."""
        self._unpaid = 0
        """Steps since the last one whose drafts were expected to pay."""
        self._reading = True
        """The last answer of `reads`: what newcomers are taken to have had."""

    def newcomer(self, guided: bool = False) -> ChainState:
        levels = self._newcomers[self._reading].copy(rate=1 / 24, weight=_WEIGHT)
        return ChainState(levels, self.rested, self._reading, guided)

    def ahead(self, state: ChainState) -> int:
        """Tokens expected of the steps under way. An offer is of use after them only if all of it was right there."""
        if state.since is None or state.guided:
            return 0
        own = [issued for issued in self._under_way if issued.number >= state.since]
        return sum(1 + (i.shape.verified if state in i.sources else round(self._gain(state, i.shape))) for i in own)

    def _gain(self, state: ChainState, shape: StepShape) -> float:
        """Tokens expected of what is drafted for it on the device."""
        if shape.nodes:
            return self._trees.gains([state.levels.expected(shape.drafted)], shape)[0]
        return state.levels.total(shape.drafted)

    def reads(self) -> bool:
        """Whether the drafter is to read the prompts of the next newcomers."""
        self._reading = self._unpaid < _UNREAD or (self._number + self.rested) % _READ_EVERY < _READ_FOR
        return self._reading

    def again(self, requests: int, most: int) -> StepShape | None:
        """The shape of the next step, of at most `most` nodes a request, without a closer look; it is then under way.
        None: have a look."""
        shape = self._last.shape
        if self._rest <= 0 or requests.bit_length() != self._resting or shape.size > most:
            return None
        if shape == PLAIN and self._silence.steps + 1 >= self._pause:
            return None
        self._rest -= 1
        self._silence.step(shape.verified > 0)
        if shape == PLAIN:
            self._under_way.append(_RESTED)
            self._unpaid += 1
        else:
            self._under_way.append(self._last._replace(number=self._number))
            self._number, self._since_plain = self._number + 1, self._since_plain + 1
        return shape

    def plan(
        self,
        states: Sequence[ChainState],
        ledgers: Sequence[Ledger],
        seconds: Mapping[StepShape, float],
        most: int,
        found: Mapping[int, Found],
    ) -> StepPlan:
        """The shape, of at most `most` nodes a request, with the most tokens expected a second, so that no request pays
        much for another's. Where nobody drafts on the device that could, that is tried now and then. `seconds`: of a
        step, by its shape. `found`: what may be offered, by places of `states`."""
        # Without an offer there is nothing to verify but what is drafted.
        shapes = [shape for shape in seconds if shape.size <= most and (found or shape.drafted == shape.verified)]
        deepest = max([shape.drafted for shape in shapes])
        chances = [[0.0] * deepest if state.guided else state.levels.expected(deepest) for state in states]
        gains = _Gains(chances, found, {i: self.ahead(states[i]) for i in found}, self._trees)
        for state, ledger in zip(states, ledgers, strict=True):
            if state.rested < self.rested:
                ledger.rest(self.rested - state.rested)
                state.rested = self.rested
            if state.since is None:
                state.since = self._number
        # Who is expected to gain is not kept from it by bad luck: among many, somebody always has that.
        plain, patience = seconds[PLAIN], [max(0.0, ledger.patience) for ledger in ledgers]
        left = sum([ledger.left for ledger in ledgers])
        best, most_a_second = PLAIN, _WORTHWHILE * len(states) / plain
        for shape in shapes:
            each, stretch = gains.of(shape), seconds[shape] / plain - 1
            rate = (len(states) + sum(each)) / seconds[shape]
            if rate > most_a_second and stretch * len(states) <= left and stretch <= min(map(add, patience, each)):
                best, most_a_second = shape, rate
        self._since_plain = self._since_plain + 1 if best.verified and self._since_plain < _PLAIN_EVERY else 0
        best = best if self._since_plain else PLAIN
        offered = gains.offered(best)
        if any(shape.drafted for shape in shapes):  # else somebody is to be plain, which says nothing
            self._unpaid = 0 if best.verified else self._unpaid + 1
        chosen, best = best, self._tried(best, shapes, len(offered) < len(states))
        stretch = seconds[best] / plain - 1
        sources = {states[i]: found[i].source for i in offered}
        self._last = Issued(self._number, best, stretch, sources)
        self._under_way.append(self._last)
        self._number += 1
        self._resting = len(states).bit_length()
        if best == PLAIN:
            self._rest = _REST if self._silence.settled else 0
        else:
            self._rest = 0 if sources or best != chosen else len(states) // _THOUGHT - 1
        return StepPlan(best, {i: found[i].offer for i in offered})

    def _tried(self, best: StepShape, shapes: Sequence[StepShape], room: bool) -> StepShape:
        """The same, or with a level drafted on the device where nobody has for long. What is offered is not given up
        for it: `room` says whether somebody is offered nothing."""
        drafting = [shape for shape in shapes if shape.drafted]
        self._silence.step((best.drafted if drafting else best.verified) > 0)
        if best.drafted:
            self._pause = SOONEST
        elif self._silence.steps >= self._pause and room:
            self._silence.step(True)  # a try ends it, even one that there is no room for
            self._pause = min(LATEST, 2 * self._pause)
            tries = [shape for shape in drafting if shape.verified >= best.verified and not shape.nodes]
            return min(tries, key=lambda shape: (shape.verified, shape.drafted), default=best)
        return best

    @property
    def under_way(self) -> int:
        """Steps that have not been observed."""
        return len(self._under_way)

    def abandon(self) -> None:
        """They never will be."""
        self._under_way.clear()

    def over(self) -> Issued | None:
        """The oldest step under way is; None, if nothing was thought about it."""
        issued = self._under_way.popleft()
        if issued is not _RESTED:
            return issued
        self.rested += 1
        return None

    def observe(
        self, issued: Issued, states: Sequence[ChainState], ledgers: Sequence[Ledger], verified: Sequence[VerifiedDraft]
    ) -> None:
        """What came of it."""
        _, shape, stretch, sources = issued
        for ledger, each in zip(ledgers, verified, strict=True):
            gained = len(each.tokens) - 1
            ledger.step(stretch, gained, gained - stretch)
        if not shape.verified:
            return
        shared = states[issued.number % len(states)]  # what newcomers begin with is learned from one after the other
        for state, each in zip(states, verified, strict=True):
            if sources and each.draft.source == sources.get(state):
                continue  # it took what was offered, and what was drafted there is not known
            if state.guided or (not shape.drafted and not each.draft.tokens):
                continue
            self._learned(state.levels, shape, each)
            if state is shared:
                self._learned(self._newcomers[state.read], shape, each)
            if shape.nodes:
                self._trees.observe(state.levels, shape, each)

    def _learned(self, levels: Levels, shape: StepShape, verified: VerifiedDraft) -> None:
        """Learn from what came of a draft."""
        if shape.nodes:
            self._trees.teach(levels, shape, verified)
        else:
            levels.observe_hits(len(verified.path), max(shape.drafted, len(verified.draft.tokens)))


class _Gains:
    """Tokens that each request is expected to gain by each shape: of what it is offered, if that holds when the step
    begins, else of what is drafted on the device. Beside a tree nothing is offered."""

    def __init__(
        self,
        chances: Sequence[Sequence[float]],
        found: Mapping[int, Found],
        ahead: Mapping[int, int],
        trees: TreeGains,
    ) -> None:
        """`chances`: of each request, how likely each level drafted on the device is right. `ahead`: by their places,
        tokens expected before the step begins."""
        self._chances, self._found, self._trees = chances, found, trees
        self._totals = [[0.0, *accumulate(levels)] for levels in chances]
        """Tokens that chains bring each, by length."""
        self._drafted: dict[tuple[int, int], list[float]] = {}
        self._offered: dict[int, list[float]] = {}
        """By length; nothing is expected of an offer that is not there."""
        self._ahead = ahead
        self._holds = [found[i].holds(ahead[i]) if i in found else 0.0 for i in range(len(chances))]

    def of(self, shape: StepShape) -> list[float]:
        own = self._own(shape)
        if not self._found or shape.nodes:
            return own
        pairs = zip(own, self._of_offers(shape.verified), self._holds, strict=True)
        return [mine + more if (more := offered - holds * mine) > 0 else mine for mine, offered, holds in pairs]

    def offered(self, shape: StepShape) -> set[int]:
        """Whose offer, where it holds, is better than what is drafted for them."""
        if shape.nodes:
            return set()
        own, offered = self._own(shape), self._of_offers(shape.verified)
        return {i for i in self._found if offered[i] > self._holds[i] * own[i]}

    def _own(self, shape: StepShape) -> list[float]:
        drafted, nodes = key = shape.drafted, shape.nodes
        if key not in self._drafted:
            self._drafted[key] = (
                self._trees.gains(self._chances, shape) if nodes else [totals[drafted] for totals in self._totals]
            )
        return self._drafted[key]

    def _of_offers(self, length: int) -> list[float]:
        if length not in self._offered:
            gains = self._offered[length] = [0.0] * len(self._chances)
            for i, each in self._found.items():
                gains[i] = each.gain(self._ahead[i], length)
        return self._offered[length]
