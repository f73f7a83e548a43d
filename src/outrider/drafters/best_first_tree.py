"""The most promising tree of so many nodes, for the coupled rule.

Under that rule a proposal binds nobody: whatever was looked at may be dropped again. So more is looked at than can be
proposed, and of all nodes seen the most promising are proposed, wherever in the tree they stand. (The rejection rule
forbids dropping what was drawn: `TreeBuilder` grows its trees.)
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heapreplace

from outrider.core.draft import ROOT, Budget
from outrider.core.model import WantedTree
from outrider.drafters.candidates import Candidates
from outrider.drafters.tree_builder import Level

WIDTH = 8
"""Nodes of a level whose followers are looked at, at most: their rows share a pass, which costs little more than one
row on some machines, and on others as much more as the budget says (`expand_node`)."""


class BestFirstTree:
    """A draft tree on its way; at most `budget.nodes` nodes in the end, at most `branching` children each.

    A node is no more promising than its parent, so the most promising nodes always make a tree, and none of them is
    deeper than there are nodes.
    """

    def __init__(self, budget: Budget, branching: int) -> None:
        self.depth = 0
        self.level: Sequence[int] = [ROOT]
        self._budget, self._branching = budget, branching
        self._deepest = min(budget.depth, budget.nodes)
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._confidence: list[float] = []
        self._best: list[float] = []
        """A heap: the confidence of the most promising nodes so far, at most as many as may be proposed."""
        self._row: dict[int, int] = {ROOT: ROOT}
        """The pending row of each node that was run."""
        self._before: Sequence[int] = []
        """The level before this one."""

    @property
    def growing(self) -> bool:
        if not self.level or self.depth >= self._deepest:
            return False
        together = 0.0  # not by sum(), whose last bit depends on Python's version
        for node in self.level if self.depth else ():
            together += self._confidence[node]
        return not self.depth or together >= self._budget.expand_level

    def grow(self, candidates: Sequence[Candidates]) -> None:
        """Look at what may follow each node of the level."""
        first = len(self._tokens)
        for parent, after in zip(self.level, candidates, strict=True):
            chance = 1.0 if parent == ROOT else self._confidence[parent]
            for _ in range(self._branching):
                confidence = chance * after.outlook()
                if confidence <= 0 or not self._enters(confidence):
                    break  # those after it are less promising still
                self._tokens.append(after.take(len(self._tokens)))
                self._parents.append(parent)
                self._confidence.append(confidence)
        self.depth += 1
        self._before = self.level
        found = sorted(range(first, len(self._tokens)), key=self._confidence.__getitem__, reverse=True)
        # Of a node that has already been pushed out no follower can come in.
        least = max(self._threshold, self._budget.expand_node)
        self.level = [node for node in found[:WIDTH] if self._confidence[node] >= least]

    @property
    def whole(self) -> WantedTree:
        """What is asked of a head that drafts all of it by itself (`grown`)."""
        b = self._budget
        shape = b.nodes, self._deepest, self._branching, WIDTH
        return WantedTree(*shape, b.floor, b.expand_node, b.expand_level)

    def grown(self, tokens: list[int], parents: list[int], confidence: list[float]) -> None:
        """All that levels would have brought of it."""
        self._tokens, self._parents, self._confidence, self.level = tokens, parents, confidence, ()

    def run_level(self) -> Level:
        rows = {node: len(self._row) - 1 + i for i, node in enumerate(self.level)}
        parents = [self._parents[node] for node in self.level]
        place = {node: i for i, node in enumerate(self._before)}
        level = Level(
            [self._tokens[node] for node in self.level],
            [self._row[parent] for parent in parents],
            [place[parent] for parent in parents],
        )
        self._row |= rows
        return level

    def tree(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and confidence of the most promising nodes."""
        if len(self._tokens) <= self._budget.nodes:
            return self._tokens, self._parents, self._confidence
        order = sorted(range(len(self._tokens)), key=self._confidence.__getitem__, reverse=True)
        kept = sorted(order[: self._budget.nodes])
        renamed = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        return (
            [self._tokens[node] for node in kept],
            [renamed[self._parents[node]] for node in kept],
            [self._confidence[node] for node in kept],
        )

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child down to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    @property
    def _threshold(self) -> float:
        """What a node must at least promise to be proposed."""
        full = len(self._best) == self._budget.nodes
        return max(self._budget.floor, self._best[0]) if full else self._budget.floor

    def _enters(self, confidence: float) -> bool:
        """Whether a node is among the most promising so far; then it counts as one of them."""
        if confidence < self._budget.floor:
            return False
        if len(self._best) < self._budget.nodes:
            heappush(self._best, confidence)
            return True
        if confidence <= self._best[0]:
            return False
        heapreplace(self._best, confidence)
        return True
