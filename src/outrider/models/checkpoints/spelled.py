"""What people write stays text: a control token spelled out in a message must not end it or begin another role's."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from outrider.models.checkpoints.encoding import encoded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Spelling:
    """Hides control tokens in messages from the template's encoding, and encodes them letter by letter.

    Messages without any, nearly all, are encoded as one text, exactly as the model was trained.
    """

    def __init__(self, backend: Backend) -> None:
        names = [added.content for added in backend.get_added_tokens_decoder().values() if added.special]
        names.sort(key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names))) if names else None
        self._backend = backend

    def found(self, messages: Sequence[Mapping[str, str]]) -> bool:
        control = self._control
        return control is not None and any(control.search(str(message.get("content"))) for message in messages)

    def hide(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], Mapping[str, str]]:
        """The messages with a mark for each control token, and what every mark stands for.

        A mark is private-use characters around a number nobody can guess, so no message can contain one.
        """
        assert self._control is not None
        nonce = secrets.token_hex(8)
        marks: dict[str, str] = {}

        def mark(match: re.Match[str]) -> str:
            name = f"\ue000{nonce}.{len(marks)}\ue001"
            marks[name] = match[0]
            return name

        hidden = [{**message, "content": self._control.sub(mark, message["content"])} for message in messages]
        return hidden, marks

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
