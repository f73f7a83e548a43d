"""Keys and values of one network on a GPU, in blocks that any slot may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.cuda.graphs import Staging, oldest
from outrider.models.cuda.kernels.attention import BLOCK

SLACK = 256
"""Cache rows beyond the context, for a step that is under way when its request turns out to have ended."""
_SENT = 1 << 14
"""Entries of the table that are sent at a time."""
_FEW = 4
"""So few are written one by one, which takes no buffer: what decodes needs a block now and then."""


class BlockCache:
    """`pool` is [2, layers, blocks, kv_heads, BLOCK, head_dim], keys then values; block 0 belongs to nobody. Kernels
    find position p of slot s in block `table[s, p // BLOCK]`.

    What is done here takes effect for what is launched afterwards, and waits for nothing: recorded passes read the
    table when they run.
    """

    def __init__(self, a: Architecture, dtype: torch.dtype, device: torch.device, slots: int, capacity: int) -> None:
        """Of `capacity` positions a slot, at most. There are no blocks before `make`."""
        self._shape = len(a.layers), a.kv_heads, a.head_dim
        self._dtype, self._device = dtype, device
        self.table = torch.zeros(slots, -(-capacity // BLOCK), dtype=torch.int32, device=device)
        self.pool = self._room(0)
        self._staged = [Staging(2 * _SENT, device) for _ in range(4)]

    def _room(self, blocks: int) -> Tensor:
        layers, kv_heads, head_dim = self._shape
        return torch.zeros(2, layers, blocks, kv_heads, BLOCK, head_dim, dtype=self._dtype, device=self._device)

    @property
    def block_bytes(self) -> int:
        layers, kv_heads, head_dim = self._shape
        return 2 * layers * kv_heads * BLOCK * head_dim * self._dtype.itemsize

    @property
    def made(self) -> bool:
        return self.pool.shape[2] > 0

    def make(self, blocks: int) -> None:
        """So many, and block 0."""
        assert not self.made
        self.pool = self._room(blocks + 1)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Blocks: from, to."""
        for source, target in copies:
            self.pool[:, :, target] = self.pool[:, :, source]

    def point(self, entries: Mapping[tuple[int, int], int]) -> None:
        """By slot and place in it: the block that lies there from now on."""
        if len(entries) <= _FEW:
            for (slot, place), block in entries.items():
                self.table[slot, place].fill_(block)
            return
        columns = self.table.shape[1]
        places = [slot * columns + place for slot, place in entries]
        blocks = list(entries.values())
        for start in range(0, len(places), _SENT):
            count = len(some := places[start : start + _SENT])
            staged = oldest(self._staged)
            host = staged.free()[: 2 * count].view(2, count).numpy()
            host[0], host[1] = some, blocks[start : start + count]
            sent = torch.empty(2, count, dtype=torch.int32, device=self._device)
            staged.send(sent.view(-1), 2 * count)
            self.table.view(-1)[sent[0].long()] = sent[1]

    def move(self, blocks: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Positions of a slot that has these blocks: all are read before any is written."""

        def where(positions: Sequence[int]) -> tuple[Tensor, Tensor]:
            cells = [(blocks[p // BLOCK], p % BLOCK) for p in positions]
            block, offset = torch.tensor(cells, device=self._device).unbind(1)
            return block, offset

        (source, source_at), (target, target_at) = where(sources), where(targets)
        self.pool[:, :, target, :, target_at] = self.pool[:, :, source, :, source_at]


def blocks_of(context: int) -> int:
    """Blocks of a slot that is full, with a step under way."""
    return -(-(context + SLACK) // BLOCK)
