"""The texts that suffix lookup searches: of running requests, each its own, and of finished ones, by salt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from outrider.core.draft import Budget, Draft
from outrider.core.request import RequestView
from outrider.drafters.memory import H, Memory
from outrider.errors import InvalidRequest

NAME = "suffix"


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """What is remembered. History changes the speed, never the text; switch it off where requests of
    different owners must not influence each other's timing."""

    shared_history: bool = True
    shared_tokens: int = 65_536
    """Tokens of finished requests kept, about 100 bytes each (350 without the compiled lookup); past it the oldest half
    is dropped."""
    request_tokens: int = 65_536
    """The same bound for one request's own text."""

    def __post_init__(self) -> None:
        for name in ("shared_tokens", "request_tokens"):
            if getattr(self, name) < 2:
                raise InvalidRequest(f"{name}={getattr(self, name)} must be at least 2.")


class RunningText:
    """Of an open request: `size` of its tokens are in."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


T = TypeVar("T", bound=RunningText)


class SuffixTexts(ABC, Generic[T, H]):
    """Two forms that find the same, number for number: the reference (`suffix_search`) and the compiled one
    (`native.texts`). What is new in a text is taken in when something is looked up for it."""

    def __init__(self, config: SuffixConfig, text: Callable[[int], T], history: Callable[[int], H]) -> None:
        """`text(limit)`, `history(limit)`: an empty one."""
        self._limit, self._text = config.request_tokens, text
        self._texts: dict[int, T] = {}
        self._memory = Memory(config.shared_tokens, history)

    def open(self, request: RequestView) -> None:
        self._texts[request.id] = self._text(self._limit)

    def close(self, request: RequestView) -> bool:
        """Whether anything was ever looked up for it."""
        text = self._texts.pop(request.id, None)
        return text is not None and text.size > 0

    def learn(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Requests of this salt find these from now on."""
        self._memory.learn(salt, tokens)

    @abstractmethod
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """For each the most probable set of continuations within its budget."""

    @abstractmethod
    def continuation(self, request: RequestView, count: int) -> Draft:
        """The likeliest path: its first tokens are weighed as in any draft, those after them copied from where the
        match is longest. The fewer are weighed, the faster, and the more modest what is claimed of the rest."""

    @property
    def held(self) -> int:
        """Requests that are open."""
        return len(self._texts)

    @property
    def remembered(self) -> int:
        """Tokens of finished requests that can be found."""
        return self._memory.size
