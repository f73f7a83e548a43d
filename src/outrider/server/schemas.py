"""How large a JSON schema may be: what a client sends in a moment must not take minutes to compile."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, TypeVar

MAX_BYTES = 128 << 10
MAX_KEYS = 2048
"""Compiling takes time in the square of an object's properties: 2048 of them two seconds."""
MAX_VALUES = 8192
MAX_FACTOR = 9999
"""Of `multipleOf`, its point left out (0.25: 25): an automaton has a state for each remainder."""


Schema = TypeVar("Schema", dict[str, Any] | bool | None, dict[str, Any] | None)


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


def _factor(value: Any) -> int:
    """A number's digits without its point; 0 for what is no number and llguidance's to refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    sign, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    return int(Decimal((sign, digits, max(0, int(exponent)))))
