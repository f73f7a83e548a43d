"""How much to draft: the protocol, and the controller that always answers the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outrider.control.belief import Belief
from outrider.control.choice import joined
from outrider.errors import InvalidRequest
from outrider.types import Budget, Commit, Draft, Drafter, LooksUp, SequenceView


class Controller(Protocol):
    """Has the drafts of every step made, as large as they pay, and learns from what came of them.

    It can change the speed, never the text. Per step: `draft`, then `observe`; `forget` once a sequence has ended.
    Where a device drafts, `length` is asked instead, for the next step before this one is observed, so that it never
    waits for the host; steps are observed in the order their lengths were given.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """The chain lengths it asks a device for, 0 among them."""
        ...

    @property
    def issued(self) -> Sequence[int]:
        """Nodes that were drafted last, by sequence, for people to watch."""
        ...

    @property
    def belief(self) -> Belief | None:
        """What its decisions rest on; None where it makes none."""
        ...

    def pays(self, sequences: int) -> bool:
        """Whether drafters that make passes are expected to be asked, by requests of which nothing is known yet, while
        so many run."""
        ...

    @property
    def away(self) -> bool:
        """Whether none of the running sequences' drafters that make passes will be asked for long."""
        ...

    @property
    def paused(self) -> bool:
        """Whether nothing has been drafted for a while, nor is expected to be."""
        ...

    def draft(
        self, drafter: Drafter, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]
    ) -> list[Draft]:
        """The drafts to verify, one per sequence in order. `tree`: whether the target can verify trees. `room[i]`: the
        most nodes that the context and the request still allow sequence i."""
        ...

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        """How long the chains are that a device drafts next, for all sequences alike; at most `limit`. `seconds`: what
        a step takes with each length it has prepared (empty: it has measured none)."""
        ...

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        """One step is over: `rows` rows were verified for all `commits` together, drafting took
        `draft_seconds`, everything else `target_seconds`."""
        ...

    def lost(self, sequence: SequenceView) -> None:
        """Its steps under way on a device will not be observed."""
        ...

    def forget(self, sequence: SequenceView) -> None: ...


class FixedLength:
    """Always `nodes` nodes, as far as the context has room; the likeliest where several drafters propose more."""

    def __init__(self, nodes: int, tree: bool = True) -> None:
        """`tree` False: single paths only."""
        if nodes < 0:
            raise InvalidRequest(f"draft length {nodes} must be at least 0.")
        self.nodes = nodes
        self.lengths: Sequence[int] = sorted({0, nodes})
        self.issued: Sequence[int] = ()
        self.paused = nodes == 0
        self.away = nodes == 0
        self.belief: Belief | None = None
        self._tree = tree

    def draft(
        self, drafter: Drafter, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]
    ) -> list[Draft]:
        sizes = [max(0, min(self.nodes, most)) for most in room]
        budgets = [Budget(size, size, 0.0, tree and self._tree) for size in sizes]
        if not isinstance(drafter, LooksUp):
            drafts = drafter.propose(sequences, budgets)
        else:
            drafts = drafter.look_up(sequences, budgets)
            left = [b if drafter.paid(s) else Budget(0, 0) for s, b in zip(sequences, budgets, strict=True)]
            if any(budget.nodes for budget in left):
                guessed = drafter.propose(sequences, left)
                drafts = [joined(*pair, tree and self._tree) for pair in zip(drafts, guessed, strict=True)]
        drafts = [_likeliest(draft, size) for draft, size in zip(drafts, sizes, strict=True)]
        self.issued = [len(draft) for draft in drafts]
        return drafts

    def pays(self, sequences: int) -> bool:
        return self.nodes > 0

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        allowed = [s.speculation.max_nodes for s in sequences if s.speculation.max_nodes is not None]
        length = min([self.nodes, limit, *allowed])
        self.issued = [length] * len(sequences)
        return length

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        pass

    def lost(self, sequence: SequenceView) -> None:
        pass

    def forget(self, sequence: SequenceView) -> None:
        pass


def _likeliest(draft: Draft, nodes: int) -> Draft:
    """Its likeliest nodes, at most so many."""
    if draft.q is not None or len(draft) <= nodes:
        return draft
    order = sorted(range(len(draft)), key=draft.confidence.__getitem__, reverse=True)
    return draft.only(sorted(order[:nodes]))
