"""The texts that suffix lookup searches: of running requests, each its own, and of finished ones, by salt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.draft import Budget, Draft
from outrider.core.request import RequestView
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


class SuffixTexts(ABC):
    """Two forms that find the same, number for number: the reference (`suffix_search`) and the compiled one
    (`native.texts`). What is new in a text is taken in when something is looked up for it."""

    @abstractmethod
    def open(self, request: RequestView) -> None: ...

    @abstractmethod
    def close(self, request: RequestView) -> bool:
        """Whether anything was ever looked up for it."""

    @abstractmethod
    def learn(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Requests of this salt find these from now on."""

    @abstractmethod
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """For each the most probable set of continuations within its budget."""

    @abstractmethod
    def continuation(self, request: RequestView, count: int) -> Draft:
        """The likeliest path: its first tokens are weighed as in any draft, those after them copied from where the
        match is longest. The fewer are weighed, the faster, and the more modest what is claimed of the rest."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Requests that are open."""

    @property
    @abstractmethod
    def remembered(self) -> int:
        """Tokens of finished requests that can be found."""
