"""Acceptance: how likely drafted tokens are right, from what drafters claim and what then really came.

Drafts are held against the tokens that came, verified or not: a lookup is scored at every step, for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise, repeat
from operator import mul

from outrider.control.isotonic import isotonic
from outrider.core.draft import ROOT, Draft

_EDGES = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Claims are told apart by the number of these that they reach."""
_BOUNDS = (0.0, *_EDGES, 1.0)
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise(_BOUNDS))
_WIDTHS = tuple((low, high - low) for low, high in pairwise(_MIDDLES))
_LAST = len(_MIDDLES) - 1
_PRIOR = 4.0
"""A claim counts like this many observed nodes, and that a request is like the others."""
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


def verdicts(draft: Draft, tokens: Sequence[int]) -> list[tuple[int, bool]]:
    """The nodes of which the tokens that came tell something, and whether each is right: those that follow what is, as
    far as the tokens reach."""
    found: list[tuple[int, bool]] = []
    below = {ROOT: 0}  # by node that is right: the level of its children
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        level = below.get(parent)
        if level is None or level >= len(tokens):
            continue
        right = token == tokens[level]
        found.append((node, right))
        if right:
            below[node] = level + 1
    return found


_Piece = tuple[float, float, float, float]
"""Of a line: its value on the left, how much it rises to the right, where it begins and how wide it is."""


def _at(line: Sequence[_Piece], claim: float) -> float:
    start, rise, low, width = line[bisect_right(_MIDDLES, claim, 1, _LAST) - 1]
    value = start + rise * (claim - low) / width
    return 1.0 if value > 1.0 else value if value > 0.0 else 0.0


class Calibration:
    """Acceptance by claimed confidence for one drafter; non-decreasing, and the claim itself before any evidence. Both
    are those of a node whose parent is right, so that all levels of drafts count alike."""

    def __init__(self) -> None:
        self._seen = [0.0] * len(_MIDDLES)
        self._hits = [0.0] * len(_MIDDLES)
        self._steps = 0
        self._line: list[_Piece] = []
        """What claims mean, between the middles of each bin and the next; empty until it is asked for anew."""
        self._truth: float | None = None
        """`truth`; None until it is asked for anew."""

    def tick(self) -> None:
        """A step has passed, whether or not this drafter took part."""
        self._steps += 1
        if self._steps % _FADE_EVERY == 0:
            self._seen = [_FADE * value for value in self._seen]
            self._hits = [_FADE * value for value in self._hits]
        if self._steps < 16 or self._steps % 4 == 0:  # it changes slowly, and the estimate costs more than a look
            self._line, self._truth = [], None

    def observe(self, claim: float, right: bool) -> None:
        b, seen, hits = bisect_right(_EDGES, claim), self._seen, self._hits
        if seen[b] >= _MEMORY:
            seen[b] *= 1 - 1 / _MEMORY
            hits[b] *= 1 - 1 / _MEMORY
        seen[b] += 1
        hits[b] += right

    def score(self, claim: float, right: bool) -> float:
        """`observe`; what it was taken to mean before."""
        meant = _at(self._line or self.line(), claim)
        self.observe(claim, right)
        return meant

    def real(self) -> list[float]:
        """Estimated acceptance at the middle of every bin of claims.

        Where a bin has little evidence of its own, the ratio of truth to claim in the next higher bin is the
        best guess: a drafter that exaggerates does so at all levels, and one that is too modest must be found
        out below the claims that are accepted today.
        """
        values: list[float] = []
        ratio = 1.0
        for seen, hits, middle in zip(self._seen[::-1], self._hits[::-1], _MIDDLES[::-1], strict=True):
            values.append(min(1.0, (hits + _PRIOR * min(1.0, ratio * middle)) / (seen + _PRIOR)))
            ratio = values[-1] / middle
        return isotonic(values[::-1], [seen + _PRIOR for seen in self._seen])

    def line(self) -> list[_Piece]:
        """What claims mean: straight between the middles of their bin and the next. For `_at`."""
        if not self._line:
            self._line = [
                (start, end - start, low, width)
                for (start, end), (low, width) in zip(pairwise(self.real()), _WIDTHS, strict=True)
            ]
        return self._line

    def acceptance(self, claim: float) -> float:
        """What a claim really means."""
        return _at(self.line(), claim)

    @property
    def rate(self) -> float:
        """How often its nodes have lately been right; 0 where none were seen."""
        return sum(self._hits) / max(1.0, sum(self._seen))

    @property
    def truth(self) -> float:
        """How many times as often its nodes are right as it claims."""
        if self._truth is None:
            claimed = sum(map(mul, self._seen, _MIDDLES))
            self._truth = (sum(self._hits) + _PRIOR) / (claimed + _PRIOR)
        return self._truth


class Leaning:
    """How one request differs from what a drafter's claims mean on average: by how much the odds of its nodes are
    better, lately; 1 before any evidence. As odds no evidence makes a node certain: were chances scaled instead, a text
    that repeats itself would soon have whole paths that cannot fail."""

    __slots__ = ("_missed", "_right", "_to_miss", "_to_right")

    def __init__(self) -> None:
        self._right = self._to_right = self._missed = self._to_miss = _PRIOR

    def observe(self, nodes: int, expected: float, right: int) -> None:
        """Of so many nodes whose parents were right, so many were expected to be, and were."""
        self._right = _PRIOR + _LATELY * (self._right - _PRIOR) + right
        self._to_right = _PRIOR + _LATELY * (self._to_right - _PRIOR) + expected
        self._missed = _PRIOR + _LATELY * (self._missed - _PRIOR) + nodes - right
        self._to_miss = _PRIOR + _LATELY * (self._to_miss - _PRIOR) + nodes - expected

    @property
    def odds(self) -> float:
        return self._right * self._to_miss / (self._to_right * self._missed)


