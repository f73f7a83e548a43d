"""Drafting with a head: a small network that reads the target's hidden states (EAGLE-3 style)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor

from outrider.core.draft import Budget
from outrider.core.drafter import DevicePart, VerifiedDraft
from outrider.core.model import DraftHead, Rows, WantedTree
from outrider.core.request import RequestView
from outrider.core.step import HandedOver, PendingFeatures
from outrider.drafters.backlog import Backlog, keep_last
from outrider.drafters.best_first_tree import WIDTH, BestFirstTree
from outrider.drafters.cached import CachedDrafter, Chance, Plan, growing
from outrider.drafters.candidates import Candidates, samples
from outrider.drafters.head_candidates import HeadCandidates
from outrider.drafters.host_rows import chosen, copied, joined, kept
from outrider.drafters.tree_builder import TreeBuilder
from outrider.errors import DrafterError
from outrider.sampling.history import History
from outrider.sampling.random_source import KeyedRandom

WAITING = 32
"""Tokens whose features are kept for the head while it drafts nothing; older ones are dropped unread, and what follows
stands in its cache right behind what was before. More would be better drafted from, and cost more to take in when a
draft is tried: of the 16 tokens after such a gap the shipped head guesses 71% (with 64 tokens before them 74%, with 16
67%, without a gap 76%). Rows at their true positions, with the gap between, are no better (71%)."""

FIRST = 32
"""Of a prompt that is not read, all the same: more than a usual system prompt with its template."""

FEW = 16
"""Tokens from which on a gap is left: what follows one is of use to nobody else. Fewer are run by the target again."""


@dataclass(frozen=True, slots=True)
class HeadDrafterConfig:
    """`branching`: most children per node; 1 drafts chains. Trees need a budget and a target that allow them. None: 8,
    but chains through the host where whole steps are taken on a device: trees are grown there, or not at all.

    `depth`: most levels of a tree, each of which takes a pass; a chain may be longer. On a device the size decides."""

    branching: int | None = None
    depth: int = 8

    def __post_init__(self) -> None:
        if self.branching is not None and self.branching < 1:
            raise DrafterError(f"branching of the head must be at least 1, not {self.branching}")
        if self.depth < 1:
            raise DrafterError(f"depth of the head's trees must be at least 1, not {self.depth}")


class HeadDrafter(CachedDrafter[Backlog]):
    """Grows a tree from the head's own guesses, one head pass per level for all requests together.

    Coupled: children are the Gumbel top-k under the target's own noise (temperature 0: the top-k). Rejection: drawn
    one after the other without replacement from keyed chance, and `q` says from what.

    Invariant: the head's cache holds rows made from true features only; rows drafted on its own states are dropped
    when the next draft begins.
    """

    name = "head"
    reads_features = True

    def __init__(
        self,
        head: DraftHead,
        vocab_size: int,
        config: HeadDrafterConfig | None = None,
        *,
        chance: Chance = KeyedRandom,
    ) -> None:
        """`vocab_size`: the width of the target's logits."""
        config = config or HeadDrafterConfig()
        super().__init__(head, config.branching or (1 if head.steps_on_device else 8), chance)
        self._head = head
        self._depth = config.depth
        self._trees = config.branching != 1
        self._candidates = HeadCandidates(head, vocab_size, self._branching)

    @property
    def head(self) -> DraftHead:
        return self._head

    @property
    def device_part(self) -> DevicePart | None:
        there = self._head.steps_on_device
        return DevicePart(self, self._head, trees=there and self._trees) if there or self.chains else None

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        return {self.name: self._head.acceptance} if self._head.acceptance else {}

    def reach(self, request: RequestView, source: int, common: int) -> int:
        """Row i holds token i + 1, so the last common token has no row of use; and the target must run at least one
        more before the last, for the features the first draft begins with. Rows that are missing become a gap: the
        target runs nothing again to have them, nor the last common token to have the row behind them, unless they are
        few. At the end of a text some always are, for which no draft was made any more; were they a gap, all of a
        conversation that follows it would be one in the next turn."""
        rows = self._ready(source)
        return max(0, min(min(rows, common - 1) if rows > common - FEW else common, len(request.tokens) - 2))

    def _ready(self, source: int) -> int:
        """Rows that others can begin with: before a gap, and once it is settled, in which the last to wait stays."""
        held = self._held.get(source)
        if held is None or held.whole is not None or not self._head.length(held.slot):
            return self._whole(source)
        return self._head.length(held.slot) + max(0, len(held.tokens) - 1)

    def _whole(self, source: int) -> int:
        """Rows that it has before a gap."""
        whole = self._held[source].whole if source in self._held else None
        return self._prefixes.length(self._prefixes.find(source)) if whole is None else whole

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        if source in self._held:
            self._settle(self._held[source])
        rows = min(length, self._whole(source))
        held = self._hold(request, self._prefixes.open_from(request, self._prefixes.find(source), rows, keep))
        if rows < length:
            held.whole, held.dropped = rows, length - rows

    def close(self, request: RequestView) -> None:
        """What follows a gap is of no use to others."""
        held = self._held[request.id]
        self._settle(held)
        if held.whole is not None:
            self._head.rollback(held.slot, held.whole)
        super().close(request)

    def _settle(self, held: Backlog) -> None:
        """Before others take over its rows: what waits is read, unless the head is not in use here anyway."""
        if held.whole is None and self._head.length(held.slot):
            self._catch_up([held])

    def _hold(self, request: RequestView, slot: int) -> Backlog:
        prompt = request.tokens[: request.prompt_length]
        held = self._held[request.id] = Backlog(slot, len(prompt), History(prompt))
        return held

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        """A prompt's features go into the head's cache at once, all but the last: that row is where the first draft
        begins. A step's wait until it is known what was accepted, and then for a draft. What comes while no draft is
        expected leaves a gap; of a prompt the last few wait all the same, unless they would have to be brought to a
        device, which keeps those of its own steps."""
        prompts: list[Backlog] = []
        if not soon and (self.device_part or all(rows.logits is None for rows in batch)):
            for request, rows in zip(requests, batch, strict=True):
                held = self._held[request.id]
                if rows.logits is None:
                    held.unseen = True
                else:
                    held.miss(len(rows.tokens), self._head.length(held.slot))
            return
        seen = kept(features)
        shared = len(seen) == len(batch)  # a row each, and all will be kept
        if shared:
            seen = copied(seen)
        stop = 0
        for request, rows in zip(requests, batch, strict=True):
            held = self._held[request.id]
            start, stop = stop, stop + len(rows.tokens)
            if rows.logits is None:
                held.passed = seen[start:stop] if shared else copied(seen[start:stop])
                continue
            after = self._rows(held) + held.dropped + 1
            piece = seen[start:stop] if shared or soon else copied(seen[start:stop])
            held.wait(request.tokens[after : after + len(piece)], piece)
            prompts.append(held)
        if soon:
            self._catch_up(prompts)
            keep_last(prompts)
        else:
            self._read_first([held for held in prompts if held.whole is None])
        for held in prompts:
            held.forget(WAITING, self._head.length(held.slot))

    def _read_first(self, all_held: Sequence[Backlog]) -> None:
        """Of texts of which no more may be read: all that follows attends to their first tokens, and texts that begin
        alike, as with a system prompt, can begin with those rows and have no gap."""
        for held in all_held:
            missing = FIRST - self._head.length(held.slot)
            if tokens := held.tokens[: max(0, min(missing, len(held.tokens) - 1))]:
                first = Rows.chain(held.slot, tokens, logits=[])
                self._head.forward([first], features=joined([held.take(len(tokens))]))
                self._head.commit(held.slot, range(len(tokens)))

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        """What is not drafted for runs no pass here, however long: it leaves a gap."""
        for each in verified:
            held = self._held.get(each.request.id)
            if held is None:
                continue
            if held.unseen:
                held.miss(len(each.tokens), self._head.length(held.slot))
            if held.passed is None:
                continue
            passed, held.passed = held.passed, None
            if len(passed) > 1:
                passed = passed[[0, *(1 + node for node in each.path[: len(each.tokens) - 1])]]
            held.wait(each.tokens, passed)
            held.forget(WAITING, self._head.length(held.slot))

    def hand_over(self, requests: Sequence[RequestView], soon: bool) -> list[HandedOver]:
        """Bring the caches up to all rows but the last token's, for steps on the device, which begin with that; where
        no drafts are expected, what waits before it is left out."""
        all_held = [self._held[request.id] for request in requests]
        if soon:
            self._catch_up(all_held)
        handed = []
        for held in all_held:
            self._drop_draft(held)
            held.forget(1, self._head.length(held.slot))
            handed.append(HandedOver(held.slot, joined(held.features)[0] if held.features else None, held.dropped))
            held.tokens, held.features = [], []
        return handed

    def take_back(self, request: RequestView, left: PendingFeatures) -> None:
        """Go on where steps on the device have ended."""
        held, tokens, features = self._held[request.id], request.tokens, left.features
        assert features is not None
        if left.gap > held.dropped and held.whole is None:  # some of those that came since may be missing
            held.whole = self._head.length(held.slot)
        held.dropped = left.gap
        rows = len(tokens) - 1 - len(features) - held.dropped
        self._head.advance({held.slot: rows - self._head.length(held.slot)})
        held.tokens, held.features = list(tokens[len(tokens) - len(features) :]), [features] if len(features) else []

    def leave(self, request: RequestView, seen: int) -> None:
        """It ends where it was handed over, with rows of `seen` tokens but for gaps: others may begin with those."""
        held = self._held[request.id]
        more = seen - held.dropped - self._head.length(held.slot)
        if more > 0 and self._head.steps_on_device:
            self._head.advance({held.slot: more})

    def _rows(self, held: Backlog) -> int:
        """In the cache, and about to be."""
        return self._head.length(held.slot) + len(held.tokens)

    def _grow(self, plans: list[Plan[Backlog]]) -> None:
        if wanted := self._candidates.whole(plans):
            self._grow_whole(plans, wanted)
            return
        self._absorb(plans)
        while plans := growing(plans):
            self._run_level(plans)

    def _plan(self, request: RequestView, budget: Budget) -> Plan[Backlog]:
        held = self._held[request.id]
        held.count(request.tokens)
        room = self._head.max_context - self._rows(held)
        nodes = min(budget.nodes, room) if held.tokens else 0
        depth = budget.depth if self.chains or not budget.tree else min(budget.depth, self._depth)
        branching = self._branching if budget.tree else 1
        # What is sampled must be proposed, and a chain has nothing to choose among.
        kind = TreeBuilder if samples(request.params) or branching == 1 else BestFirstTree
        if kind is BestFirstTree:  # which runs more rows than it proposes: WIDTH for every level but the last
            depth = min(depth, 1 + max(room, 0) // WIDTH)
        given = replace(budget, nodes=max(nodes, 0), depth=depth)
        return Plan(request, held, kind(given, branching), self._chance)

    def _catch_up(self, all_held: Sequence[Backlog]) -> None:
        """Put what the target has run into the cache, all but the last row: a draft begins with that."""
        for held in all_held:
            self._drop_draft(held)
        while waiting := [held for held in all_held if len(held.tokens) > 1]:
            batch, features = self._next_rows(waiting, leave=1)
            self._head.forward(batch, features=features)
            for rows in batch:
                self._head.commit(rows.slot, range(len(rows.tokens)))

    def _absorb(self, plans: Sequence[Plan[Backlog]]) -> None:
        """Bring the cache up to each request's last token, and grow the first level from there."""
        for plan in plans:
            self._drop_draft(plan.held)
        while waiting := [plan for plan in plans if plan.held.tokens]:
            batch, features = self._next_rows([plan.held for plan in waiting])
            ready = [plan for plan, rows in zip(waiting, batch, strict=False) if rows.logits]
            candidates, states = self._candidates.after(ready, batch, features=features)
            row = 0
            for plan, rows in zip(waiting, batch, strict=False):
                self._head.commit(rows.slot, range(len(rows.tokens)))
                row += len(rows.tokens)
                if rows.logits:
                    _grow(plan, [next(candidates)], states[row - 1 : row])

    def _grow_whole(self, plans: Sequence[Plan[Backlog]], wanted: Sequence[WantedTree]) -> None:
        """The same of trees that the head drafts by itself."""
        all_held = [plan.held for plan in plans]
        for held in all_held:
            self._drop_draft(held)
        if sum(len(held.tokens) for held in all_held) > self._head.chunk:
            self._catch_up(all_held)
        batch, features = self._next_rows(all_held)
        drafted = self._head.draft(batch, wanted, features=features)
        for plan, rows, tree in zip(plans, batch, drafted, strict=True):
            self._head.commit(rows.slot, range(len(rows.tokens)))
            plan.growth.grown(*tree)

    def _next_rows(self, waiting: Sequence[Backlog], leave: int = 0) -> tuple[list[Rows], Tensor]:
        """As many rows as one pass takes, all but the last `leave` of each, and their features; what follows the last
        row of a request is wanted."""
        batch, features, room = [], [], self._head.chunk
        for held in waiting:
            count = min(room, len(held.tokens) - leave)
            if not count:
                break
            room -= count
            last = count == len(held.tokens)
            batch.append(Rows.chain(held.slot, held.tokens[:count], logits=[count - 1] if last else []))
            features.append(held.take(count))
        return batch, joined(features)

    def _drop_draft(self, held: Backlog) -> None:
        if held.drafted:
            self._head.commit(held.slot, [])
            held.drafted = False

    def _run_level(self, plans: Sequence[Plan[Backlog]]) -> None:
        """Run the level each tree grew last, and grow the next."""
        batch, before = [], []
        for plan in plans:
            level = plan.growth.run_level()
            batch.append(Rows(plan.held.slot, level.tokens, level.parents))
            before.append(chosen(plan.states, level.places))
            plan.held.drafted = True
        candidates, states = self._candidates.after(plans, batch, states=joined(before))
        start = 0
        for plan, rows in zip(plans, batch, strict=True):
            stop = start + len(rows.tokens)
            _grow(plan, list(islice(candidates, stop - start)), states if len(plans) == 1 else states[start:stop])
            start = stop


def _grow(plan: Plan[Backlog], candidates: Sequence[Candidates], states: Tensor) -> None:
    """Add a level, given what may follow the last one's nodes and the states after them."""
    plan.states = states
    plan.growth.grow(candidates)
