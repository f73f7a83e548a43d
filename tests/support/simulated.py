"""Networks on the device without arithmetic: what a row says depends on every token its cache holds, and on no more.

The cache, the tables and all that `Lanes` and `DeviceStepper` do are real; so a wrong token anywhere in a cache, or a
row of the wrong slot, gives other logits at once. Fast enough for thousands of steps by Triton's interpreter.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.kvcache.blocks import SPARE
from outrider.models.cuda.head_network import HeadNetwork
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.network import Network

only_interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="on the CPU, or reads tables within a step: only interpreted"
)

SKEW = 0.7


def said(h: int, width: int, salt: int = 0, other: int | None = None) -> NDArray[np.float32]:
    """What the target says after a text of this hash; a drafter nearly the same."""
    logits = np.random.RandomState(h).randn(width).astype(np.float32) * 2
    if salt:
        logits += SKEW * np.random.RandomState((other if other is not None else h) ^ salt).randn(width)
    return logits


def hashed(tokens: Any, before: int = 0) -> int:
    return crc32(np.asarray(tokens, dtype=np.int32).tobytes(), before)


def _checked(self: Any, rows: int, chain: int) -> tuple[Any, ...]:
    assert rows <= self.max_rows, f"{rows} rows in tables of {self.max_rows}"
    t = self.tables
    columns = tuple(table[:rows].numpy() for table in t.columns)
    slots = self.cache.table.shape[0]
    limits = (self._weights.embedding.shape[0], slots, self.capacity, self.capacity, self.capacity + 1)
    for column, most in zip(columns, limits, strict=True):
        assert 0 <= column.min() <= column.max() < most, (column, most)
    written = self.cache.table.numpy()[columns[1], columns[3] // BLOCK]
    assert (written[columns[1] < slots - 1] != SPARE).all(), "a row is written to no block of its slot"
    if chain:
        _, its_slots, positions, indices, bases = (column.reshape(-1, chain) for column in columns)
        fills = (its_slots == slots - 1) & (positions == 0)
        assert (fills[:, 1:-1] <= fills[:, 2:]).all(), "rows that only fill up a chain are its last"
        fills[:, 0] = False
        assert (fills | (its_slots == its_slots[:, :1])).all(), "a chain is of one slot"
        assert (fills | (positions == positions[:, :1] + np.arange(chain))).all()
        assert (indices == positions).all()
        assert (bases == positions + 1).all(), "a chain is in order"
    return (*columns, t.paths[:rows].numpy())


def _at(self: Any, slots: Any, indices: Any) -> tuple[Any, Any]:
    """Blocks of the cache, and places in them."""
    return self.cache.table.numpy()[slots, indices // BLOCK], indices % BLOCK


def _seen(self: Any, slot: int, position: int, base: int, path: Any) -> Any:
    beyond = path[: max(0, position + 1 - base)]
    indices = np.concatenate([np.arange(min(base, position + 1)), beyond])
    return self.cache.pool.numpy()[0, 0, :, 0][_at(self, slot, indices)]


def body(self: Any, rows: int, together: bool, tiled: bool = False, chain: int = 0) -> None:
    tokens, slots, positions, indices, bases, paths = _checked(self, rows, chain)
    self.cache.pool.numpy()[0, 0, :, 0, :, 0][_at(self, slots, indices)] = tokens
    self.hashes = [
        hashed(_seen(self, s, p, b, path)[:, 0]) for s, p, b, path in zip(slots, positions, bases, paths, strict=True)
    ]
    if self.kept_hidden_layers:
        self.features[:rows] = 0
        self.features[:rows, :2] = _split(self.hashes)


def head(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
    wanted = (self.tables.wanted if wanted is None else wanted)[first : first + count].numpy()
    salt = getattr(self, "salt", 0)
    ids = getattr(self, "ids", None)
    for i, row in enumerate(wanted):
        h = self.hashes[row]
        other = None
        if isinstance(h, tuple):
            h, other = h
        logits = said(h, self.width, salt, other)
        self.logits[i] = torch.from_numpy(logits if ids is None else logits[ids])


def fuse(self: Any, rows: int, features: Any = None, index: Any = None) -> None:
    source = self.inbox if features is None else features.reshape(-1, features.shape[-1])
    self.given[:rows] = 0
    self.given[:rows, :2] = source[:rows, :2] if index is None else source[index[:rows].long(), :2]


def run(
    self: Any, rows: int, together: bool, states: Any, index: Any = None, tiled: bool = False, chain: int = 0
) -> None:
    tokens, slots, positions, indices, bases, paths = _checked(self, rows, chain)
    before = (states[:rows] if index is None else states[index[:rows].long()])[:, :2].clone()
    cells, places = self.cache.pool.numpy()[0, 0, :, 0], _at(self, slots, indices)
    cells[..., 0][places] = tokens
    cells[..., 1:3][places] = before.numpy()
    joined = [int(hi) * 65536 + int(lo) for hi, lo in before.tolist()]
    after = [hashed([token], h) for token, h in zip(tokens, joined, strict=True)]
    seen = [
        crc32(_seen(self, s, p, b, path)[:, :3].astype(np.int32).tobytes())
        for s, p, b, path in zip(slots, positions, bases, paths, strict=True)
    ]
    self.hashes = list(zip(after, seen, strict=True))
    self.features[:rows] = 0
    self.features[:rows, :2] = _split(after)


def _split(hashes: list[int]) -> torch.Tensor:
    return torch.tensor([[h >> 16, h & 0xFFFF] for h in hashes], dtype=torch.float32)


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "body", body)
    monkeypatch.setattr(Network, "head", head)
    monkeypatch.setattr(Network, "head_in_order", head)
    monkeypatch.setattr(HeadNetwork, "fuse", fuse)
    monkeypatch.setattr(HeadNetwork, "run", run)
