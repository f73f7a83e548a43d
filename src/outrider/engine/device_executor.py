"""Steps taken whole on the device, with the host one step behind.

Drafting, verification, acceptance and the cache stay on the device (`Stepper`); the host learns the tokens while the
next step is already running. What it learns may end a request: the step under way then runs for nothing in that
lane, and its tokens are dropped. And it may find how a text goes on, which it offers to the next step launched. Only
steps whose every request is chosen by temperature, top-p and min-p alone under the coupled rule go this way; the
others, and every drafter that guesses on the host, go through `Engine`'s own step, with the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import Tensor

from outrider.control.controller import CLAIM, Controller
from outrider.control.steps import StepCosts, guessed, shapes
from outrider.core.draft import Draft, Verdict
from outrider.core.drafter import Continues, DeviceDrafter, Drafter, ReadsFeatures, StepsOnDevice
from outrider.core.model import LanguageModel, SteppingModel
from outrider.core.request import RequestView, ResolvedParams
from outrider.core.step import (
    PLAIN,
    HandedOver,
    Recording,
    SlotOutcome,
    StepOutcome,
    Stepper,
    StepPlan,
    StepShape,
    StepSlot,
)
from outrider.drafters.router import RouterDrafter
from outrider.engine.request import Request
from outrider.engine.step_output import StepOutput, VerifiedDraft
from outrider.sampling.draw import not_a_number
from outrider.sampling.noise import words_of

BURST = 8
"""Plain steps taken in a row before a drafter on the host is asked again, once its controller has paused."""

_AHEAD = 64
"""Positions whose noise is keyed at a time: most answers end long before their limit."""
_CLAIMS = tuple(CLAIM ** (level + 1) for level in range(64))
"""What a draft verified on the device claims, by level."""
_NO_DRAFT = Draft()
_KNOWN = frozenset({"temperature", "top_p", "min_p", "processed_logprobs", "prompt_logprobs"})
"""Features the device chooses tokens by, or that are none of its business."""


def device_executor(model: LanguageModel, drafter: Drafter, controller: Controller) -> DeviceExecutor | None:
    """Where target and drafter can step on one device. A router's default drafter is asked, for those steps in which
    all requests are its."""
    if not isinstance(model, SteppingModel):
        return None
    lookup = drafter if isinstance(drafter, Continues) else None
    takes: Callable[[RequestView], bool] = lambda request: True  # noqa: E731
    if isinstance(drafter, RouterDrafter):
        takes, drafter = drafter.is_default, drafter.default
    there = drafter.there if isinstance(drafter, StepsOnDevice) else None
    if there is not None and (stepper := model.stepper(there.network)):
        return DeviceExecutor(stepper, there.drafter, controller, lookup, takes=takes)
    if isinstance(drafter, ReadsFeatures):
        return None  # it must see every pass
    stepper = model.stepper(None)
    return DeviceExecutor(stepper, None, controller, drafts_on_host=True, takes=takes) if stepper else None


class DeviceExecutor:
    """One step of the running requests at a time; at most one more is under way.

    Every request keeps its lane on the device for as long as it runs. Who comes and who has gone is told to the device
    between two launches, and waits for no step."""

    def __init__(
        self,
        stepper: Stepper,
        drafter: DeviceDrafter | None,
        controller: Controller,
        lookup: Continues | None = None,
        *,
        drafts_on_host: bool = False,
        takes: Callable[[RequestView], bool] = lambda request: True,
    ) -> None:
        """`drafter` runs on the device; what `lookup` finds is offered to it. `drafts_on_host`: another one does not;
        then only plain steps come here, those the engine hands over (`plain`). `takes`: whether a request's drafts are
        made here at all."""
        self._stepper = stepper
        self._drafter = drafter
        self._controller = controller
        self._lookup = lookup
        self._drafts_on_host = drafts_on_host
        self._takes = takes
        self._burst = 0
        """Plain steps that may still be launched ahead."""
        self._lanes: list[Request | None] = []
        """None: empty."""
        self._seated: set[int] = set()
        """Ids of those in lanes."""
        self._under_way: list[_Launched] = []
        self._keys: dict[int, Tensor] = {}
        """Noise keys of the first positions of the requests that run here, [positions, 2] each."""
        self._reach: dict[int, int] = {}
        """Generated positions of each up to which the device has them."""
        self._seen: dict[int, int] = {}
        """Tokens of each that the drafter had run when it drafted for it last."""
        self._skips: dict[int, int] = {}
        """`Stepper.skips` when each was seated: since then the drafter may lack any token."""
        self._costs: dict[int, StepCosts] = {}
        """By the power of two that the lanes fill."""
        self._read: tuple[StepCosts, StepShape, float] | None = None
        """The step read last, by its costs and shape, and when; None: steps on the host came after it."""
        self._drafted = False
        """Whether it did: the first draft after a plain step also catches up, which is no measure of the others."""
        self._elsewhere = 0.0
        """Seconds since then that went into other things than steps: prompts, and newcomers."""
        self._shapes = shapes(controller.lengths if drafter else (), controller.offered_lengths if lookup else ())
        """Those that may be asked for."""

    @property
    def late(self) -> int:
        return self._stepper.late

    def recordings(self) -> Iterator[Recording]:
        """The steps that may be asked for."""
        return self._stepper.recordings(self._shapes)

    def measure(self) -> Iterator[None]:
        """What those take; yields after each."""
        return self._stepper.measure(self._shapes)

    @property
    def _drafts(self) -> bool:
        """Whether anything is ever verified here."""
        return self._drafter is not None or self._lookup is not None

    def step(self, running: list[Request], prefilled: float = 0.0) -> StepOutput | None:
        """The next step, or None: then nothing is under way and the host must take it. `prefilled`: seconds that went
        into prompts since the last one."""
        self._elsewhere += prefilled
        if self._drafts_on_host and not self._under_way:
            return None
        return self._step(running)

    def plain(self, running: list[Request]) -> StepOutput | None:
        """A step for which the host has drafted nothing. Where it has not for a while, a few more follow unasked."""
        self._leave(running)  # steps on the host may have come between
        plain = all(s.speculation.max_nodes == 0 for s in running)
        self._burst = BURST if plain or self._controller.paused else 0
        return self._step(running)

    def drop(self, request: Request) -> None:
        """It has lost its slot. Should it come back, it is a newcomer."""
        for launched in self._under_way:
            launched.drop(request)
        for number, lane in enumerate(self._lanes):
            if lane is request:
                self._lanes[number] = None
                self._seated.discard(request.id)
                self._stepper.vacate(number)
                seen, skips = self._seen.pop(request.id, 0), self._skips.pop(request.id)
                if self._drafter is not None:
                    self._drafter.leave(request, seen if skips == self._stepper.skips else 0)
        if not any(self._lanes):
            self._read = None  # nobody waits now
        self._controller.lost(request)
        self._keys.pop(request.id, None)
        self._reach.pop(request.id, None)

    def _step(self, running: list[Request]) -> StepOutput | None:
        """Whatever breaks it off, Ctrl-C too, nothing stays on the device that the host does not know of."""
        try:
            return self._take(running)
        except BaseException:
            self._lanes, self._under_way, self._read = [], [], None
            self._seated, self._skips = set(), {}
            self._stepper.reset()
            self._controller.abandon()
            raise

    def _take(self, running: list[Request]) -> StepOutput | None:
        started = perf_counter()
        if self._can_take(running):
            if not self._under_way:
                self._launch(running)
            if self._burst or not self._drafts_on_host:
                self._launch(running)
        elif not self._under_way:
            self._leave(running)
            return None
        launched = self._under_way.pop(0)
        outcome = self._collect(launched)
        name = self._drafter.name if self._drafter else "none"
        going = {request.id for request in running}
        if launched.shape.drafted:
            self._seen.update((s.id, len(s.tokens) - 1) for s in launched.lanes if s is not None)
        verified = [
            _judged(s, lane, launched.sources[number] if lane.offered else name)
            for number, (s, lane) in enumerate(zip(launched.lanes, outcome.lanes, strict=True))
            if s is not None and s.id in going
        ]
        # What the host drafts is weighed against these steps: both must be timed alike.
        target_seconds = perf_counter() - started if self._drafts_on_host else outcome.target_seconds
        return StepOutput(
            verified, len(verified) * (launched.shape.verified + 1), outcome.draft_seconds, target_seconds
        )

    def _collect(self, launched: _Launched) -> StepOutcome:
        """The step launched first; what it took is learned, and what the host needed for the one before."""
        if self._read is not None:
            costs, shape, since = self._read
            costs.observe_host(shape, max(0.0, perf_counter() - since - self._elsewhere))
        outcome = self._stepper.collect()
        self._read, self._elsewhere = None, 0.0
        if self._drafts and (known := self._costs_of(len(launched.lanes))):
            device = outcome.draft_seconds + outcome.target_seconds
            if device > 0 and (self._drafted or not launched.shape.drafted):
                known.observe(launched.shape, device)
            self._drafted = launched.shape.drafted > 0
            self._read = known, launched.shape, perf_counter()
        return outcome

    def _costs_of(self, lanes: int) -> StepCosts | None:
        """None before anything was measured."""
        width = 1 << (lanes - 1).bit_length()
        if width not in self._costs and (measured := self._stepper.seconds(lanes)):
            self._costs[width] = StepCosts(measured)
        return self._costs.get(width)

    def _can_take(self, running: list[Request]) -> bool:
        fit = self._stepper.limit(len(running)) >= 0 and max([len(s.tokens) for s in running]) <= self._stepper.reach
        return fit and all(steppable(s.params) and self._takes(s) for s in self._newcomers(running))

    def _newcomers(self, running: list[Request]) -> list[Request]:
        return [s for s in running if s.id not in self._seated]

    def _launch(self, running: list[Request]) -> None:
        self._seat(running)
        plan = self._plan(running)
        self._renew(plan.shape.verified)
        places = {running[i].id: offer for i, offer in plan.offers.items()}
        offers = {n: places[s.id] for n, s in enumerate(self._lanes) if s is not None and s.id in places}
        self._stepper.launch(len(self._lanes), plan.shape, any(s.params.temperature for s in running), offers)
        sources = {number: offer.source for number, offer in offers.items()}
        self._under_way.append(_Launched(plan.shape, list(self._lanes), sources))
        self._burst = max(0, self._burst - 1)

    def _plan(self, running: list[Request]) -> StepPlan:
        """Near its end a request may be drafted for beyond it, which is cut off: only few lengths are recorded."""
        if not self._drafts:
            return StepPlan(PLAIN)
        lanes = len(self._lanes)
        costs, limit = self._costs_of(lanes), self._stepper.limit(lanes)
        return self._controller.plan(running, costs.seconds() if costs else guessed(self._shapes), limit, self._lookup)

    def _seat(self, running: list[Request]) -> None:
        """Who is not in a lane yet takes an empty one; those of the last close gaps that would make a step wider."""
        if newcomers := self._newcomers(running):
            started = perf_counter()
            handed = [HandedOver(0)] * len(newcomers)
            if self._drafter is not None:
                handed = self._drafter.hand_over(newcomers, self._controller.pays(len(running)))
            empty = [number for number, s in enumerate(self._lanes) if s is None]
            more = range(len(self._lanes), len(self._lanes) + len(newcomers))
            numbers = [*empty, *more][: len(newcomers)]
            self._lanes += [None] * (max(numbers) + 1 - len(self._lanes))
            self._stepper.seat(
                {
                    number: self._lane(*each)
                    for number, each in zip(numbers, zip(newcomers, handed, strict=True), strict=True)
                }
            )
            for number, s in zip(numbers, newcomers, strict=True):
                self._lanes[number] = s
                self._seated.add(s.id)
                self._skips[s.id] = self._stepper.skips
            self._elsewhere += perf_counter() - started
        self._close_up(len(running))

    def _close_up(self, count: int) -> None:
        """Steps are as wide as the next power of two from the last lane."""
        if len(self._lanes) > 1 << (count - 1).bit_length():
            sources = [number for number in range(count, len(self._lanes)) if self._lanes[number] is not None]
            targets = [number for number in range(count) if self._lanes[number] is None]
            self._stepper.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self._lanes[target] = self._lanes[source]
            del self._lanes[count:]

    def _leave(self, running: list[Request]) -> None:
        """Nothing is under way: give the drafter back what of the lanes still runs."""
        going = {request.id for request in running}
        if self._lanes:
            self._stepper.settle(len(self._lanes))
        for number, request in enumerate(self._lanes):
            if self._drafter is not None and request is not None and request.id in going:
                self._drafter.take_back(request, self._stepper.left(number))
                self._seen.pop(request.id, None)
        if self._lanes:
            self._stepper.vacate()
        self._lanes, self._seated, self._skips = [], set(), {}

    def _lane(self, s: Request, given: HandedOver) -> StepSlot:
        p = s.params
        return StepSlot(
            slot=s.slot,
            draft_slot=given.slot,
            last=s.tokens[-1],
            previous=s.tokens[-2] if len(s.tokens) > 1 else 0,
            length=len(s.tokens) - 1,
            generated=s.generated,
            temperature=p.temperature,
            words=self._noise(s, 1) if p.temperature > 0 else None,
            top_p=p.top_p,
            min_p=p.min_p,
            features=given.features,
            gap=given.gap,
        )

    def _noise(self, s: Request, least: int) -> Tensor:
        """Keys of the positions it generates next, so many at least; hashed once only."""
        known, stop = self._keys.get(s.id), min(s.generated + max(min(_AHEAD, self._stepper.horizon), least), s.limit)
        start = 0 if known is None else len(known)
        if start < stop:
            more = words_of(s.params.seed, s.params.choice, range(start, stop))
            known = self._keys[s.id] = more if known is None else torch.cat((known, more))
        assert known is not None, "a request that runs has tokens left to generate"
        self._reach[s.id] = stop
        return known[s.generated : stop]

    def _renew(self, length: int) -> None:
        """Noise for one more step, where it would run out. What lies beyond a request's limit is cut off."""
        if not self._reach:  # nobody draws
            return
        ahead = sum([launched.shape.verified + 1 for launched in self._under_way]) + length + 1
        for number, s in enumerate(self._lanes):
            if s is not None and min(s.generated + ahead, s.limit) > self._reach.get(s.id, s.limit):
                self._stepper.renew(number, s.generated, self._noise(s, ahead))


class _Launched:
    """A step under way: whose lanes they were, and by lane who had found what was offered."""

    def __init__(self, shape: StepShape, lanes: list[Request | None], sources: dict[int, str]) -> None:
        self.shape = shape
        self.lanes = lanes
        self.sources = sources

    def drop(self, request: Request) -> None:
        """What it gains there is of no use."""
        self.lanes = [None if lane is request else lane for lane in self.lanes]


def steppable(p: ResolvedParams) -> bool:
    """Whether the device makes the choice these parameters ask for."""
    return p.features <= _KNOWN


def _judged(request: Request, lane: SlotOutcome, source: str) -> VerifiedDraft:
    if min(lane.tokens) < 0:
        raise not_a_number()
    count = len(lane.drafts)
    if not count:
        return VerifiedDraft(request, _NO_DRAFT, Verdict((), lane.tokens[-1]), None)
    draft = Draft(lane.drafts, range(-1, count - 1), _CLAIMS[:count], source)
    return VerifiedDraft(request, draft, Verdict(tuple(range(lane.accepted)), lane.tokens[-1]), None)
