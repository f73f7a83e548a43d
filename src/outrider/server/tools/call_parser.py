"""Calls read back from an answer, as it comes: what is text, which function is called, its arguments piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from outrider.server.tools.dialect import Dialect

_State = Literal["text", "head", "arguments", "tail", "content"]


class Said(NamedTuple):
    """A piece of text outside of calls."""

    text: str


class Called(NamedTuple):
    """A call has begun; calls are numbered from 0."""

    call: int
    id: str
    name: str


class Argued(NamedTuple):
    """The arguments of a call go on."""

    call: int
    text: str


Event = Said | Called | Argued


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedAnswer:
    """What has been read of one answer."""

    content: str = ""
    calls: list[Call] = field(default_factory=list)


class CallParser:
    """Reads one answer that a grammar of the dialect (`rules`) allows; anything else in it is text.

    Held back is what may still become the opening of a call. Invariant: the pieces of text and arguments, one after the
    other, are what is in `read`, however the answer was cut into pieces.
    """

    def __init__(self, dialect: Dialect, functions: Iterable[str]) -> None:
        self.read = ParsedAnswer()
        self._dialect = dialect
        self._heads = {dialect.head(name): name for name in functions}
        self._state: _State = "text"
        self._held = ""
        self._lead = dialect.lead
        """What stands before the next call."""
        self._begun = 0
        """Calls."""
        self._depth = 0
        self._in_string = self._escaped = False

    @property
    def complete(self) -> bool:
        """Whether there are calls, and the last has all its arguments."""
        return bool(self.read.calls) and self._state == "tail"

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while self._held:
            state, size = self._state, len(self._held)
            events += self._step()
            if (state, size) == (self._state, len(self._held)):
                break
        for event in events:
            self._note(event)
        return events

    def finish(self) -> list[Event]:
        """Nothing follows: what was held back is text, unless a call had begun."""
        if self._state == "text":
            self._state = "content"
        return self.push("")

    def _note(self, event: Event) -> None:
        match event:
            case Said(text):
                self.read.content += text
            case Called(_, call, name):
                self.read.calls.append(Call(call, name))
            case Argued(index, text):
                self.read.calls[index].arguments += text

    def _step(self) -> Iterator[Event]:
        match self._state:
            case "text":
                yield from self._text()
            case "head":
                yield from self._head()
            case "arguments":
                yield from self._arguments()
            case "tail":
                self._tail()
            case "content":
                yield Said(self._taken(len(self._held)))

    def _text(self) -> Iterator[Event]:
        opening = self._dialect.opening
        if not opening:
            if not any(head.startswith(self._held) or self._held.startswith(head) for head in self._heads):
                self._state = "content"
            yield from self._head()
            return
        at = self._held.find(opening)
        if at < 0:
            at = len(self._held) - _begun(self._held, opening)
        else:
            self._state = "head"
        if at:
            yield Said(self._taken(at))
        if self._state == "head":
            self._taken(len(opening))

    def _head(self) -> Iterator[Event]:
        """A call's beginning, once it is there as a whole."""
        for head, name in self._heads.items():
            if self._held.startswith(self._lead + head):
                self._taken(len(self._lead + head))
                self._state, self._lead = "arguments", ""
                self._begun += 1
                yield Called(self._begun - 1, self._dialect.new_id(), name)
                return

    def _arguments(self) -> Iterator[Event]:
        """Up to the brace that closes them."""
        for i, character in enumerate(self._held):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "]}":
                self._depth -= 1
                if not self._depth:
                    self._state = "tail"
                    yield Argued(self._begun - 1, self._taken(i + 1))
                    return
        yield Argued(self._begun - 1, self._taken(len(self._held)))

    def _tail(self) -> None:
        """After a call: another, or the end."""
        between = self._dialect.between
        if between is not None and self._held.startswith(f"}}{between}"):
            self._taken(1 + len(between))
            self._state = "head"

    def _taken(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken


def _begun(text: str, opening: str) -> int:
    """Length of the longest end of the text that begins the opening."""
    return next((n for n in range(min(len(text), len(opening) - 1), 0, -1) if opening.startswith(text[-n:])), 0)
