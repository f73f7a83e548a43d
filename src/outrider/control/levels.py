"""What each level of a drafter's drafts brings: a hope at first, then what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HOPE = 0.66
"""A drafter is taken to be right two times in three before it has been tried."""


def hoped(known: Sequence[float], count: int) -> list[float]:
    """How likely each of `count` levels is right, with all before it: as `known` of the first ones, where those before
    are right, and hoped of the others."""
    found, chance = [], 1.0
    for level in range(count):
        chance *= known[level] if level < len(known) else HOPE
        found.append(chance)
    return found


class Levels:
    """What each level of a drafter's drafts has lately brought a request. Levels beyond those drafted last are guessed
    from them, `ratio` of the one before: what improves is allowed more, step by step."""

    __slots__ = ("_guessed", "_levels", "_rate", "_ratio", "weight")

    def __init__(self, levels: Sequence[float], ratio: float, rate: float, weight: float) -> None:
        """What is believed at first counts like `weight` drafts; every draft counts for at least `rate`."""
        self._levels = list(levels)
        self._guessed = self._levels
        """The same, and further levels as far as they were asked for since the last draft."""
        self._ratio = ratio
        self._rate = rate
        self.weight = weight

    def copy(self, rate: float, weight: float, share: float = 1.0) -> Levels:
        """The same belief, held less or more firmly, of levels that bring `share` of it where those before bring as
        much."""
        levels = [share**level * brought for level, brought in enumerate(self._levels, 1)]
        return Levels(levels, share * self._ratio, rate, weight)

    def observe(self, brought: Sequence[float], first: float, rate: float = 0.0) -> None:
        """`brought[k]` by level k, as far as was drafted. `first`: how likely its first level was right."""
        self.weight += 1
        rate = max(rate, self._rate, 1 / self.weight)
        before = self._guessed if len(self._guessed) >= len(brought) else self.expected(len(brought))
        self._guessed = self._levels = levels = [
            old + rate * (new - old) for old, new in zip(before, brought, strict=False)
        ]
        # Single levels do not tell how fast they fall; others do, and a drafter goes by its own guesses ever less well.
        total = sum(levels)
        before_last = total - levels[-1] if levels else 0.0
        falls = (total - levels[0]) / before_last if before_last > 0 else first
        self._ratio += rate * ((falls if falls < 0.95 else 0.95) - self._ratio)

    def total(self, levels: int) -> float:
        """What so many levels together are expected to bring."""
        known = self._levels
        if levels <= len(known):
            return sum(known[:levels])
        total, last = sum(known), known[-1] if known else 0.0
        for _ in range(levels - len(known)):
            last *= self._ratio
            total += last
        return total

    def observe_hits(self, right: int, count: int) -> None:
        """As `observe`, of `count` levels of which the first `right` were."""
        self.weight += 1
        rate, levels = max(self._rate, 1 / self.weight), self._levels
        if len(levels) != count:
            levels = self.expected(count)
        keep = 1 - rate
        self._levels = [keep * level + rate if place < right else keep * level for place, level in enumerate(levels)]
        self._guessed = self._levels
        self._ratio += rate * ((0.95 if right else 0.0) - self._ratio)

    def expected(self, levels: int) -> list[float]:
        if len(self._guessed) < levels:
            known = self._guessed.copy()
            while len(known) < levels:
                known.append(known[-1] * self._ratio if known else 0.0)
            self._guessed = known
        return self._guessed[:levels]

    @property
    def first(self) -> float:
        """Of the first level."""
        return self._levels[0] if self._levels else 0.0


class SeenLevels(NamedTuple):
    """Of one draft, by level: the chance of its likeliest node, those of all kept together, their number, and whether a
    pass was made for it, whoever else proposed the same. `first`: how likely its first level was right."""

    best: Sequence[float]
    tokens: Sequence[float]
    rows: Sequence[float]
    runs: Sequence[float]
    first: float


class PricedLevels:
    """What each level of a paid drafter's drafts has lately brought a request, or would have but for others' drafts,
    and the rows that took: so what it is worth can be said at any price of a row, and what was learned among many
    requests holds among few."""

    __slots__ = ("_all", "_best", "_rows", "_runs", "_tokens")

    def __init__(self, best: Levels, tokens: Levels, rows: Levels, runs: Levels) -> None:
        self._best = best
        """The likeliest node of each level."""
        self._tokens, self._rows = tokens, rows
        """All those kept."""
        self._runs = runs
        """How often a pass was made for it: drafts end where nothing promising follows."""
        self._all = best, tokens, rows, runs

    @staticmethod
    def hoped(known: Sequence[float], count: int, rate: float, weight: float) -> PricedLevels:
        """Before anything was seen: of single paths. As `hoped` and `Levels`."""
        chances, single = hoped(known, count), [1.0] * count
        return PricedLevels(*[Levels(levels, HOPE, rate, weight) for levels in (chances, chances, single, single)])

    def copy(self, rate: float, weight: float, share: float = 1.0) -> PricedLevels:
        """As `Levels.copy`, of levels that are right so many times as often."""
        chances = [levels.copy(rate, weight, share) for levels in (self._best, self._tokens)]
        return PricedLevels(*chances, *[levels.copy(rate, weight) for levels in (self._rows, self._runs)])

    def observe(self, seen: SeenLevels, rate: float = 0.0) -> None:
        """As `Levels.observe`."""
        *brought, first = seen
        for levels, mine in zip(self._all, brought, strict=True):
            levels.observe(mine, first, rate)

    def expected(self, levels: int, row: float) -> list[float]:
        """Tokens that each of so many levels gains, net of its rows, where a row costs `row` of a token."""
        return [max(0.0, tokens - row * rows) for tokens, rows in self.verified(levels, row)]

    def verified(self, levels: int, row: float) -> list[tuple[float, float]]:
        """Of each of so many levels the tokens that it brings and the rows that takes: of its likeliest node alone, or
        of as many as were kept, whichever gains more where a row costs `row` of a token."""
        each = zip(*[known.expected(levels) for known in (self._best, self._tokens, self._rows)], strict=True)
        return [
            (tokens, rows) if tokens - row * rows > best - row and rows > 0 else (best, 1.0)
            for best, tokens, rows in each
        ]

    @property
    def weight(self) -> float:
        """Of all that was seen and hoped, in drafts."""
        return self._best.weight

    @property
    def followed(self) -> float:
        """How likely a node is right where the one before it is: as the first is, which is always asked for."""
        return self._best.first

    def runs(self, levels: int) -> list[float]:
        """How likely a pass is made for each of so many levels."""
        return self._runs.expected(levels)
