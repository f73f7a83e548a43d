"""What is out of the ordinary in a description, derived from its fields, so that nobody has to be told of a new one."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def features_of(described: DataclassInstance, common: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the fields whose value is not neutral, which is the default (a field without one never is).

    Whoever works by the description declares which features it knows and declines the others. `common`: those that
    everybody knows."""
    return frozenset(
        [
            name
            for name, neutral in _neutral(type(described))
            if getattr(described, name) != neutral and name not in common
        ]
    )


@cache
def _neutral(kind: type[DataclassInstance]) -> tuple[tuple[str, object], ...]:
    return tuple(
        (f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(kind) if f.init
    )
