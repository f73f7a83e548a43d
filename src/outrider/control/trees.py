"""What a tree drafted on a device brings, from what is known of chains.

A chain goes wrong where its one token does; a tree has others there, so it misses a share of those times only. That
share is learned by the size of the tree, for all requests together, and how often chains are right goes on being
learned from trees: the first child of each node is what a chain would have drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.control.levels import Levels
from outrider.core.draft import ROOT
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import StepShape

TREES = (15, 31)
"""Nodes of those that a device is asked for by default: with the last token they are 16 and 32 rows, whole tiles."""
_SHARE = -0.1
"""A tree of n nodes is taken to miss n to this power of a chain's misses: of 8 0.81, of 32 0.71. The shipped head's of
16 and 32 missed 0.75 and 0.67, where the target draws 0.80 and 0.72."""
_WEIGHT, _KEPT = 32.0, 1 - 1 / 512
"""That counts like so many misses of chains; and every tree seen, what those before are worth."""


class TreeGains:
    """Expected of trees, by their size."""

    def __init__(self) -> None:
        self._missed: dict[int, tuple[float, float]] = {}
        """By nodes: levels at which a chain missed, and the tree."""

    def share(self, nodes: int) -> float:
        """Of a chain's misses, those that a tree of so many nodes has too."""
        chain, tree = self._counted(nodes)
        return min(1.0, tree / chain)

    def _counted(self, nodes: int) -> tuple[float, float]:
        return self._missed.get(nodes) or (_WEIGHT, _WEIGHT * nodes**_SHARE)

    def gains(self, chances: Sequence[Sequence[float]], shape: StepShape) -> list[float]:
        """Tokens expected of such trees, each where a chain's levels are right so often, with all before them."""
        share, found = self.share(shape.nodes), []
        for levels in chances:
            total, chance, before = 0.0, 1.0, 1.0
            for right in levels[: shape.drafted]:
                chance *= 1 - share * (1 - right / before) if before > 0 else 1 - share
                total, before = total + chance, right
            found.append(total)
        return found

    def observe(self, levels: Levels, shape: StepShape, verified: VerifiedDraft) -> None:
        """A request's tree was verified, of whose chains that much is believed."""
        rights, (chain, tree) = _conditional(levels.expected(shape.drafted)), (0.0, 0.0)
        for depth, (first, taken) in enumerate(_walked(verified)):
            if depth < shape.drafted and taken != first:
                chain += 1 if first is not None else 1 - rights[depth]
                tree += taken is None
        chains, trees = self._counted(shape.nodes)
        self._missed[shape.nodes] = _KEPT * chains + chain, _KEPT * trees + tree

    @staticmethod
    def teach(levels: Levels, shape: StepShape, verified: VerifiedDraft) -> None:
        """What a chain would have brought the request; where the tree had nothing to say, what is believed of it."""
        believed, walked = levels.expected(shape.drafted), _walked(verified)
        right = next((i for i, (first, taken) in enumerate(walked) if taken is None or taken != first), len(walked))
        unknown = right == len(walked) or walked[right][0] is None
        after = [chance / max(believed[right - 1] if right else 1.0, 1e-9) for chance in believed[right:]]
        brought = [1.0] * right + (after if unknown else [0.0] * len(after))
        levels.observe(brought[: shape.drafted], 1.0 if right else believed[0] if unknown else 0.0)


def _walked(verified: VerifiedDraft) -> list[tuple[int | None, int | None]]:
    """By level, down to where the tree was left or the request ended: the first child there, and the one accepted;
    None: there was none."""
    parents, path = verified.draft.parents, verified.path
    left = (None,) if len(verified.tokens) > len(path) else ()
    return [(_first(parents, node), taken) for node, taken in zip((ROOT, *path), (*path, *left), strict=False)]


def _first(parents: Sequence[int], node: int) -> int | None:
    return next((i for i, parent in enumerate(parents) if parent == node), None)


def _conditional(chances: Sequence[float]) -> list[float]:
    """How likely each level is right where those before it are."""
    return [chance / before if before > 0 else 0.0 for before, chance in zip((1.0, *chances), chances, strict=False)]
