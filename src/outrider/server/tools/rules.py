"""The grammar of an answer that may call functions: free text up to the dialect's opening, then only what is a call of
a function there is, with arguments that its schema describes. A call is always valid, whatever the model is like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.sampling.grammar import WHITESPACE, Grammar
from outrider.server.schemas import closed
from outrider.server.tools.dialect import Dialect

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As templates write calls of earlier turns. There is nothing to choose between names and values, so most of a call
follows from the grammar and is drafted for nothing."""
MAX_CALLS = 16
"""In one answer."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: Mapping[str, Any]
    """A JSON schema of an object."""


def rules(
    dialect: Dialect,
    functions: Sequence[Function],
    control: Mapping[str, int],
    *,
    text: bool,
    several: bool,
    answer: Mapping[str, Any] | None = None,
) -> Grammar:
    """`control`: the tokens without text, by name. `text`: whether the answer may also be, or begin with, something
    else; that is JSON where `answer` gives a schema. `several`: whether there may be more than one call."""
    opening = _literal(dialect.opening, control)
    call = " | ".join(f"call_{i}" for i in range(len(functions)))
    body = [_literal(dialect.lead, control), f"({call})"]
    if several and dialect.between is not None:
        body.append(f"({_literal(dialect.between, control)} ({call})){{0,{MAX_CALLS - 1}}}")
    body.append(_literal(dialect.closing, control))
    lines = [f"calls: {' '.join(filter(None, body))}", *_starts(dialect, opening, text, answer)]
    for i, function in enumerate(functions):
        lines += [
            f'call_{i}: {_literal(dialect.head(function.name), control)} arguments_{i} "}}"',
            f"arguments_{i}: %json {json.dumps({**closed(function.parameters), 'x-guidance': _STYLE})}",
        ]
    return Grammar.lark("\n".join(lines) + "\n")


def _starts(dialect: Dialect, opening: str, text: bool, answer: Mapping[str, Any] | None) -> Iterator[str]:
    """The rule `start`, and what it needs."""
    if not text:
        yield f"start: {opening} calls"
    elif answer is not None:
        yield f"start: answer | {opening} calls"
        yield f"answer: %json {json.dumps({**answer, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"
    elif not dialect.opening:
        yield "start: TEXT | calls"
        yield r"TEXT: /([^{](.|\n)*)?/"
    elif opening.startswith("<["):  # a token of its own, which no text contains
        yield f"start: TEXT | TEXT {opening} calls"
        yield r"TEXT: /(.|\n)*/"
    else:
        yield "start: TEXT | opening calls"
        yield r"TEXT: /(.|\n)*/"
        yield rf"opening[lazy]: /(.|\n)*{_escaped(dialect.opening)}/"


def _literal(text: str, control: Mapping[str, int]) -> str:
    """A text in a rule; control tokens in it are named by their ids."""
    names = sorted((name for name in control if name in text), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{control[piece]}]>" if piece in control else json.dumps(piece) for piece in pieces if piece)


def shown(dialect: Dialect, control: Mapping[str, int]) -> frozenset[int]:
    """The control tokens that its calls are told by."""
    written = "".join(filter(None, (dialect.opening, dialect.lead, dialect.between, dialect.closing)))
    return frozenset(token for name, token in control.items() if name in written)


def _escaped(text: str) -> str:
    """For a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
