"""How much to draft: the protocol, and the controller that always answers the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outrider.control.acceptance import Acceptance, Leanings
from outrider.control.belief import Belief
from outrider.control.choice import joined
from outrider.control.forced import allowed, forced
from outrider.control.offers import Offers
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import RequestView
from outrider.core.step import StepPlan, StepShape, tree_of
from outrider.errors import InvalidRequest

CLAIM = 0.8
"""What each level of a draft made on a device claims, where the one before is right; how often they are is learned."""


_NEVER = 63
"""Steps for which one that never drafts need not be asked."""


class Controller(Protocol):
    """Has the drafts of every step made, as large as they pay, and learns from what came of them.

    It can change the speed, never the text. Per step: `draft`, then `observe`; `forget` once a request has ended.
    Where a device takes the steps, `plan` is asked instead, for the next step before this one is observed, so that it
    never waits for the host; steps are observed in the order they were planned.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """The chain lengths it asks a device to draft, 0 among them."""
        ...

    @property
    def offered_lengths(self) -> Sequence[int]:
        """Those that it may ask a device to verify where something was looked up."""
        ...

    @property
    def trees(self) -> Sequence[int]:
        """The sizes of trees it asks a device to draft, where that can."""
        ...

    @property
    def issued(self) -> Sequence[int]:
        """Nodes that were drafted last, by request, for people to watch."""
        ...

    @property
    def belief(self) -> Belief | None:
        """What its decisions rest on; None where it makes none."""
        ...

    def pays(self, prompts: Sequence[RequestView], running: int) -> Sequence[bool]:
        """Whether drafters that make passes are expected to bring each of these requests, pieces of whose prompts are
        run, more than reading those costs, while so many requests run."""
        ...

    @property
    def away(self) -> bool:
        """Whether none of the running requests' drafters that make passes will be asked for long."""
        ...

    @property
    def rest(self) -> int:
        """Steps from now on for which it need not be asked for drafts: those that run are not expected to gain by
        asking."""
        ...

    def draft(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        tree: bool,
        room: Sequence[int],
        seconds: Mapping[StepShape, float] | None = None,
    ) -> list[Draft]:
        """The drafts to verify, one per request in order. `tree`: whether the target can verify trees. `room[i]`: the
        most nodes that the context and the request still allow request i. `seconds`: what a step takes of each shape
        that is prepared, where a device verifies chains of one length for all; None: the target verifies every row by
        itself."""
        ...

    def plan(
        self,
        requests: Sequence[RequestView],
        seconds: Mapping[StepShape, float],
        limit: int,
        lookup: Drafter | None = None,
    ) -> StepPlan:
        """The next step on a device, with drafts of at most `limit` nodes. `seconds`: what a step takes of each shape
        that is prepared. What `lookup` finds may be offered to it."""
        ...

    def observe(
        self, verified: Sequence[VerifiedDraft], rows: int, draft_seconds: float, target_seconds: float
    ) -> None:
        """One step is over: `rows` rows were run for all that was `verified`, drafting took
        `draft_seconds`, everything else `target_seconds`."""
        ...

    def lost(self, request: RequestView) -> None:
        """Its steps under way on a device will not be observed."""
        ...

    def abandon(self) -> None:
        """No step under way on a device will be observed."""
        ...

    def forget(self, request: RequestView) -> None: ...
    @property
    def held(self) -> int:
        """Requests that it remembers: when nothing runs, none."""
        ...


class FixedLength:
    """Always `nodes` nodes, as far as the context has room; the likeliest where several drafters propose more."""

    def __init__(self, nodes: int, tree: bool = True) -> None:
        """`tree` False: single paths only."""
        if nodes < 0:
            raise InvalidRequest(f"draft length {nodes} must be at least 0.")
        self.nodes = nodes
        self.lengths: Sequence[int] = sorted({0, nodes})
        self.offered_lengths: Sequence[int] = self.lengths
        self.trees: Sequence[int] = (nodes,) if tree and nodes > 1 else ()
        self.issued: Sequence[int] = ()
        self.rest = _NEVER if nodes == 0 else 0
        self.away = nodes == 0
        self.belief: Belief | None = None
        self._tree = tree
        self._offers = Offers(Acceptance())

    def draft(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        tree: bool,
        room: Sequence[int],
        seconds: Mapping[StepShape, float] | None = None,
    ) -> list[Draft]:
        sizes = [max(0, min(self.nodes, most)) for most in room]
        budgets = [Budget(size, size, 0.0, tree and self._tree) for size in sizes]
        if not drafter.looks_up:
            drafts = list(map(allowed, requests, drafter.propose(requests, budgets)))
        else:
            drafts = list(map(allowed, requests, drafter.look_up(requests, budgets)))
            left = [b if drafter.paid(s) else Budget(0, 0) for s, b in zip(requests, budgets, strict=True)]
            if any(budget.nodes for budget in left):
                guessed = map(allowed, requests, drafter.propose(requests, left))
                drafts = [joined(*pair, tree and self._tree) for pair in zip(drafts, guessed, strict=True)]
        known = [
            Draft() if s.walk is None else forced(s.walk.forced(), n) for s, n in zip(requests, sizes, strict=True)
        ]
        drafts = [joined(*pair, tree and self._tree) for pair in zip(known, drafts, strict=True)]
        drafts = [_likeliest(draft, size) for draft, size in zip(drafts, sizes, strict=True)]
        self.issued = [len(draft) for draft in drafts]
        return drafts

    def pays(self, prompts: Sequence[RequestView], running: int) -> Sequence[bool]:
        return [self.nodes > 0] * len(prompts)

    def plan(
        self,
        requests: Sequence[RequestView],
        seconds: Mapping[StepShape, float],
        limit: int,
        lookup: Drafter | None = None,
    ) -> StepPlan:
        """A tree where the device grows any and nothing is offered. What is found is offered where it promises more
        than what is drafted there claims."""
        most = [s.speculation.max_nodes for s in requests if s.speculation.max_nodes is not None]
        length = min([self.nodes, limit, *most])
        self.issued = [length] * len(requests)
        drafts = any(shape.drafted for shape in seconds)
        offers = {}
        if length and (lookup is not None or any(s.walk is not None for s in requests)):
            none: list[Leanings] = [{} for _ in requests]
            found = self._offers.step(lookup, requests, none, [2 * length + 1] * len(requests))
            claimed, ahead = sum(CLAIM ** (k + 1) for k in range(length)), length + 1
            for i, each in found.items():
                guided = requests[i].params.grammar is not None  # for whom nothing drafted there is of use
                if guided or not drafts or each.gain(ahead, length) > each.holds(ahead) * claimed:
                    offers[i] = each.offer
        if self.trees and length > 1 and not offers and any(shape.nodes for shape in seconds):
            return StepPlan(tree_of(length))
        return StepPlan(StepShape(length if drafts else 0, length), offers)

    def observe(
        self, verified: Sequence[VerifiedDraft], rows: int, draft_seconds: float, target_seconds: float
    ) -> None:
        pass

    def lost(self, request: RequestView) -> None:
        pass

    def abandon(self) -> None:
        pass

    def forget(self, request: RequestView) -> None:
        self._offers.forget(request)

    @property
    def held(self) -> int:
        return self._offers.held


def _likeliest(draft: Draft, nodes: int) -> Draft:
    """Its likeliest nodes, at most so many."""
    if draft.q is not None or len(draft) <= nodes:
        return draft
    order = sorted(range(len(draft)), key=draft.confidence.__getitem__, reverse=True)
    return draft.only(sorted(order[:nodes]))
