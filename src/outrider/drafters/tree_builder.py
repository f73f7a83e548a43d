"""Growing a draft tree level by level, for drafters that have probabilities.

Every decision here (whether another node is drawn, and after which parent) sees only what was drawn before,
and a drawn node stays. That is what lets the rejection rule be exact over the tree, so it is not a matter of
taste; the coupled rule does not need it but loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from outrider.core.draft import ROOT, Budget


@dataclass(slots=True)
class Offer:
    """What may follow one node: the children still to be drawn, one after the other.

    `likely` are the node's most probable tokens with their probabilities, at least as many as children may be
    drawn. `draw(node)` draws the next child, to become draft node `node`: (token, its probability).
    """

    likely: Sequence[tuple[int, float]]
    draw: Callable[[int], tuple[int, float]]
    random: bool
    """Whether the target samples here (temperature above 0)."""
    drawn: set[int] = field(default_factory=set)
    expected: float = 0.0
    """How likely the target is to follow one of the children drawn so far."""
    spent: float = 0.0
    """The draft's own probability of the children drawn so far."""

    def outlook(self) -> float:
        """How likely the target is to follow the next child, estimated before that is drawn.

        A greedy target follows the draft about as often as the draft is sure of itself: its largest
        probability left, m. A sampling one, which draws alike, also agrees about half of the time where the
        draft is unsure: (1 + m) / 2. Once the first child is refused little of that is left: m has to do.
        """
        best = max((p for token, p in self.likely if token not in self.drawn), default=0.0)
        if best <= 0:
            return 0.0
        best /= max(1.0 - self.spent, best)
        if self.random and not self.drawn:
            best = (1.0 + best) / 2
        return (1.0 - self.expected) * best

    def take(self, node: int) -> int:
        outlook = self.outlook()
        token, probability = self.draw(node)
        self.drawn.add(token)
        self.expected += outlook
        self.spent += probability
        return token


class Level(NamedTuple):
    """The nodes added last, to be run: their tokens, the pending rows they follow, and which node of the level before
    each follows, by its place there."""

    tokens: list[int]
    parents: list[int]
    places: list[int]


class TreeBuilder:
    """One draft tree on its way; at most `budget.nodes` nodes, at most `branching` children each.

    The nodes left are spread evenly over the levels left; within a level the most promising is drawn first.
    """

    def __init__(self, budget: Budget, branching: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidence: list[float] = []
        self.level: range = range(ROOT, 0)
        """The nodes that were added last: where the next level grows, once their offers are known."""
        self.depth = 0
        """Levels added so far."""
        self._before = ROOT
        """The first node of the level before."""
        self._budget = budget
        self._branching = branching if budget.tree else 1
        self._levels_left = min(budget.depth, budget.nodes)

    @property
    def growing(self) -> bool:
        """Whether another level may be added, so that offers at `level` are worth computing."""
        left = self._budget.nodes - len(self.tokens)
        promising = max(self._chance(node) for node in self.level) if self.level else 0.0
        return left > 0 and self._levels_left > 0 and promising >= self._budget.floor and promising > 0

    def grow(self, offers: Sequence[Offer]) -> None:
        """Add a level, given what may follow each node of the last one."""
        start = len(self.tokens)
        self._before = self.level.start
        left = self._budget.nodes - start
        quota = -(-left // self._levels_left)
        self._levels_left -= 1
        self.depth += 1
        # Best outlook first, the first of equals first; an offer's outlook changes only when a child of its is drawn.
        promising = [
            (-self._chance(parent) * offer.outlook(), parent, offer)
            for parent, offer in zip(self.level, offers, strict=True)
        ]
        heapify(promising)
        while len(self.tokens) < start + quota and promising:
            outlook, parent, offer = promising[0]
            if outlook >= 0 or -outlook < self._budget.floor:
                break
            self.tokens.append(offer.take(len(self.tokens)))
            self.parents.append(parent)
            self.confidence.append(-outlook)
            if len(offer.drawn) == self._branching:
                heappop(promising)
            elif len(self.tokens) < start + quota:
                heapreplace(promising, (-self._chance(parent) * offer.outlook(), parent, offer))
        self.level = range(start, len(self.tokens))

    def run_level(self) -> Level:
        """Levels are run whole and in order, so pending row i is node i."""
        start = self.level.start
        parents = self.parents[start:]
        return Level(self.tokens[start:], parents, [parent - self._before for parent in parents])

    def tree(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and confidence."""
        return self.tokens, self.parents, self.confidence

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child down to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def _chance(self, node: int) -> float:
        return 1.0 if node == ROOT else self.confidence[node]
