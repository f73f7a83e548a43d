"""Growing a draft tree level by level, for drafters that have probabilities.

Every decision here (whether another node is drawn, and after which parent) sees only what was drawn before,
and a drawn node stays. That is what lets the rejection rule be exact over the tree, so it is not a matter of
taste; the coupled rule does not need it but loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from outrider.core.draft import ROOT, Budget
from outrider.core.model import WantedTree
from outrider.drafters.candidates import Candidates


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
        """The nodes that were added last: where the next level grows, once their candidates are known."""
        self.depth = 0
        """Levels added so far."""
        self._before = ROOT
        """The first node of the level before."""
        self._budget = budget
        self._branching = branching if budget.tree else 1
        self._levels_left = min(budget.depth, budget.nodes)

    @property
    def growing(self) -> bool:
        """Whether another level may be added, so that candidates at `level` are worth computing."""
        left = self._budget.nodes - len(self.tokens)
        chances = [self._chance(node) for node in self.level]
        promising = max(chances, default=0.0) >= self._budget.floor and sum(chances) >= self._budget.expand_level
        return left > 0 and self._levels_left > 0 and promising and any(chances)

    def grow(self, candidates: Sequence[Candidates]) -> None:
        """Add a level, given what may follow each node of the last one."""
        start = len(self.tokens)
        self._before = self.level.start
        left = self._budget.nodes - start
        quota = -(-left // self._levels_left)
        self._levels_left -= 1
        self.depth += 1
        # Best outlook first, the first of equals first; an outlook changes only when a child is drawn there.
        promising = [
            (-self._chance(parent) * after.outlook(), parent, after)
            for parent, after in zip(self.level, candidates, strict=True)
        ]
        heapify(promising)
        while len(self.tokens) < start + quota and promising:
            outlook, parent, after = promising[0]
            if outlook >= 0 or -outlook < self._budget.floor:
                break
            self.tokens.append(after.take(len(self.tokens)))
            self.parents.append(parent)
            self.confidence.append(-outlook)
            if len(after.drawn) == self._branching:
                heappop(promising)
            elif len(self.tokens) < start + quota:
                heapreplace(promising, (-self._chance(parent) * after.outlook(), parent, after))
        self.level = range(start, len(self.tokens))

    @property
    def whole(self) -> WantedTree | None:
        """What is asked of a head that drafts all of it by itself (`grown`): a chain, which leaves nothing to choose.
        None: it has branches, drawn here."""
        if self._branching > 1:
            return None
        b = self._budget
        return WantedTree(b.nodes, self._levels_left, 1, 1, b.floor, 0.0, b.expand_level)

    def grown(self, tokens: list[int], parents: list[int], confidence: list[float]) -> None:
        """All that `grow` would add, level by level, to one that has nothing yet."""
        self.tokens, self.parents, self.confidence = tokens, parents, confidence
        self.level = range(len(tokens), len(tokens))

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
