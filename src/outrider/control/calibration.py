"""From what a drafter claims to what really gets accepted."""

from __future__ import annotations

from bisect import bisect_right

from outrider.control.isotonic import isotonic
from outrider.types import Draft

_EDGES = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Claims are told apart by the number of these that they reach."""
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
_PRIOR = 8.0
"""A claim counts like this many observed nodes."""
_MEMORY = 64.0
"""At most this many nodes per bin are remembered, so that it follows a change of text."""
_FADE, _FADE_EVERY = 0.95, 16
"""What is no longer seen fades back to the claim (half in about 220 steps): no verdict is final."""


class Calibration:
    """Acceptance by claimed confidence for one drafter; non-decreasing, and the claim itself before any
    evidence."""

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

    def observe(self, draft: Draft, path: tuple[int, ...]) -> None:
        for node, claim in enumerate(draft.confidence):
            b = bisect_right(_EDGES, claim)
            if self._seen[b] >= _MEMORY:
                self._seen[b] *= 1 - 1 / _MEMORY
                self._hits[b] *= 1 - 1 / _MEMORY
            self._seen[b] += 1
            if node in path:
                self._hits[b] += 1

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

    def claim_for(self, acceptance: float) -> float:
        """The smallest claim that really means at least `acceptance`; above 1 if no claim does."""
        if acceptance <= 0:
            return 0.0
        low_claim, low = 0.0, 0.0
        for claim, value in zip(_MIDDLES, self.real(), strict=True):
            if value >= acceptance:
                return low_claim + (claim - low_claim) * (acceptance - low) / (value - low)
            low_claim, low = claim, value
        return 2.0
