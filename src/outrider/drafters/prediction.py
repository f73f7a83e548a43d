"""Predicted output: the caller says what the answer will probably be, and that is drafted.

While the output follows the prediction, the draft is its continuation. Where the output leaves it (an edit), the place
to go on is found again by the last tokens written: the longest match wins, and of equal ones the nearest after the
place that was left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.drafters.lookup import LookupDrafter

_FAITH = 8
"""A prediction is trusted from the start as if so many tokens had agreed."""
_TRUSTED = 3
"""Tokens that must agree before a place counts as found; until then a lost one is looked for where it was left."""
_NEAR = 32
"""A single token is enough to find a place again so near after the one that was left; further on it takes two, before
it three: text that comes again was mostly left on purpose."""
_LOOKED_AT = 64
"""Places compared on either side."""
_LONGEST = 16
"""Longer matches are told apart no more."""


class _Prediction:
    """One request's prediction, and how far its output agrees: `place` is the token expected next, None where lost."""

    __slots__ = ("_left", "_occurs", "_size", "agreed", "place", "tokens")

    def __init__(self, tokens: Sequence[int], output_start: int) -> None:
        self.tokens = tokens
        self.place: int | None = 0
        self.agreed = _FAITH
        self._left = 0
        self._size = output_start
        self._occurs: dict[int, list[int]] | None = None

    def update(self, text: Sequence[int]) -> None:
        """Follow the output: all of `text` beyond what is known of it."""
        for end in range(self._size + 1, len(text) + 1):
            self._follow(text[end - 1])
        if self.place is None and len(text) > self._size:
            self._find(text)
        self._size = len(text)

    def _follow(self, token: int) -> None:
        if self.place is None:
            return
        if self.place < len(self.tokens) and self.tokens[self.place] == token:
            self.place += 1
            self.agreed += 1
            if self.agreed >= _TRUSTED:
                self._left = self.place
        else:
            self.place, self.agreed = None, 0

    def _find(self, text: Sequence[int]) -> None:
        """The place after the best match of the text's end."""
        places = self._positions(text[-1])
        middle = bisect_left(places, self._left)
        best: tuple[int, int] | None = None  # (length, -distance)
        for at in places[max(0, middle - _LOOKED_AT) : middle + _LOOKED_AT]:
            distance = at - self._left
            matched = self._matched(text, at)
            if matched >= (3 if distance < 0 else 1 if distance < _NEAR else 2):
                found = (matched, -abs(distance))
                if best is None or found > best:
                    best, self.place, self.agreed = found, at + 1, matched

    def _matched(self, text: Sequence[int], at: int) -> int:
        """How many tokens that end the text also end at position `at`."""
        most = min(_LONGEST, at + 1, len(text))
        return next((n for n in range(1, most) if self.tokens[at - n] != text[-1 - n]), most)

    def _positions(self, token: int) -> list[int]:
        """Where the token stands in the prediction, rising; the index is made when first something is lost."""
        if self._occurs is None:
            self._occurs = {}
            for position, each in enumerate(self.tokens):
                self._occurs.setdefault(each, []).append(position)
        return self._occurs.get(token, [])


_NAME = "prediction"
_NOTHING = Draft(source=_NAME)


class PredictionDrafter(LookupDrafter):
    """One chain from the request's own prediction; nothing for requests that have none."""

    name = _NAME
    continues = True

    def __init__(self) -> None:
        self._predictions: dict[int, _Prediction] = {}

    def open(self, request: RequestView) -> None:
        if request.speculation.prediction:
            prediction = _Prediction(request.speculation.prediction, request.prompt_length)
            prediction.update(request.tokens)
            self._predictions[request.id] = prediction

    def continuation(self, request: RequestView, count: int) -> Draft:
        return self._propose(request, Budget(count, count, tree=False))

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        if not self._predictions:
            return [_NOTHING] * len(requests)
        return [self._propose(s, b) for s, b in zip(requests, budgets, strict=True)]

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        if not self._predictions:
            return
        for each in verified:
            if known := self._predictions.get(each.request.id):
                known.update(each.request.tokens)

    def close(self, request: RequestView) -> None:
        self._predictions.pop(request.id, None)

    def _propose(self, request: RequestView, budget: Budget) -> Draft:
        known = self._predictions.get(request.id)
        limit = min(budget.nodes, budget.depth)
        if known is None or known.place is None or limit <= 0:
            return _NOTHING
        tokens = known.tokens[known.place : known.place + limit]
        m = known.agreed
        # As for any text that is looked up: m tokens that agree are followed as before with about m / (m + 2), one more
        # agrees with every level, and the product over the path telescopes.
        chances = [m * (m + 1) / ((m + i + 1) * (m + i + 2)) for i in range(len(tokens))]
        kept = sum(chance >= budget.floor for chance in chances)
        return Draft(tokens[:kept], range(-1, kept - 1), chances[:kept], self.name)
