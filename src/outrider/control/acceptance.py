"""Acceptance: how likely drafted tokens are right, from what drafters claim and what then really came.

Drafts are held against the tokens that came, verified or not: a lookup is scored at every step, for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from itertools import pairwise

from outrider.control.isotonic import isotonic
from outrider.core.draft import ROOT, Draft

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
_NEARLY = 0.01
"""Claims that differ by less mean the same."""
_LATELY = 0.9
"""How much of what a request's drafts claimed and brought is still remembered a draft later."""


def depths(draft: Draft) -> list[int]:
    """Levels between each node and the root: 0 for its children."""
    found: list[int] = []
    for parent in draft.parents:
        found.append(0 if parent == ROOT else found[parent] + 1)
    return found


def truths(draft: Draft, tokens: Sequence[int]) -> list[bool | None]:
    """Whether each node is right, given the tokens that came; None: they do not reach so far."""
    found: list[bool | None] = []
    for token, parent, depth in zip(draft.tokens, draft.parents, depths(draft), strict=True):
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
        real = self._real or self.real()
        right = bisect_right(_MIDDLES, claim, 1, len(_MIDDLES) - 1)
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


Leanings = dict[str, Leaning]
"""Of one request, by the label of those who proposed (`Draft.label`)."""


class Acceptance:
    """How likely drafted tokens are right, by who proposed them: a calibration for each label that drafts were made
    under, shared by all requests, times the request's own leaning."""

    def __init__(self) -> None:
        self._calibrations: dict[str, Calibration] = {}

    def chances(self, draft: Draft, leanings: Leanings) -> list[float]:
        """How likely each node is accepted; never more than its parent."""
        chances: list[float] = []
        for i, parent in enumerate(draft.parents):
            label = draft.label(i)
            chance = self._of(label).acceptance(_claim(draft, i))
            if label in leanings:
                chance = min(1.0, chance * leanings[label].ratio)
            chances.append(chance if parent == ROOT else chance * chances[parent])
        return chances

    def along(self, path: Draft, leanings: Leanings) -> list[float]:
        """As `chances`, of a long path that one drafter proposed, where claims hardly differ from one to the next."""
        known, leaning = self._of(path.source), leanings.get(path.source)
        ratio = leaning.ratio if leaning else 1.0
        chances, chance, above, last, right = [], 1.0, 1.0, -1.0, 0.0
        for confidence in path.confidence:
            claim = confidence / above
            if abs(claim - last) > _NEARLY:
                last, right = claim, min(1.0, ratio * known.acceptance(min(1.0, claim)))
            chance *= right
            chances.append(chance)
            above = confidence
        return chances

    def followed(self, source: str, claims: Sequence[float], right: int, leanings: Leanings) -> None:
        """As `observe`, of a single path of which the first `right` tokens were right and the next, if any, was not:
        what each claims where those before are right."""
        known, expected, last, chance = self._of(source), 0.0, -1.0, 0.0
        for i, claim in enumerate(claims[: right + 1]):
            if abs(claim - last) > _NEARLY:
                last, chance = claim, known.acceptance(claim)
            expected += chance
            known.observe(claim, i < right)
        leanings.setdefault(source, Leaning()).observe(expected, right)

    def covered(self, draft: Draft, leanings: Leanings, levels: int) -> list[float]:
        """How likely each of so many levels is right by this draft."""
        covered = [0.0] * levels
        for level, chance in zip(depths(draft), self.chances(draft, leanings), strict=True):
            if level < levels:
                covered[level] = min(1.0, covered[level] + chance)
        return covered

    def observe(self, draft: Draft, leanings: Leanings, tokens: Sequence[int]) -> None:
        """Hold a request's draft against the tokens that came, verified or not."""
        sums: dict[str, tuple[float, int]] = {}
        right = truths(draft, tokens)
        for i, (hit, parent) in enumerate(zip(right, draft.parents, strict=True)):
            if hit is None or not (parent == ROOT or right[parent]):
                continue  # nothing can be said of what follows a wrong token
            label, claim = draft.label(i), _claim(draft, i)
            known = self._of(label)
            expected, hits = sums.get(label, (0.0, 0))
            sums[label] = expected + known.acceptance(claim), hits + hit
            known.observe(claim, hit)
        for label, (expected, hits) in sums.items():
            leanings.setdefault(label, Leaning()).observe(expected, hits)

    def tick(self) -> None:
        """A step has passed, whoever took part."""
        for calibration in self._calibrations.values():
            calibration.tick()

    def modesty(self, label: str) -> float:
        """How many times as often its nodes are right as it claims; at least 1."""
        return self._of(label).modesty

    def greatest_modesty(self, other_than: Container[str]) -> float:
        """Of all labels but these; 1 where there are none."""
        known = self._calibrations.items()
        return max((calibration.modesty for label, calibration in known if label not in other_than), default=1.0)

    def rates(self) -> dict[str, float]:
        """By label: how often its nodes have lately been right."""
        return {label: calibration.rate for label, calibration in self._calibrations.items()}

    def _of(self, label: str) -> Calibration:
        known = self._calibrations.get(label)
        if known is None:
            known = self._calibrations[label] = Calibration()
        return known


def _claim(draft: Draft, node: int) -> float:
    """How likely the node is said to be right where its parent is."""
    parent = draft.parents[node]
    above = 1.0 if parent == ROOT else draft.confidence[parent]
    return min(1.0, draft.confidence[node] / above) if above > 0 else 0.0
