"""What the host does for any network on a GPU: describe rows, run recorded passes over them, keep the cache's books."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.model import CachedNetwork, Rows
from outrider.kvcache.blocks import SPARE, BlockSlots
from outrider.kvcache.slots import Span, StaticCache
from outrider.models.cuda.cache import SLACK
from outrider.models.cuda.graphs import GraphRecording, Graphs, Key, Launches, Staging, bucket, buckets, oldest
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.memory import CacheMemory, divide
from outrider.models.cuda.network import HEAD_ROWS, NARROW_ROWS, Network
from outrider.models.cuda.tables import PATH, Tables
from outrider.models.cuda.tiling import FEW_ROWS
from outrider.models.faults import recovered

MAX_ROWS = 8192
"""Rows of one pass of prompts; more are run in several, which changes nothing but the time. Of others NARROW_ROWS."""
TILE = 64
"""Passes of more rows than this are recorded for every multiple of it: what a matrix product takes at once."""
TILED = (*range(256, 1025, 128), *range(1536, 4097, 512), *range(5120, MAX_ROWS + 1, 1024))
"""Sizes that passes of prompts in tiles are recorded for."""

N = TypeVar("N", bound=Network)
Launched = Callable[[int, bool, bool], None]
"""So many rows of a pass, `together` or not, `tiled` or not."""


class Described(NamedTuple):
    """Rows as they go into `Tables`."""

    columns: NDArray[np.int32]
    """[5, rows]: as `Tables.columns`."""
    wanted: NDArray[np.bool_]
    """[rows]: whether its logits are."""
    scattered: dict[int, Sequence[int]]
    """By row: the cache indices of those it sees that do not lie in order behind the prefix."""

    def part(self, start: int, stop: int) -> Described:
        scattered = {row - start: path for row, path in self.scattered.items() if start <= row < stop}
        return Described(self.columns[:, start:stop], self.wanted[start:stop], scattered)

    @property
    def in_order(self) -> bool:
        """Whether all that any row sees lies at the index of its position, as do prompts."""
        _, _, positions, indices, bases = self.columns
        return bool((positions == indices).all() and (bases == positions + 1).all())

    def tiles(self, most: int) -> NDArray[np.int32]:
        """[tiles, 2]: the first row of every run of neighbours of one slot, cut into at most `most`, and how many."""
        _, slots, positions, _, _ = self.columns
        begins = np.flatnonzero((np.diff(slots) != 0) | (np.diff(positions) != 1)) + 1
        cuts = [
            (at, min(most, stop - at))
            for start, stop in zip([0, *begins], [*begins, len(self)], strict=True)
            for at in range(start, stop, most)
        ]
        return np.array(cuts, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.wanted)


class Passes(StaticCache, Generic[N]):
    """A network over a cache of blocks whose last slot is a spare: rows that only fill up a pass write there."""

    supports_trees = steps_on_device = True

    def __init__(self, network: N, max_batch: int, max_context: int, memory: CacheMemory | None) -> None:
        """`memory`: what the cache may take, once it is asked for (`make_room`); None: as much as all slots could
        fill."""
        self._book = BlockSlots(max_batch, max_context, BLOCK)
        super().__init__(max_batch, max_context, self._book)
        self.network = network
        self.memory = memory
        self.chunk = MAX_ROWS if network.tile_rows else NARROW_ROWS
        self.device, self.dtype = network.device, network.dtype
        self.graphs = Graphs(self.device)
        self._padding = (0, max_batch, 0, 0, 1)
        """A row that only fills up a pass, as in `Tables.columns`: position 0 of the spare slot."""
        self._staging = [Staging(Tables.size(MAX_ROWS), self.device) for _ in range(4)]
        self._tiles = [Staging(network.tiles.numel(), self.device) for _ in range(4)]

    @property
    def cache_tokens(self) -> int:
        return self._book.count * BLOCK

    def make_room(self, beside: Sequence[CachedNetwork] = ()) -> int:
        here = [each for each in (self, *beside) if isinstance(each, Passes) and each.device == self.device]
        if waiting := [each for each in dict.fromkeys(here) if not each.network.cache.made]:
            divide(waiting, late=len(waiting) < len(set(here)))
        return self.max_context

    @property
    def block_bytes(self) -> int:
        return self.network.cache.block_bytes

    def provide(self, blocks: int, max_context: int) -> None:
        """As `memory.Waiting.provide`."""
        self.network.cache.make(blocks)
        self._book.provide(blocks)
        self.max_context = self._book.capacity = max_context

    def holds(self, lengths: Sequence[int]) -> bool:
        return self._book.holds(lengths)

    @torch.inference_mode()
    def reserve(self, lengths: Mapping[int, int]) -> Mapping[int, int]:
        most = min(self.max_context + SLACK, self.network.capacity)
        there = {slot: self._book.reserve(slot, min(length, most)) for slot, length in lengths.items()}
        self._apply()
        return there

    def blocks(self, slot: int) -> Sequence[int]:
        """Those of the cache that the slot's tokens lie in."""
        return self._book.blocks(slot)

    def open(self) -> int:
        self.make_room()
        return super().open()

    def advance(self, grown: Mapping[int, int]) -> None:
        self._slots.advance(grown)

    @torch.inference_mode()
    def recovers(self, error: Exception) -> bool:
        if not recovered(error, self.device):
            return False
        self.network.cache.table.fill_(SPARE)  # the error may have come before it was told of a change
        self._book.forget()
        return True

    def _apply(self) -> None:
        """What the books have changed, to the cache itself."""
        if changes := self._book.drain():
            self.network.cache.copy(changes.copies)
            self.network.cache.point(changes.entries)

    def _described(self, batch: Sequence[Rows]) -> Iterator[tuple[Described, bool]]:
        """Room in the cache for all rows of the batch, one after the other, and what they are; a pass at a time, and
        whether it is the last."""
        spans = [self._slots.extend(rows) for rows in batch]
        self._apply()
        counts = [len(rows.tokens) for rows in batch]
        columns = np.empty((5, sum(counts)), dtype=np.int32)
        wanted = np.zeros(sum(counts), dtype=np.bool_)
        scattered: dict[int, Sequence[int]] = {}
        start = 0
        for rows, span, count in zip(batch, spans, counts, strict=True):
            own = columns[:, start : start + count]
            own[0], own[1] = rows.tokens, span.slot
            own[3] = np.arange(span.first, span.first + count)
            if count and isinstance(span.paths[-1], range) and rows.parents == range(-1, count - 1):  # a prompt, mostly
                own[2], own[4] = own[3], own[3] + 1
            else:
                for i, path in enumerate(span.paths):
                    in_order = _in_order(span, path)
                    own[2, i], own[4, i] = span.base + len(path) - 1, span.base + in_order
                    if in_order < len(path):
                        scattered[start + i] = path[in_order:]
            wanted[start : start + count][slice(None) if rows.logits is None else list(rows.logits)] = True
            start += count
        all_rows = Described(columns, wanted, scattered)
        most = self.chunk if start > NARROW_ROWS and all_rows.in_order else NARROW_ROWS
        return ((all_rows.part(at, at + most), at + most >= start) for at in range(0, start, most))

    @property
    def late(self) -> int:
        return self.graphs.late

    def recordings(self) -> Iterator[GraphRecording]:
        """Passes over the spare slot."""
        self._pad()
        return self.graphs.recordings(self._all_launches())

    def _pad(self) -> None:
        """All rows as those that only fill up a pass."""
        self.make_room()
        for table, value in zip(self.network.tables.columns, self._padding, strict=True):
            table.fill_(value)

    @abstractmethod
    def _kinds(self) -> Mapping[str, Launched]:
        """Of passes, by what they launch."""

    def _all_launches(self) -> Iterator[tuple[Key, Launches]]:
        for kind, launches in self._kinds().items():
            for count in (*buckets(TILE), *range(2 * TILE, NARROW_ROWS + 1, TILE)):
                for together in (False, True) if 1 < count <= FEW_ROWS else (count > 1,):
                    yield (kind, count, together, False), partial(launches, count, together, False)
            for count in TILED if self.network.tile_rows else ():
                yield (kind, count, True, True), partial(launches, count, True, True)
        for count in buckets(HEAD_ROWS):
            yield ("head", count), partial(self.network.head, count)

    def _run(self, rows: Described, kind: str) -> Tensor:
        """One pass; the logits asked for."""
        tiles = self._tiled(rows)
        if tiles is not None:
            count = next(size for size in TILED if size >= len(rows))
        else:
            count = bucket(len(rows)) if len(rows) <= TILE else -(-len(rows) // TILE) * TILE
        wanted = np.flatnonzero(rows.wanted)
        staging = oldest(self._staging)
        self._fill(Tables.over(staging.free()), rows, count, wanted)
        staging.send(self.network.tables.flat, Tables.size(MAX_ROWS, paths=count if rows.scattered else 0))
        if tiles is not None:
            staging = oldest(self._tiles)
            table = staging.free().view(-1, 2).numpy()
            table[0], table[1 : 1 + len(tiles)], table[1 + len(tiles) :] = len(rows), tiles, 0
            staging.send(self.network.tiles.view(-1))
        together = count > FEW_ROWS or len(np.unique(rows.columns[1])) * 2 <= len(rows)
        tiled = tiles is not None
        self.graphs.run((kind, count, together, tiled), partial(self._kinds()[kind], count, together, tiled))
        if not len(wanted):
            return torch.empty(0, self.network.logits.shape[1], device=self.device)
        parts = [
            self._logits(len(wanted[start : start + HEAD_ROWS]), start) for start in range(0, len(wanted), HEAD_ROWS)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _tiled(self, rows: Described) -> NDArray[np.int32] | None:
        """The tiles of these rows, where that is the faster way to run them."""
        size = self.network.tile_rows
        if not size or len(rows) <= FEW_ROWS or not rows.in_order:
            return None
        tiles = rows.tiles(size)
        return tiles if len(tiles) <= self.network.most_tiles(len(rows)) else None

    def _logits(self, wanted: int, start: int) -> Tensor:
        if start:  # the head reads the first entries
            self.network.tables.wanted[:wanted] = self.network.tables.wanted[start : start + wanted].clone()
        count = bucket(wanted)
        self.graphs.run(("head", count), partial(self.network.head, count))
        return self.network.logits[:wanted].clone()

    def _fill(self, tables: Tables, rows: Described, count: int, wanted: NDArray[np.intp]) -> None:
        """Describe `rows` on the host; those up to `count` are padding: position 0 of the spare slot."""
        n = len(rows)
        for table, column, pad in zip(tables.columns, rows.columns, self._padding, strict=True):
            numbers = table.numpy()
            numbers[:n] = column
            numbers[n:count] = pad
        asked = tables.wanted.numpy()
        asked[: bucket(len(wanted)) if len(wanted) else 0] = 0
        asked[: len(wanted)] = wanted
        paths = tables.paths.numpy()
        for r, path in rows.scattered.items():
            paths[r, : len(path)] = path

    @torch.inference_mode()
    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.network.cache.move(self._book.blocks(slot), sources, targets)

    @torch.inference_mode()
    def _copy(self, source: int, target: int, length: int) -> None:
        """What is not shared: the books say what that is."""
        self._apply()


def _in_order(span: Span, path: Sequence[int]) -> int:
    """How many of a row's pending ancestors (itself included) lie at the index of their own position."""
    if isinstance(path, range):
        return len(path)
    in_order = next(j for j, index in enumerate(path) if index != span.base + j)
    if len(path) - in_order > PATH:
        raise ValueError(f"a draft deeper than {PATH} tokens off the first path is not supported")
    return in_order
