"""Which characters of a streamed text came from which token."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence

Span = tuple[str, str]
"""A piece of text and the origin of its tokens."""


class Attribution:
    """Follows the engine's text stream one token behind.

    The engine shows whole characters, in order. It may hold some back (a possible stop string) or drop them
    for good (after a stop string), but never reorders. So it is enough to remember for each decoded character
    where it came from, and to take as many as were shown. A character of several tokens belongs to the last.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], strips_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._strip = strips_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending: list[str] = []
        self._last = "target"

    def take(self, token_ids: Sequence[int], origins: Iterable[str], shown: str) -> list[Span]:
        """Add a step's tokens, then split the text it showed by origin."""
        for token, origin in zip(token_ids, origins, strict=True):
            text = self._decoder.decode(self._token_bytes(token))
            if self._strip and text:
                self._strip = False
                text = text.removeprefix(" ")
            self._pending.extend([origin] * len(text))
            self._last = origin
        owners, self._pending = self._pending[: len(shown)], self._pending[len(shown) :]
        # Half a character at the very end is shown as a replacement sign no token has completed.
        owners.extend([self._last] * (len(shown) - len(owners)))
        return _runs(shown, owners)


def _runs(text: str, owners: Sequence[str]) -> list[Span]:
    spans: list[Span] = []
    for character, owner in zip(text, owners, strict=True):
        if spans and spans[-1][1] == owner:
            spans[-1] = (spans[-1][0] + character, owner)
        else:
            spans.append((character, owner))
    return spans
