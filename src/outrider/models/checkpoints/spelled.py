"""What people write stays text: a control token spelled out in a message must not end it or begin another role's."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.models.checkpoints.encoding import encoded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Said = TypeVar("Said")


class Spelling:
    """Hides control tokens in messages from the template's encoding, and encodes them letter by letter.

    Messages without any, nearly all, are encoded as one text, exactly as the model was trained.
    """

    def __init__(self, backend: Backend) -> None:
        names = [added.content for added in backend.get_added_tokens_decoder().values() if added.special]
        names.sort(key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names))) if names else None
        self._backend = backend

    def found(self, said: Any) -> bool:
        """Whether one is spelled out anywhere in it: text, or lists and mappings of such."""
        control = self._control
        return control is not None and any(control.search(text) for text in _texts(said))

    def hide(self, said: Said) -> tuple[Said, Mapping[str, str]]:
        """The same with a mark for each control token, and what every mark stands for.

        A mark is private-use characters around a number nobody can guess, so no message can contain one.
        """
        control = self._control
        assert control is not None
        nonce = secrets.token_hex(8)
        marks: dict[str, str] = {}

        def mark(match: re.Match[str]) -> str:
            name = f"\ue000{nonce}.{len(marks)}\ue001"
            marks[name] = match[0]
            return name

        return _mapped(said, lambda text: control.sub(mark, text)), marks

    def encode(self, rendered: str, marks: Mapping[str, str]) -> list[int]:
        """Token ids of a rendered template: its own control tokens as such, the hidden ones as plain text."""
        # All marks begin alike. One expression that names each of them takes minutes for a hundred thousand.
        mark = re.escape(next(iter(marks)).partition(".")[0]) + r"\.\d+\ue001"
        spelled = {name: encoded(self._literal, name, False) for name in set(marks.values())}
        ids: list[int] = []
        for piece in filter(None, re.split(f"({mark})", rendered)):
            ids.extend(spelled[marks[piece]] if piece in marks else encoded(self._backend, piece, False))
        return ids

    @cached_property
    def _literal(self) -> Backend:
        """The same tokenizer, to which control tokens are letters. A copy: the switch is the tokenizer's own state."""
        from tokenizers import Tokenizer as Backend

        literal = Backend.from_str(self._backend.to_str())
        literal.encode_special_tokens = True
        return literal


def _texts(said: Any) -> Iterator[str]:
    """Every text in it, the names in mappings included."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, Mapping):
        for name, value in said.items():
            yield from _texts(name)
            yield from _texts(value)
    elif isinstance(said, list | tuple):
        for item in said:
            yield from _texts(item)


def _mapped(said: Any, change: Callable[[str], str]) -> Any:
    """The same with every text changed."""
    if isinstance(said, str):
        return change(said)
    if isinstance(said, Mapping):
        return {_mapped(name, change): _mapped(value, change) for name, value in said.items()}
    return type(said)(_mapped(item, change) for item in said) if isinstance(said, list | tuple) else said
