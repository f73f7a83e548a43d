"""How an output lays out JSON: blanks and line breaks are the model's to choose, but it chooses alike throughout.

Guesses only: they are drafted where a grammar leaves nothing else open, and verified like any draft.
"""

from __future__ import annotations

from copy import copy

_BLANK = b" \t\n\r"
_OPENING, _CLOSING = b"{[", b"}]"
_ENDING = b'"el'
"""Of strings, and of true, false and null; a number may always go on."""


class Layout:
    """Reads JSON as it is written, and says how what comes next will look like if it goes on as it began."""

    def __init__(self) -> None:
        self._within = b""
        """The brackets that are open, each as it opened."""
        self._in_string = self._escaped = False
        self._last = b""
        """What stands before the place: the last byte that is no blank."""
        self._blank = b""
        """The blanks after it."""
        self._gaps: dict[bytes, bytes] = {b":": b" "}
        """Blanks that followed each sign lately; a line break stands for itself and its indentation."""
        self._indent = b"  "

    def copy(self) -> Layout:
        other = copy(self)
        other._gaps = dict(self._gaps)
        return other

    def feed(self, text: bytes) -> None:
        for i in range(len(text)):
            self._take(text[i : i + 1])

    def _take(self, byte: bytes) -> None:
        if self._in_string:
            self._in_string = self._escaped or byte != b'"'
            self._escaped = byte == b"\\" and not self._escaped
            return
        if byte in _BLANK:
            self._blank += byte
            return
        self._note(byte)
        if byte in _CLOSING:
            self._within = self._within[:-1]
        elif byte in _OPENING:
            self._within += byte
        self._in_string = byte == b'"'
        self._last, self._blank = byte, b""

    def _note(self, byte: bytes) -> None:
        """How the sign before was followed."""
        if self._last == b":":
            self._gaps[b":"] = self._blank
        elif self._last and self._last in _OPENING + b"," and byte not in _CLOSING:
            broken = self._blank.startswith(b"\n")
            self._gaps[self._within[-1:] + self._last] = b"\n" if broken else self._blank
            if broken and self._within:
                self._indent = self._blank[1 : 1 + (len(self._blank) - 1) // len(self._within)]

    def guesses(self) -> list[bytes]:
        """What may come next if only signs and blanks are to come: at most one of them is allowed where nothing but the
        layout is open. Empty where a value may be written, or go on."""
        if self._in_string or not self._last:
            return []
        if self._last == b":":
            return self._rest(self._gaps[b":"])
        inside, depth = self._within[-1:], len(self._within)
        if self._last in _OPENING + b",":
            gap = self._gap(inside + self._last, depth)
            if gap is None and self._last == b",":  # as what it is in was opened, but never without any blank
                gap = self._gap(inside + inside, depth) or b" "
            quote = b'"' if inside == b"{" else b""
            return [] if gap is None else self._rest(gap + quote)
        if self._last in _ENDING + _CLOSING and inside:
            closing = b"}" if inside == b"{" else b"]"
            gap = self._gap(inside + inside, depth - 1)
            return [*self._rest(b":"), *self._rest(b","), *self._rest((gap or b"") + closing)]
        return []

    def _gap(self, after: bytes, depth: int) -> bytes | None:
        """None: not known yet."""
        gap = self._gaps.get(after)
        return gap + depth * self._indent if gap == b"\n" else gap

    def _rest(self, text: bytes) -> list[bytes]:
        """Of this text, what is not written yet."""
        rest = text[len(self._blank) :]
        return [rest] if rest and text.startswith(self._blank) else []
