"""What finished requests have said, to be looked up by later ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class History(Protocol):
    """Texts of one salt: at least the newest half, and at most all, of as many tokens as it may hold."""

    @property
    def size(self) -> int:
        """Tokens that can be found."""
        ...

    def learn(self, tokens: Sequence[int]) -> None:
        """Take in a text that is complete."""
        ...


H = TypeVar("H", bound=History)


class Memory(Generic[H]):
    """Texts by salt: a request finds what those of its own salt have left, and nothing else.

    At most `limit` tokens over all of them: salts are the clients' to make up, so the one that was given nothing for
    longest is forgotten first.
    """

    def __init__(self, limit: int, history: Callable[[int], H]) -> None:
        """`history(limit)`: an empty one."""
        self._limit = limit
        self._history = history
        self._texts: OrderedDict[str | None, H] = OrderedDict()
        self._nothing = history(limit)

    @property
    def size(self) -> int:
        """Tokens that can be found."""
        return sum(text.size for text in self._texts.values())

    def of(self, salt: str | None) -> H:
        """What is remembered for a salt now; another one later, when it was forgotten or the first is learned."""
        return self._texts.get(salt, self._nothing)

    def learn(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Take in a text that is complete."""
        text = self._texts.pop(salt, None) or self._history(self._limit)
        self._texts[salt] = text
        text.learn(tokens)
        while self.size > self._limit and len(self._texts) > 1:
            self._texts.popitem(last=False)
