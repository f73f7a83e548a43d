"""Acceptance: how likely drafted tokens are right, from what drafters claim and what then really came.

Drafts are held against the tokens that came, verified or not: a lookup is scored at every step, for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from outrider.control.isotonic import isotonic
from outrider.types import ROOT, Draft

_EDGES = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Claims are told apart by the number of these that they reach."""
_BOUNDS = (0.0, *_EDGES, 1.0)
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise(_BOUNDS))
_PRIOR = 4.0
"""A claim counts like this many observed nodes."""
_MEMORY = 64.0
"""At most this many nodes per bin are remembered, so that it follows a change of text."""
_FADE, _FADE_EVERY = 0.95, 16
"""What is no longer seen fades back to the claim (half in about 220 steps): no verdict is final."""
_LATELY = 0.9
"""How much of what a request's drafts claimed and brought is still remembered a draft later."""


def truths(draft: Draft, tokens: Sequence[int]) -> list[bool | None]:
    """Whether each node is right, given the tokens that came; None: they do not reach so far."""
    found: list[bool | None] = []
    depths: list[int] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        depth = 0 if parent == ROOT else depths[parent] + 1
        depths.append(depth)
        above = True if parent == ROOT else found[parent]
        found.append((None if depth >= len(tokens) else token == tokens[depth]) if above else above)
    return found


class Calibration:
    """Acceptance by claimed confidence for one drafter; non-decreasing, and the claim itself before any evidence. Both
    are those of a node whose parent is right, so that all levels of drafts count alike."""

    def __init__(self) -> None:
        self._seen = [0.0] * len(_MIDDLES)
        self._hits = [0.0] * len(_MIDDLES)
        self._steps = 0
        self._real: list[float] | None = None

    def tick(self) -> None:
        """A step has passed, whether or not this drafter took part."""
        self._steps += 1
        if self._steps % _FADE_EVERY == 0:
            self._seen = [_FADE * value for value in self._seen]
            self._hits = [_FADE * value for value in self._hits]
        if self._steps < 16 or self._steps % 4 == 0:  # it changes slowly, and the estimate costs more than a look
            self._real = None

    def observe(self, claim: float, right: bool) -> None:
        b = bisect_right(_EDGES, claim)
        if self._seen[b] >= _MEMORY:
            self._seen[b] *= 1 - 1 / _MEMORY
            self._hits[b] *= 1 - 1 / _MEMORY
        self._seen[b] += 1
        self._hits[b] += right

    def real(self) -> list[float]:
        """Estimated acceptance at the middle of every bin of claims.

        Where a bin has little evidence of its own, the ratio of truth to claim in the next higher bin is the
        best guess: a drafter that exaggerates does so at all levels, and one that is too modest must be found
        out below the claims that are accepted today.
        """
        if self._real is None:
            values: list[float] = []
            ratio = 1.0
            for seen, hits, middle in zip(self._seen[::-1], self._hits[::-1], _MIDDLES[::-1], strict=True):
                values.append(min(1.0, (hits + _PRIOR * min(1.0, ratio * middle)) / (seen + _PRIOR)))
                ratio = values[-1] / middle
            self._real = isotonic(values[::-1], [seen + _PRIOR for seen in self._seen])
        return self._real

    def acceptance(self, claim: float) -> float:
        """What a claim really means: straight between the middles of its bin and the next."""
        real = self.real()
        right = min(max(bisect_right(_MIDDLES, claim), 1), len(_MIDDLES) - 1)
        low, high = _MIDDLES[right - 1], _MIDDLES[right]
        value = real[right - 1] + (real[right] - real[right - 1]) * (claim - low) / (high - low)
        return min(1.0, max(0.0, value))

    @property
    def rate(self) -> float:
        """How often its nodes have lately been right; 0 where none were seen."""
        return sum(self._hits) / max(1.0, sum(self._seen))

    @property
    def modesty(self) -> float:
        """How many times as often its nodes are right as it claims; at least 1."""
        claimed = sum(seen * middle for seen, middle in zip(self._seen, _MIDDLES, strict=True))
        return max(1.0, (sum(self._hits) + _PRIOR) / (claimed + _PRIOR))


class Leaning:
    """How one request differs from what a drafter's claims mean on average: the ratio of tokens that were right to
    those expected, lately; 1 before any evidence."""

    __slots__ = ("_expected", "_right")

    def __init__(self) -> None:
        self._expected = self._right = 2.0

    def observe(self, expected: float, right: float) -> None:
        self._expected = 2.0 + _LATELY * (self._expected - 2.0) + expected
        self._right = 2.0 + _LATELY * (self._right - 2.0) + right

    @property
    def ratio(self) -> float:
        return self._right / self._expected


class Levels:
    """What each level of a drafter's drafts has lately brought a request. Levels beyond those drafted last are guessed
    from them, `ratio` of the one before: what improves is allowed more, step by step."""

    __slots__ = ("_levels", "_rate", "_ratio", "_weight")

    def __init__(self, levels: Sequence[float], ratio: float, rate: float, weight: float) -> None:
        """What is believed at first counts like `weight` drafts; every draft counts for at least `rate`."""
        self._levels = list(levels)
        self._ratio = ratio
        self._rate = rate
        self._weight = weight

    def copy(self, rate: float, weight: float) -> Levels:
        """The same belief, held less or more firmly."""
        return Levels(self._levels, self._ratio, rate, weight)

    def observe(self, brought: Sequence[float], first: float, rate: float = 0.0) -> None:
        """`brought[k]` by level k, as far as was drafted. `first`: how likely its first level was right."""
        rate = max(rate, self._rate, 1 / (self._weight + 1))
        self._weight += 1
        before = self.expected(len(brought))
        self._levels = [old + rate * (new - old) for old, new in zip(before, brought, strict=True)]
        self._ratio += rate * (min(first, 0.95) - self._ratio)

    def expected(self, levels: int) -> list[float]:
        known = self._levels[:levels]
        while len(known) < levels:
            known.append(known[-1] * self._ratio if known else 0.0)
        return known