_Meaning = tuple[Sequence[_Piece], float]
"""What claims of one label mean (`Calibration.line`), and how one request leans."""

Leanings = dict[str, Leaning]
"""Of one request, by the label of those who proposed (`Draft.label`)."""


class Acceptance:
    """How likely drafted tokens are right, by who proposed them: a calibration for each label that drafts were made
    under, shared by all requests, times the request's own leaning."""

    def __init__(self) -> None:
        self._calibrations: dict[str, Calibration] = {}

    def chances(self, drafts: Sequence[Draft], leanings: Sequence[Leanings]) -> list[list[float]]:
        """How likely each node of each request's draft is accepted; never more than its parent."""
        found: list[list[float]] = []
        for draft, mine in zip(drafts, leanings, strict=True):
            if not draft.tokens:
                found.append([])
            elif not draft.sources:
                found.append(_chances(draft, repeat(self._meaning(draft.source, mine))))
            else:
                meanings = {label: self._meaning(label, mine) for label in set(draft.sources)}
                found.append(_chances(draft, [meanings[label] for label in draft.sources]))
        return found

    def _meaning(self, label: str, leanings: Leanings) -> _Meaning:
        leaning = leanings.get(label)
        return self._of(label).line(), leaning.odds if leaning else 1.0

    def along(self, path: Draft, leanings: Leanings) -> list[float]:
        """As `chances`, of a long path that one drafter proposed, where claims hardly differ from one to the next."""
        known, leaning = self._of(path.source), leanings.get(path.source)
        odds = leaning.odds if leaning else 1.0
        chances, chance, above, last, right = [], 1.0, 1.0, -1.0, 0.0
        for confidence in path.confidence:
            claim = claimed(confidence, above)
            if abs(claim - last) > _NEARLY:
                last, right = claim, _leant(known.acceptance(claim), odds)
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
        leanings.setdefault(source, Leaning()).observe(min(len(claims), right + 1), expected, right)

    def observe(self, draft: Draft, leanings: Leanings, tokens: Sequence[int]) -> None:
        """Hold a request's draft against the tokens that came, verified or not."""
        sums: dict[str, tuple[int, float, int]] = {}
        parents, confidence, sources, label = draft.parents, draft.confidence, draft.sources, draft.source
        by_label = {label: self._of(label) for label in set(sources or (label,))}
        for i, right in verdicts(draft, tokens):
            if sources:
                label = sources[i]
            parent = parents[i]
            claim = claimed(confidence[i], confidence[parent] if parent != ROOT else 1.0)
            nodes, expected, hits = sums.get(label, (0, 0.0, 0))
            sums[label] = nodes + 1, expected + by_label[label].score(claim, right), hits + right
        for label, seen in sums.items():
            leaning = leanings.get(label)
            if leaning is None:
                leaning = leanings[label] = Leaning()
            leaning.observe(*seen)

    def tick(self) -> None:
        """A step has passed, whoever took part."""
        for calibration in self._calibrations.values():
            calibration.tick()

    def truth(self, label: str) -> float:
        """How many times as often its nodes are right as it claims."""
        return self._of(label).truth

    def greatest_modesty(self, other_than: Container[str]) -> float:
        """Of all labels but these; 1 where there are none."""
        known = self._calibrations.items()
        return max([1.0, *[calibration.truth for label, calibration in known if label not in other_than]])

    def rates(self) -> dict[str, float]:
        """By label: how often its nodes have lately been right."""
        return {label: calibration.rate for label, calibration in self._calibrations.items()}

    def _of(self, label: str) -> Calibration:
        known = self._calibrations.get(label)
        if known is None:
            known = self._calibrations[label] = Calibration()
        return known


def covered(draft: Draft, chances: Sequence[float], levels: int) -> list[float]:
    """How likely each of so many levels is right by a draft of these chances."""
    found = [0.0] * levels
    for level, chance in zip(depths(draft), chances, strict=True):
        if level < levels:
            found[level] = min(1.0, found[level] + chance)
    return found


def _chances(draft: Draft, meanings: Iterable[_Meaning]) -> list[float]:
    # The last entry of both lists stands for ROOT, which is -1.
    claims, chances = [*draft.confidence, 1.0], [1.0] * (len(draft.tokens) + 1)
    for i, (parent, (line, odds)) in enumerate(zip(draft.parents, meanings, strict=False)):
        above, confidence = claims[parent], claims[i]
        # As claimed, _at and _leant, which are called less often.
        claim = (confidence / above if confidence < above else 1.0) if above > 0 else 0.0
        start, rise, low, width = line[bisect_right(_MIDDLES, claim, 1, _LAST) - 1]
        value = start + rise * (claim - low) / width
        chance = 1.0 if value > 1.0 else value if value > 0.0 else 0.0
        right = odds * chance
        chances[i] = right / (right + (1.0 - chance)) * chances[parent]
    chances.pop()
    return chances


def _leant(chance: float, odds: float) -> float:
    """A chance whose odds are so many times as good; however it is rounded, at most 1."""
    right = odds * chance
    return right / (right + (1.0 - chance))


def claimed(confidence: float, above: float) -> float:
    """How likely a node is said to be right where its parent is."""
    return (confidence / above if confidence < above else 1.0) if above > 0 else 0.0
