"""What every pass on the device must keep to; the interpreter would read and write anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.models.cuda.network import Network


def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fit the tables, tokens of the vocabulary, slots and positions of the cache."""
    layers = Network._layers
    body = Network.body

    def check(self: Any, rows: int) -> None:
        assert rows <= self.max_rows, f"{rows} rows in tables of {self.max_rows}"
        t = self.tables
        for name, table, most in (
            ("token", t.tokens, self._weights.embedding.shape[0]),
            ("slot", t.slots, self.cache.table.shape[0]),
            ("position", t.positions, self.capacity),
            ("index", t.indices, self.capacity),
        ):
            low, high = int(table[:rows].min()), int(table[:rows].max())
            assert 0 <= low <= high < most, f"{name} {low}..{high} of {most}"

    def guarded_layers(self: Any, rows: int, together: bool, tiled: bool, chain: int, first: Any = None) -> None:
        check(self, rows)
        layers(self, rows, together, tiled, chain, first)

    def guarded_body(self: Any, rows: int, together: bool, tiled: bool = False, chain: int = 0) -> None:
        check(self, rows)
        body(self, rows, together, tiled, chain)

    monkeypatch.setattr(Network, "_layers", guarded_layers)
    monkeypatch.setattr(Network, "body", guarded_body)
