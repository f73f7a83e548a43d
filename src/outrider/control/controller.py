"""How much to draft: the protocol, and the controller that always answers the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outrider.errors import InvalidRequest
from outrider.types import Budget, Commit, SequenceView


class Controller(Protocol):
    """Says before every step what each sequence may draft, and learns from what came of it.

    It can change the speed, never the text. Per step: `budgets`, then `observe`; `forget` once a sequence has
    ended. Where a device drafts, the budgets of the next step are asked for before this one is observed, so that it
    never waits for the host; steps are observed in the order their budgets were given.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """The chain lengths it asks a device for, 0 among them."""
        ...

    @property
    def issued(self) -> Sequence[int]:
        """Nodes of the budgets given out last, for people to watch."""
        ...

    def budgets(self, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]) -> list[Budget]:
        """One budget per sequence, in order. `tree`: whether the target can verify trees. `room[i]`: the most
        nodes the context still allows sequence i; neither nodes nor depth exceed it."""
        ...

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        """How long the chains are that a device drafts next, for all sequences alike; at most `limit`. `seconds`: what
        a step takes with each length it has prepared (empty: it has measured none)."""
        ...

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        """One step is over: `rows` rows were verified for all `commits` together, drafting took
        `draft_seconds`, everything else `target_seconds`."""
        ...

    def forget(self, sequence: SequenceView) -> None: ...


class FixedLength:
    """Always `nodes` nodes, as far as the context has room."""

    def __init__(self, nodes: int) -> None:
        if nodes < 0:
            raise InvalidRequest(f"draft length {nodes} must be at least 0.")
        self.nodes = nodes
        self.lengths: Sequence[int] = sorted({0, nodes})
        self.issued: Sequence[int] = ()

    def budgets(self, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]) -> list[Budget]:
        sizes = [max(0, min(self.nodes, most)) for _, most in zip(sequences, room, strict=True)]
        self.issued = sizes
        return [Budget(size, size, 0.0, tree) for size in sizes]

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        allowed = [s.speculation.max_nodes for s in sequences if s.speculation.max_nodes is not None]
        length = min([self.nodes, limit, *allowed])
        self.issued = [length] * len(sequences)
        return length

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        pass

    def forget(self, sequence: SequenceView) -> None:
        pass
