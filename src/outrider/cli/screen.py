"""Where words go: answers to stdout, everything about them to stderr, colour only for people."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

SGR = {"suffix": "32", "ngram": "36", "model": "35"}
"""Terminal colour codes by the drafter a token came from; the target's own tokens have none."""

OTHER_DRAFTER = "33"
_RICH_NAME = {"32": "green", "36": "cyan", "35": "magenta", "33": "yellow"}
PIPE_WIDTH = 110


def wants_colour(stream: TextIO) -> bool:
    """A terminal whose owner did not say NO_COLOR (no-color.org: any non-empty value)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, origin: str) -> str:
    """The text in its origin's colour. Escape characters a model wrote are shown, not obeyed."""
    text = text.replace("\x1b", "␛")
    if origin == "target" or not text:
        return text
    return f"\x1b[{_code(origin)}m{text}\x1b[0m"


def rich_colour(origin: str) -> str:
    """The same colour by the name rich knows it by."""
    return _RICH_NAME[_code(origin)]


def answers() -> Console:
    """A rich console on stdout."""
    return _console(sys.stdout)


def notes() -> Console:
    """A rich console on stderr."""
    return _console(sys.stderr)


def note(message: str) -> None:
    """One line for the person, never part of the answer."""
    print(f"note: {message}", file=sys.stderr, flush=True)


def _code(origin: str) -> str:
    return SGR.get(origin.partition(":")[0], OTHER_DRAFTER)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(
        file=stream,
        color_system="auto" if wants_colour(stream) else None,
        width=None if stream.isatty() else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )
