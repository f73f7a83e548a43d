"""What the target has run of a request and a head has not read yet: tokens and features wait, and leave gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.drafters.cached import Held
from outrider.drafters.host_rows import Kept, copied, joined, kept, together


@dataclass(slots=True)
class Backlog(Held):
    """Token i of `tokens` follows the position whose features are row i of `features`, all pieces together. Tokens
    before these are in the head's cache, one row each, but for the first of the text, which has none, and `dropped`
    others."""

    tokens: list[int] = field(default_factory=list)
    features: list[Kept] = field(default_factory=list)
    passed: Kept | None = None
    """Features of the last pass: of the last token, then of every draft node."""
    unseen: bool = False
    """Whether the last pass was not looked at."""
    drafted: bool = False
    """Whether rows of a draft are pending in the head's cache."""
    dropped: int = 0
    """Tokens the cache lacks, anywhere before those that wait."""
    whole: int | None = None
    """Rows before the first of them: of those alone row i holds token i + 1. None: nothing is missing."""

    def wait(self, tokens: Sequence[int], features: Kept) -> None:
        self.tokens += tokens
        self.features.append(features)

    def take(self, count: int) -> Kept:
        """The oldest `count` of what waits are being read: their features."""
        merged = together(self.features)
        if count == len(merged):
            self.tokens, self.features = [], []
            return merged
        self.tokens, self.features = self.tokens[count:], [merged[count:]]
        return merged[:count]

    def miss(self, count: int, rows: int) -> None:
        """So many tokens came unseen: what waits does not go together with what will. `rows`: in the cache."""
        self.unseen = False
        self._gap(rows)
        self.dropped += len(self.tokens) + count
        self.tokens, self.features = [], []

    def forget(self, most: int, rows: int) -> None:
        """Of what waits, all but the last `most`, unread. `rows`: in the cache."""
        count = len(self.tokens) - most
        if count <= 0:
            return
        self._gap(rows)
        self.dropped += count
        del self.tokens[:count]
        while count >= len(self.features[0]):
            count -= len(self.features.pop(0))
            if not count:
                return
        self.features[0] = self.features[0][count:]

    def _gap(self, rows: int) -> None:
        if self.whole is None:
            self.whole = rows


def keep_last(all_held: Sequence[Backlog]) -> None:
    """The one row that waits of each is still the target's, whose next pass writes over it: copied, all at once."""
    waiting = [held for held in all_held if held.features]
    if waiting:
        rows = joined([copied(held.features[0]) if len(waiting) == 1 else held.features[0] for held in waiting])
        for i, held in enumerate(waiting):
            held.features = [kept(rows[i : i + 1])]
