"""Values as people give them, checked: each returns the value, or says in one sentence what it must be."""

from __future__ import annotations

import math

from outrider.errors import InvalidRequest, shown


def whole(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """A whole number from `low` to `high`. True and False are none."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if good and isinstance(value, int) and (low is None or value >= low) and (high is None or value <= high):
        return value
    bounds = "" if low is None else f" of at least {low}"
    bounds += "" if high is None else f" and at most {high}"
    raise InvalidRequest(f"{name} must be a whole number{bounds}, not {shown(value)}")


def number(name: str, value: object, low: float, high: float, above: bool = False) -> float:
    """A finite number from `low` (itself excluded where `above`) to `high`."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(as_float(value))
    if good and isinstance(value, int | float) and low <= value <= high and not (above and value == low):
        return value
    bounds = f"above {low}" if above else f"at least {low}"
    bounds += f" and at most {high}" if high < math.inf else ""
    raise InvalidRequest(f"{name} must be a number {bounds}, not {shown(value)}")


def as_float(value: float) -> float:
    """Infinite for an integer beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {shown(value)}")
    return value
