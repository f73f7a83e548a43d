"""What the host does for any network on a GPU: describe rows, run recorded passes over them, keep the cache's books."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from outrider.models.cuda.graphs import Graphs, Staging, bucket, buckets
from outrider.models.cuda.network import HEAD_ROWS, PATH, Network, Tables
from outrider.models.slots import Span, StaticCache
from outrider.types import Rows

MAX_ROWS = 512
"""Rows of one pass; more are run in several, which changes nothing but the time."""
SLACK = 256
"""Cache rows beyond the context, for a step that is under way when its sequence turns out to have ended."""

N = TypeVar("N", bound=Network)

Row = tuple[int, Span, int, bool]
"""Token, where its slot stands, which row of that it is, whether its logits are wanted."""


class Passes(StaticCache, Generic[N]):
    """A network over a static cache whose last slot is a spare: rows that only fill up a pass write there."""

    def __init__(self, network: N, max_batch: int, max_context: int) -> None:
        super().__init__(max_batch, max_context)
        self.network = network
        self.chunk = MAX_ROWS
        self.device, self.dtype = network.device, network.dtype
        self.graphs = Graphs(self.device)
        self._padding = (0, max_batch, 0, 0, 1)
        """A row that only fills up a pass, as in `Tables.columns`: position 0 of the spare slot."""
        self._staging = [Staging(Tables.size(MAX_ROWS), self.device) for _ in range(4)]

    def advance(self, slot: int, count: int) -> None:
        """Note that steps on the device have committed `count` more rows to the slot."""
        self._slots.advance(slot, count)

    def _rows(self, batch: Sequence[Rows]) -> list[Row]:
        """Room in the cache for all rows of the batch, one after the other."""
        rows: list[Row] = []
        for given in batch:
            span = self._slots.extend(given)
            wanted = None if given.logits is None else set(given.logits)
            rows.extend((token, span, i, wanted is None or i in wanted) for i, token in enumerate(given.tokens))
        return rows

    def _prepare(self, kind: str, launches: Callable[[int, bool], None]) -> Iterator[None]:
        """Record the passes of this kind, over the spare slot; yields after each."""
        for table, value in zip(self.network.tables.columns, self._padding, strict=True):
            table.fill_(value)
        for count in buckets(MAX_ROWS):
            for together in (False, True) if count > 1 else (False,):
                self.graphs.run((kind, count, together), partial(launches, count, together))
                yield

    def _prepare_logits(self) -> Iterator[None]:
        for count in buckets(HEAD_ROWS):
            self.graphs.run(("head", count), partial(self.network.head, count))
            yield

    def _run(self, rows: list[Row], kind: str, launches: Callable[[int, bool], None]) -> Tensor:
        """One pass of at most MAX_ROWS rows; the logits asked for. `launches(rows, together)` is what a pass of this
        kind is made of."""
        count = bucket(len(rows))
        wanted = [r for r, (*_, want) in enumerate(rows) if want]
        staging = self._staging.pop(0)
        self._staging.append(staging)
        scattered = self._fill(Tables.over(staging.free()), rows, count, wanted)
        staging.send(self.network.tables.flat, Tables.size(MAX_ROWS, paths=count if scattered else 0))
        together = len({span.slot for _, span, *_ in rows}) * 2 <= len(rows)
        self.graphs.run((kind, count, together), partial(launches, count, together))
        if not wanted:
            return torch.empty(0, self.network.logits.shape[1], device=self.device)
        parts = [self._logits(wanted[start : start + HEAD_ROWS], start) for start in range(0, len(wanted), HEAD_ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _logits(self, wanted: Sequence[int], start: int) -> Tensor:
        if start:  # the head reads the first entries
            self.network.tables.wanted[: len(wanted)] = self.network.tables.wanted[start : start + len(wanted)].clone()
        count = bucket(len(wanted))
        self.graphs.run(("head", count), partial(self.network.head, count))
        return self.network.logits[: len(wanted)].clone()

    def _fill(self, tables: Tables, rows: list[Row], count: int, wanted: Sequence[int]) -> bool:
        """Describe `rows` on the host; those up to `count` are padding: position 0 of the spare slot. Returns whether
        any row has ancestors off the order of their positions."""
        n = len(rows)
        columns = np.array([_described(token, span, i) for token, span, i, _ in rows], dtype=np.int32).T
        for table, column, pad in zip(tables.columns, columns, self._padding, strict=True):
            numbers = table.numpy()
            numbers[:n] = column
            numbers[n:count] = pad
        asked = tables.wanted.numpy()
        asked[: bucket(len(wanted)) if wanted else 0] = 0
        asked[: len(wanted)] = wanted
        paths = tables.paths.numpy()
        any_scattered = False
        for r, (_, span, i, _) in enumerate(rows):
            if scattered := span.paths[i][_in_order(span, i) :]:
                paths[r, : len(scattered)] = scattered
                any_scattered = True
        return any_scattered

    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = (torch.tensor(side, device=self.device) for side in (sources, targets))
        cache = self.network.cache[:, :, slot]
        cache.index_copy_(3, target, cache.index_select(3, source))

    def _copy(self, source: int, target: int, length: int) -> None:
        cache = self.network.cache  # [2, layers, slots, kv_heads, capacity, head_dim]
        cache[:, :, target, :, :length] = cache[:, :, source, :, :length]


def _in_order(span: Span, i: int) -> int:
    """How many of the row's pending ancestors (itself included) lie at the index of their own position."""
    path = span.paths[i]
    if path[-1] == span.base + len(path) - 1:  # indices rise along a path, so all are in order where the last one is
        return len(path)
    in_order = next(j for j, index in enumerate(path) if index != span.base + j)
    if len(path) - in_order > PATH:
        raise ValueError(f"a draft deeper than {PATH} tokens off the first path is not supported")
    return in_order


def _described(token: int, span: Span, i: int) -> tuple[int, int, int, int, int]:
    """The row's entries in `Tables`: token, slot, position, index, base."""
    path = span.paths[i]
    return token, span.slot, span.base + len(path) - 1, path[-1], span.base + _in_order(span, i)
