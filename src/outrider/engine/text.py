"""Tokens to text, piece by piece: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable


class TextStream:
    """Text of one growing request.

    `push` returns what may be shown now. Held back: half a UTF-8 character, and any ending that could still become a
    stop string. Invariant: the pieces returned so far, plus the last one from `finish`, are exactly `text`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...], strip_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._stop = stop
        self._strip = strip_leading_space
        self._begun = b""
        """Of a character: bytes that make none yet."""
        self._held = ""
        self._shown: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._shown)

    def push(self, token: int, may_stop: bool = True) -> str:
        """Add a token. With `may_stop`, a stop string that is now complete ends the text right before it; without, one
        that is complete is text, and one that has begun may still end it later."""
        text = self._decode(self._token_bytes(token))
        if not self._stop:  # then nothing is ever held
            self._shown.append(text)
            return text
        self._held += text
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0] if may_stop else []
        if found:
            self._held = self._held[: min(found)]
            self.stopped = True
            return self._show(len(self._held))
        return self._show(len(self._held) - self._pending())

    def finish(self) -> str:
        """Release what was held back: no stop string can complete any more, half a character never will."""
        if not self.stopped:
            self._held += self._decode(b"", True)
        return self._show(len(self._held))

    def _decode(self, piece: bytes, final: bool = False) -> str:
        read = self._begun + piece if self._begun else piece
        text, whole = utf_8_decode(read, "replace", final)
        self._begun = read[whole:]
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def _pending(self) -> int:
        """Length of the longest ending of the held text that begins some stop string."""
        longest = min(len(self._held), max(map(len, self._stop)) - 1)
        for size in range(longest, 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0

    def _show(self, size: int) -> str:
        shown, self._held = self._held[:size], self._held[size:]
        self._shown.append(shown)
        return shown
