"""Steps taken whole on the device, with the host one step behind.

Drafting, verification, acceptance and the cache stay on the device (`Stepper`); the host learns the tokens while the
next step is already running. What it learns may end a sequence: the step under way then runs for nothing in that
lane, and its tokens are dropped. Only steps whose every sequence is chosen by temperature alone under the coupled
rule go this way; the others, and every drafter that lives on the host, go through `Engine`'s own step, with the same
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from outrider.control.controller import Controller
from outrider.drafters.head import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.router import RouterDrafter
from outrider.engine.round import Judged, Round
from outrider.engine.sequence import Sequence
from outrider.sampling.noise import Key, words
from outrider.types import (
    Draft,
    Drafter,
    HandedOver,
    Lane,
    LaneOutcome,
    LanguageModel,
    ReadsFeatures,
    ResolvedParams,
    SequenceView,
    Stepper,
    SteppingModel,
    Verdict,
)

BURST = 8
"""Plain steps taken in a row before a drafter on the host is asked again, once its controller has paused."""

CLAIM = 0.8
"""What a draft made on the device claims per level; the controller learns what it is worth."""


class DeviceDrafter(Protocol):
    """A drafter whose chains a `Stepper` can draft in its stead: it lets go of sequences and takes them back."""

    name: str

    def hand_over(self, sequences: Several[SequenceView]) -> list[HandedOver]: ...
    def take_back(self, sequence: SequenceView, features: Tensor | None) -> None: ...


def runahead(model: LanguageModel, drafter: Drafter, controller: Controller) -> Runahead | None:
    """Where target and drafter can step on one device. A router's default drafter is asked, for those steps in which
    it drafts for all sequences."""
    if not isinstance(model, SteppingModel):
        return None
    if isinstance(drafter, RouterDrafter):
        ahead = runahead(model, drafter.default, controller)
        if ahead is not None:
            ahead.takes = drafter.is_default
        return ahead
    if isinstance(drafter, HeadDrafter) and drafter.chains and (stepper := model.stepper(drafter.head)):
        return Runahead(stepper, drafter, controller)
    if isinstance(drafter, ReadsFeatures):
        return None  # it must see every pass
    if isinstance(drafter, NoDrafter):
        stepper = model.stepper(None)
        return Runahead(stepper, None, controller) if stepper else None
    if isinstance(drafter, ModelDrafter) and drafter.chains and (stepper := model.stepper(drafter.model)):
        return Runahead(stepper, drafter, controller)
    stepper = model.stepper(None)
    return Runahead(stepper, None, controller, drafts_on_host=True) if stepper else None


class Runahead:
    """One step of the running sequences at a time; at most one more is under way."""

    def __init__(
        self,
        stepper: Stepper,
        drafter: DeviceDrafter | None,
        controller: Controller,
        drafts_on_host: bool = False,
    ) -> None:
        """`drafter` runs on the device. `drafts_on_host`: another one does not; then only plain steps come here, those
        the engine hands over (`plain`)."""
        self._stepper = stepper
        self._drafter = drafter
        self._controller = controller
        self._drafts_on_host = drafts_on_host
        self._burst = 0
        """Plain steps that may still be launched ahead."""
        self._lanes: list[Sequence | None] = []
        """None: one that has left; its part of the step under way is dropped."""
        self._under_way: list[int] = []
        """Draft lengths of the steps launched and not yet collected."""
        self._keys: dict[int, Tensor] = {}
        """Noise keys of the first positions of the sequences that run here, [positions, 2] each."""
        self._reached = 0
        """Most tokens a lane may have gained since `begin`, those under way included."""
        self.takes: Callable[[SequenceView], bool] = lambda sequence: True
        """Whether a sequence's drafts are made here at all."""

    def prepare(self) -> Iterator[None]:
        """Record the steps that may be asked for; yields after each."""
        return self._stepper.prepare(self._controller.lengths if self._drafter else (0,))

    def step(self, running: list[Sequence]) -> Round | None:
        """The next step, or None: then nothing is under way and the host must take it."""
        if self._drafts_on_host and not self._under_way:
            return None
        return self._step(running)

    def plain(self, running: list[Sequence]) -> Round | None:
        """A step for which the host has drafted nothing. Where it has not for a while, a few more follow unasked."""
        self._lanes = []  # steps on the host may have come between
        self._burst = BURST if self._controller.paused else 0
        return self._step(running)

    def drop(self, sequence: Sequence) -> None:
        """It has lost its slot. Should it come back, it is a newcomer."""
        self._lanes = [None if lane is sequence else lane for lane in self._lanes]
        self._keys.pop(sequence.id, None)

    def _step(self, running: list[Sequence]) -> Round | None:
        started = perf_counter()
        if not self._under_way:
            if self._stepper.limit(len(running)) < 0 or not self._can_take(running):
                self._leave(running)
                return None
            if self._lanes != running or not self._in_reach(running):
                self._begin(running)
            self._launch(running)
        if self._lanes == running and (self._burst or not self._drafts_on_host) and self._in_reach(running):
            self._launch(running)
        rows = len(self._lanes) * (self._under_way.pop(0) + 1)
        outcome = self._stepper.collect()
        source = self._drafter.name if self._drafter else "none"
        lanes = zip(self._lanes, outcome.lanes, strict=True)
        judged = [_judged(s, lane, source) for s, lane in lanes if s is not None and s in running]
        # What the host drafts is weighed against these steps: both must be timed alike.
        target_seconds = perf_counter() - started if self._drafts_on_host else outcome.target_seconds
        return Round(judged, rows, outcome.draft_seconds, target_seconds)

    def _can_take(self, running: list[Sequence]) -> bool:
        # All lanes draft equally much, so they must be allowed to.
        alike = self._drafter is None or len({s.speculation.max_nodes for s in running}) <= 1
        return alike and all(steppable(s.params) and self.takes(s) for s in running)

    def _begin(self, running: list[Sequence]) -> None:
        self._leave(running)
        handed = self._drafter.hand_over(running) if self._drafter else [HandedOver(0)] * len(running)
        self._stepper.begin([self._lane(s, given) for s, given in zip(running, handed, strict=True)])
        self._lanes = list(running)
        self._reached = 0

    def _leave(self, running: list[Sequence]) -> None:
        """Nothing is under way: give the drafter back what of the lanes still runs."""
        for i, sequence in enumerate(self._lanes):
            if self._drafter is not None and sequence is not None and sequence in running:
                self._drafter.take_back(sequence, self._stepper.left(i))
        self._lanes = []

    def _lane(self, s: Sequence, given: HandedOver) -> Lane:
        p = s.params
        reach = 1 + self._burst if self._drafts_on_host else self._stepper.horizon
        return Lane(
            slot=s.slot,
            draft_slot=given.slot,
            last=s.tokens[-1],
            previous=s.tokens[-2] if len(s.tokens) > 1 else 0,
            length=len(s.tokens) - 1,
            generated=s.generated,
            temperature=p.temperature,
            words=self._noise(s, reach) if p.temperature > 0 else None,
            features=given.features,
            gap=given.gap,
        )

    def _noise(self, s: Sequence, reach: int) -> Tensor:
        """Keys of the positions it generates next. Whoever joins makes all begin anew, so they are hashed once only."""
        known, stop = self._keys.get(s.id), min(s.generated + reach, s.limit)
        start = 0 if known is None else len(known)
        if start < stop:
            more = words([Key(s.params.seed, s.params.choice, i) for i in range(start, stop)])
            known = self._keys[s.id] = more if known is None else torch.cat((known, more))
        assert known is not None, "a sequence that runs has tokens left to generate"
        return known[s.generated : stop]

    def _launch(self, running: list[Sequence]) -> None:
        length = 0
        if self._drafter is not None:
            # Near its end a sequence may be drafted for beyond it, which is cut off: only few lengths are recorded.
            lanes = len(running)
            length = self._controller.length(running, self._stepper.seconds(lanes), self._stepper.limit(lanes))
        self._stepper.launch(length)
        self._under_way.append(length)
        self._reached += length + 1
        self._burst = max(0, self._burst - 1)

    def _in_reach(self, running: list[Sequence]) -> bool:
        """Whether the noise on the device lasts for one more step."""
        longest = self._stepper.limit(len(running)) if self._drafter else 0
        return self._reached + longest + 1 <= self._stepper.horizon


def steppable(p: ResolvedParams) -> bool:
    """Whether the device makes the choice these parameters ask for: by temperature alone."""
    return (
        p.verify == "coupled"
        and p.is_bare
        and p.logprobs is None
        and (p.temperature == 0 or (not p.top_k and p.top_p >= 1 and p.min_p <= 0))
    )


def _judged(sequence: Sequence, lane: LaneOutcome, source: str) -> Judged:
    count = len(lane.drafts)
    claims = [CLAIM ** (i + 1) for i in range(count)]
    draft = Draft(lane.drafts, range(-1, count - 1), claims, source if count else "none")
    return Judged(sequence, draft, Verdict(tuple(range(lane.accepted)), lane.tokens[-1]), None)
