"""Who sits in which lane of the device: the host's side of what a `Stepper` keeps of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outrider.core.drafter import DevicePart
from outrider.core.model import CachedNetwork, LanguageModel
from outrider.core.request import ResolvedParams
from outrider.core.step import HandedOver, Manner, Processing, Stepper, StepSlot, step_width
from outrider.engine.request import Request
from outrider.sampling.noise import step_words_of, words_of
from outrider.sampling.warp import PENALTIES, PROCESSED

_AHEAD = 64
"""Positions whose noise is keyed at a time: most answers end long before their limit."""
_NO_END = 1 << 62
CHANGED = PENALTIES | {"logit_bias", "min_tokens", "grammar"}
"""Features by which scores are changed on the device before the choice."""


class Seats(NamedTuple):
    """Who sits where, and what steps of all of them are like, until somebody comes, goes or moves."""

    by_lane: Mapping[int, Request]
    manner: Manner
    """The most that any of them needs."""
    guided: bool
    """Whether any of them has a grammar."""


class DeviceLanes:
    """Every request keeps its lane for as long as it runs. Who comes and who has gone is told to the device between two
    launches, and waits for no step; what drafts there, `part`, is told whose requests it need not follow."""

    def __init__(self, stepper: Stepper, model: LanguageModel, part: DevicePart | None) -> None:
        self.requests: list[Request | None] = []
        """By lane; None: empty."""
        self._stepper = stepper
        self._drafter = part.drafter if part else None
        self._networks: list[CachedNetwork] = [model, part.network] if part and part.network else [model]
        """Those whose caches steps write."""
        self._seated: dict[Request, Manner] = {}
        """Those in lanes, and what each needs."""
        self._seats: Seats | None = None
        """None: to be looked at anew."""
        self._keys: dict[int, Tensor] = {}
        """Noise keys of the first positions of the requests that run here, [positions, 2] each."""
        self._reach: dict[int, int] = {}
        """Tokens of each, prompt and all, up to which the device has them; all that there can be, where it has those of
        every position it may generate."""
        self._seen: dict[int, int] = {}
        """Tokens of each that the drafter had run when it drafted for it last."""
        self._skips: dict[int, int] = {}
        """`Stepper.skips` when each was seated: since then the drafter may lack any token."""
        self._slots: dict[int, tuple[int, ...]] = {}
        """Of each in its caches."""
        self._room: dict[int, int] = {}
        """Tokens of each that those have room for."""

    def __len__(self) -> int:
        return len(self.requests)

    def newcomers(self, running: list[Request]) -> list[Request]:
        seated = self._seated
        return [s for s in running if s not in seated]

    @property
    def seats(self) -> Seats:
        if self._seats is None:
            by_lane = {number: s for number, s in enumerate(self.requests) if s is not None}
            way = max(self._seated.values(), default=Manner.GREEDY)
            guided = way >= Manner.FULL and any(s.params.grammar is not None for s in self._seated)
            self._seats = Seats(by_lane, way, guided)
        return self._seats

    def seat(self, newcomers: list[Request], soon: bool) -> None:
        """They take empty lanes, then further ones. `soon`: whether drafts are expected for them."""
        handed = [HandedOver(0)] * len(newcomers)
        if self._drafter is not None:
            handed = self._drafter.hand_over(newcomers, soon)
        empty = [number for number, s in enumerate(self.requests) if s is None]
        more = range(len(self.requests), len(self.requests) + len(newcomers))
        numbers = [*empty, *more][: len(newcomers)]
        self.requests += [None] * (max(numbers) + 1 - len(self.requests))
        slots = [self._slot(s, given) for s, given in zip(newcomers, handed, strict=True)]
        self._stepper.seat(dict(zip(numbers, slots, strict=True)))
        for number, s, given in zip(numbers, newcomers, handed, strict=True):
            self.requests[number] = s
            self._slots[s.id], self._room[s.id] = (s.slot, given.slot), 0
            self._seated[s] = manner(s.params)
            self._skips[s.id] = self._stepper.skips
        self._seats = None

    def close_up(self, count: int) -> None:
        """Steps are wide enough for the last lane (`step_width`): where `count` requests need less, those of the last
        lanes move into empty ones."""
        if len(self.requests) > step_width(count):
            sources = [number for number in range(count, len(self.requests)) if self.requests[number] is not None]
            targets = [number for number in range(count) if self.requests[number] is None]
            self._stepper.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self.requests[target] = self.requests[source]
            del self.requests[count:]
            self._seats = None

    def renew(self, ahead: int) -> None:
        """Noise for the next `ahead` positions, where it would run out. What lies beyond a request's limit is cut
        off."""
        if not (reach := self._reach):  # nobody draws
            return
        pairs = self.seats.by_lane.items()
        for number, s in [each for each in pairs if len(each[1].tokens) + ahead > reach.get(each[1].id, _NO_END)]:
            self._stepper.renew(number, s.generated, self._noise(s, ahead))

    def reserve(self, ahead: int) -> None:
        """Room in the caches for the tokens of all and `ahead` rows more, before a step is launched that may write
        them."""
        room = self._room
        short = [s for s in self.seats.by_lane.values() if len(s.tokens) + ahead > room[s.id]]
        if not short:
            return
        rooms = []
        for place, network in enumerate(self._networks):
            there = network.reserve({self._slots[s.id][place]: len(s.tokens) + ahead for s in short})
            rooms.append([there[self._slots[s.id][place]] for s in short])
        room.update(zip([s.id for s in short], map(min, zip(*rooms, strict=True)), strict=True))

    def drafted(self, requests: list[Request | None]) -> None:
        """A step that drafted for these is read: the drafter had run all but the last of their tokens."""
        self._seen.update((s.id, len(s.tokens) - 1) for s in requests if s is not None)

    def drop(self, request: Request) -> None:
        """It has lost its slot. Should it come back, it is a newcomer."""
        for number, seated in enumerate(self.requests):
            if seated is request:
                self.requests[number] = None
                del self._seated[request]
                self._seats = None
                self._stepper.vacate(number)
                seen, skips = self._seen.pop(request.id, 0), self._skips.pop(request.id)
                if self._drafter is not None:
                    self._drafter.leave(request, seen if skips == self._stepper.skips else 0)
        for kept in (self._keys, self._reach, self._slots, self._room):
            kept.pop(request.id, None)

    def hand_back(self, running: list[Request]) -> None:
        """All leave, while nothing is under way; the drafter gets back those that still run."""
        if not self.requests:
            return
        going = {request.id for request in running}
        self._stepper.settle(len(self.requests))
        for number, request in enumerate(self.requests):
            if self._drafter is not None and request is not None and request.id in going:
                self._drafter.take_back(request, self._stepper.left(number))
                self._seen.pop(request.id, None)
        self._stepper.vacate()
        self.clear()

    def clear(self) -> None:
        """Nobody sits here."""
        self.requests, self._seated, self._seats, self._skips = [], {}, None, {}
        self._slots, self._room = {}, {}

    def _slot(self, s: Request, given: HandedOver) -> StepSlot:
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
            top_k=p.top_k,
            top_p=p.top_p,
            min_p=p.min_p,
            processing=_processing(s),
            logprobs=p.logprobs,
            features=given.features,
            gap=given.gap,
            rejects=s.limit if p.judged else 0,
            guided=p.grammar is not None,
        )

    def _noise(self, s: Request, least: int) -> Tensor:
        """Keys of the positions it generates next, so many at least; hashed once only."""
        known, stop = self._keys.get(s.id), min(s.generated + max(min(_AHEAD, self._stepper.horizon), least), s.limit)
        start = 0 if known is None else len(known)
        if start < stop:
            keyed = step_words_of if s.params.judged else words_of
            more = keyed(s.params.seed, s.params.choice, range(start, stop))
            known = self._keys[s.id] = more if known is None else torch.cat((known, more))
        assert known is not None, "a request that runs has tokens left to generate"
        self._reach[s.id] = s.prompt_length + stop if stop < s.limit else _NO_END
        return known[s.generated : stop]


def manner(p: ResolvedParams) -> Manner:
    """How a step must choose in which these parameters take part."""
    if p.judged:
        return Manner.JUDGED
    if p.logprobs is not None or not p.features.isdisjoint(CHANGED):
        return Manner.FULL
    return Manner.DRAWN if p.temperature > 0 else Manner.GREEDY


def _processing(s: Request) -> Processing | None:
    p = s.params
    if p.features.isdisjoint(PROCESSED - {"grammar"}):  # of that the device is told step by step
        return None
    none = np.empty(0, dtype=np.int64)
    seen, counts = (none, none) if p.features.isdisjoint(PENALTIES) else s.history.tally()
    return Processing(
        seen=seen,
        counts=counts,
        repetition=p.repetition_penalty,
        frequency=p.frequency_penalty,
        presence=p.presence_penalty,
        bias=p.logit_bias,
        banned=p.stop_token_ids if p.min_tokens else frozenset(),
        min_tokens=p.min_tokens,
    )
