"""What finished requests have said, to be looked up by later ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from outrider.drafters.automaton import RollingAutomaton


class Memory:
    """Texts by salt: a request finds what those of its own salt have left, and nothing else.

    At most `limit` tokens over all of them: salts are the clients' to make up, so the one that was given nothing for
    longest is forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._texts: OrderedDict[str | None, RollingAutomaton] = OrderedDict()
        self._nothing = RollingAutomaton(limit)

    @property
    def size(self) -> int:
        """Tokens that can be found."""
        return sum(text.live.size for text in self._texts.values())

    def of(self, salt: str | None) -> RollingAutomaton:
        """What is remembered for a salt now; another one later, when it was forgotten or the first is learned."""
        return self._texts.get(salt, self._nothing)

    def learn(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Take in a text that is complete."""
        text = self._texts.pop(salt, None) or RollingAutomaton(self._limit)
        self._texts[salt] = text
        text.restart()
        text.extend(tokens)
        while self.size > self._limit and len(self._texts) > 1:
            self._texts.popitem(last=False)
