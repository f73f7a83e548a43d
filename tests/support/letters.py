"""Grammars over a vocabulary of a few letters, for models that have no other."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.request import TokenGrammar
from outrider.sampling.grammar import Grammar, Grammars

END = 0
"""Ends an output, and is no text."""

_TEXTS: list[str] = ["", *"abcdef{}", "ab", "cd", "abc"]


class Letters:
    """A `Vocabulary` of `size` tokens: a few texts, and beyond them letters nobody asks for."""

    eos_token_ids: Sequence[int] = (END,)

    def __init__(self, size: int) -> None:
        self._texts: list[str] = [*_TEXTS, *(chr(0x4E00 + i) for i in range(size))][:size]

    def token_bytes(self, token_id: int) -> bytes:
        return self._texts[token_id].encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The longest token first."""
        found: list[int] = []
        while text:
            token = max((t for t in self._texts if t and text.startswith(t)), key=len)
            found.append(self._texts.index(token))
            text = text[len(token) :]
        return found


def compiled(pattern: str, size: int) -> TokenGrammar:
    return Grammars(Letters(size), size).compile(Grammar.regex(pattern), [END])
