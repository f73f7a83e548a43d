"""Prompt lookup: what followed the last few tokens the last time they occurred?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.drafters.lookup import LookupDrafter
from outrider.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Longest and shortest run of tokens to look up.

    Runs of one token are worth it although they are right one time in three only: the claimed confidence says
    so, and the controller drops them where rows are dear.
    """

    max_ngram: int = 4
    min_ngram: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise InvalidRequest(
                f"min_ngram={self.min_ngram} must be at least 1 and at most max_ngram={self.max_ngram}."
            )


_LONGEST = 32
"""Matches are measured up to this length; beyond it they are trusted no more."""


class _Index:
    """Where every short run of tokens of one request was last continued.

    `after[run]` is the position of the token that followed the latest occurrence of `run` (a tuple of
    min_ngram to max_ngram tokens). A run enters when its continuation is known, so the request's own end
    never matches itself. Invariant: `size` tokens are indexed; each costs max_ngram - min_ngram + 1 dict
    writes, and none is looked at again.
    """

    __slots__ = ("after", "size")

    def __init__(self) -> None:
        self.after: dict[tuple[int, ...], int] = {}
        self.size = 0

    def update(self, tokens: Sequence[int], config: NgramConfig) -> None:
        after = self.after
        for position in range(self.size, len(tokens)):
            for n in range(config.min_ngram, min(config.max_ngram, position) + 1):
                after[tuple(tokens[position - n : position])] = position
        self.size = len(tokens)

    def find(self, tokens: Sequence[int], config: NgramConfig) -> tuple[int, int]:
        """(length of the match, position of what followed it) for the longest known run that ends the text;
        (0, 0) if none. The match may be longer than the run that found it, and how long tells how far to
        trust it."""
        end = len(tokens)
        for n in range(min(config.max_ngram, end), config.min_ngram - 1, -1):
            position = self.after.get(tuple(tokens[end - n : end]))
            if position is not None:
                if n == config.max_ngram:
                    most = min(_LONGEST, position)
                    while n < most and tokens[position - 1 - n] == tokens[end - 1 - n]:
                        n += 1
                return n, position
        return 0, 0


class NgramDrafter(LookupDrafter):
    """Longest match first, most recent occurrence, one chain."""

    name = "ngram"
    continues = True

    def __init__(self, config: NgramConfig | None = None) -> None:
        self.config = config or NgramConfig()
        self._indexes: dict[int, _Index] = {}

    @property
    def held(self) -> int:
        return len(self._indexes)

    def open(self, request: RequestView) -> None:
        index = self._indexes[request.id] = _Index()
        index.update(request.tokens, self.config)

    def continuation(self, request: RequestView, count: int) -> Draft:
        return self._propose(request, Budget(count, count, tree=False))

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(s, b) for s, b in zip(requests, budgets, strict=True)]

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        for each in verified:
            self._indexes[each.request.id].update(each.request.tokens, self.config)

    def close(self, request: RequestView) -> None:
        self._indexes.pop(request.id, None)

    def _propose(self, request: RequestView, budget: Budget) -> Draft:
        limit = min(budget.nodes, budget.depth)
        if limit <= 0:
            return Draft(source=self.name)
        text = request.tokens
        index = self._indexes[request.id]
        index.update(text, self.config)
        matched, position = index.find(text, self.config)
        if not matched:
            return Draft(source=self.name)
        end = len(text)
        tokens: list[int] = []
        confidence: list[float] = []
        for i in range(limit):
            # A match of m tokens is followed as before with about m / (m + 2), measured on chat, code and
            # edits; one that has held for i more tokens is a match of m + i, and the product over the path
            # telescopes.
            chance = matched * (matched + 1) / ((matched + i + 1) * (matched + i + 2))
            if chance < budget.floor:
                break
            # A repeat shorter than the draft reaches the end of the text and goes on into the draft itself.
            tokens.append(text[position + i] if position + i < end else tokens[position + i - end])
            confidence.append(chance)
        return Draft(tokens, range(-1, len(tokens) - 1), confidence, self.name)
