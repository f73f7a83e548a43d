"""JSON schemas that clients send: how large they may be, since what is sent in a moment must not take minutes to
compile, and what they leave open."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeVar

MAX_BYTES = 128 << 10
MAX_KEYS = 2048
"""Compiling takes time in the square of an object's properties: 2048 of them two seconds."""
MAX_VALUES = 8192
MAX_FACTOR = 9999
"""Of `multipleOf`, its point left out (0.25: 25): an automaton has a state for each remainder."""


_BELOW = ("items",)
_SEVERAL_BELOW = ("anyOf", "prefixItems")
_NAMED_BELOW = ("properties", "$defs", "definitions")
_WIDENING = frozenset(
    ("allOf", "oneOf", "not", "if", "contains", "dependentSchemas", "unevaluatedProperties", "minProperties")
)
"""Where a schema has one of these, what follows a narrower part of it need not follow the whole."""

Schema = TypeVar("Schema", dict[str, Any] | bool | None, dict[str, Any] | None, dict[str, Any])


def modest(schema: Schema) -> Schema:
    """The schema as it is; `ValueError` where it is too large."""
    keys = values = 0
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            keys += len(part)
            if _factor(part.get("multipleOf")) > MAX_FACTOR:
                raise ValueError(f"a multipleOf of more than {MAX_FACTOR}, its point left out, is not supported")
            left += part.values()
        elif isinstance(part, list):
            values += len(part)
            left += part
    if keys > MAX_KEYS or values > MAX_VALUES or len(json.dumps(schema)) > MAX_BYTES:
        raise ValueError(
            f"a schema may have {MAX_KEYS} keys, {MAX_VALUES} values in lists and {MAX_BYTES >> 10} KiB; this has more"
        )
    return schema


def from_text(schema: Any) -> Any:
    """A schema that may also be given as its text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None


def _factor(value: Any) -> int:
    """A number's digits without its point; 0 for what is no number and llguidance's to refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    sign, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    return int(Decimal((sign, digits, max(0, int(exponent)))))


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with objects that have the properties it lists and no others, where it does not say otherwise: what
    follows the narrower schema follows the wider one, and answers come to an end."""
    return dict(schema) if _names(schema) & _WIDENING else _closed(schema)


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(schema)
    for name in _NAMED_BELOW:
        if isinstance(below := schema.get(name), Mapping):
            made[name] = {key: _closed_below(value) for key, value in below.items()}
    for name in _SEVERAL_BELOW:
        if isinstance(below := schema.get(name), list):
            made[name] = [_closed_below(item) for item in below]
    for name in _BELOW:
        if name in schema:
            made[name] = _closed_below(schema[name])
    listed, required = schema.get("properties"), schema.get("required", [])
    open_ = isinstance(listed, Mapping) and not schema.keys() & {"additionalProperties", "patternProperties", "$ref"}
    if open_ and isinstance(required, list) and all(name in made["properties"] for name in required):
        made["additionalProperties"] = False
    return made


def _closed_below(schema: Any) -> Any:
    return _closed(schema) if isinstance(schema, Mapping) else schema


def _names(schema: Any) -> set[str]:
    """All names in it, of keywords and of properties."""
    if isinstance(schema, Mapping):
        return set(schema).union(*map(_names, schema.values()))
    return set().union(*map(_names, schema)) if isinstance(schema, list) else set()
