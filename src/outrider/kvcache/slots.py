"""Bookkeeping of a static cache: which slot holds how much, and where each pending row lies. No tensors here.

A slot holds `length` committed tokens at cache indices 0..length-1 and pending rows right behind them: pending row j
lies at index length + j whatever its depth in the tree, and its keys are the committed prefix plus its own ancestors.
Rollback is an integer; commit moves the accepted path's rows together, which costs nothing when the path is a chain.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, overload

from outrider.core.draft import ROOT
from outrider.core.model import CachedNetwork, Rows
from outrider.errors import InvalidRequest


class ChainPaths(Sequence[Sequence[int]]):
    """Those of a chain of `count` rows right behind a prefix of `base` tokens, made when they are looked at: a prompt's
    are long, and mostly nobody does."""

    __slots__ = ("_base", "_count")

    def __init__(self, base: int, count: int) -> None:
        self._base, self._count = base, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[range]:
        return map(range, repeat(self._base), range(self._base + 1, self._base + self._count + 1))

    @overload
    def __getitem__(self, row: int) -> range: ...
    @overload
    def __getitem__(self, row: slice) -> list[range]: ...
    def __getitem__(self, row: int | slice) -> range | list[range]:
        places = range(self._count)[row]
        if isinstance(places, range):
            return [range(self._base, self._base + place + 1) for place in places]
        return range(self._base, self._base + places + 1)


@dataclass(slots=True)
class _Slot:
    length: int = 0
    chain: int = 0
    """Pending rows that came first, each the child of the one before."""
    parents: list[int] = field(default_factory=list)
    """Of those after them; -1: the prefix itself."""
    paths: list[Sequence[int]] = field(default_factory=list)
    """Of each of those the cache indices of its uncommitted ancestors, root first, itself last. A range where all lie
    in order behind the prefix."""

    @property
    def pending(self) -> int:
        return self.chain + len(self.parents)

    def parent(self, row: int) -> int:
        return row - 1 if row < self.chain else self.parents[row - self.chain]

    def path(self, row: int) -> Sequence[int]:
        """As of `paths`, of any pending row or, for `ROOT`, none."""
        return range(self.length, self.length + row + 1) if row < self.chain else self.paths[row - self.chain]


class Span(NamedTuple):
    """Where the rows of one `Rows` lie. `paths[i]` holds the cache indices row i sees beyond the committed prefix,
    in order of position, its own last; so its position is base + len(paths[i]) - 1."""

    slot: int
    base: int
    first: int
    """Cache index the first row is written at; the others follow."""
    paths: Sequence[Sequence[int]]

    @property
    def end(self) -> int:
        return self.first + len(self.paths)


class Slots:
    """Free list, committed lengths and pending trees of `count` slots of `capacity` tokens each.

    A closed slot still holds its committed tokens until it is opened again, and the one unused for longest is opened
    first; so what was computed lately can be had again (`reopen`, `fork`).
    """

    def __init__(self, count: int, capacity: int) -> None:
        self.capacity = capacity
        self._slots: dict[int, _Slot] = {}
        self._free = deque(range(count))
        """Closed slots, the one unused for longest first."""
        self._left = [0] * count
        """Tokens a closed slot still holds."""
        self._epochs = [0] * count

    @property
    def held(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def open(self) -> int:
        if not self._free:
            raise InvalidRequest("every cache slot is in use; raise max_batch or finish a request first")
        return self._take(self._free[0], 0)

    def close(self, slot: int) -> None:
        self._left[slot] = self._slots.pop(slot).length
        self._free.append(slot)

    def epoch(self, slot: int) -> int:
        """How often the slot was opened: while this stays, a closed slot holds what it held when it was closed."""
        return self._epochs[slot]

    def reopen(self, slot: int, length: int) -> None:
        """Open this closed slot with the first `length` tokens it still holds."""
        if slot in self._slots or not 0 <= length <= self._left[slot]:
            raise ValueError(f"slot {slot} cannot be opened again with {length} tokens")
        self._take(slot, length)

    def fork(self, source: int, length: int) -> int:
        """Open a slot that is to begin with the first `length` tokens of `source`. That one stays as it is, open or
        closed, unless it is closed and no other is left: then it is opened itself."""
        running = self._slots.get(source)
        if not 0 <= length <= (self._left[source] if running is None else running.length):
            raise ValueError(f"slot {source} does not hold {length} tokens")
        if running is None:
            self._free.remove(source)  # it was of use: to the end of the queue
            self._free.append(source)
        slot = self.open()
        self._slots[slot].length = length
        return slot

    def forget(self) -> None:
        """What the cache holds is gone: closed slots are empty, and open ones are to be closed and not opened again."""
        for slot in self._free:
            self._left[slot] = 0
            self._epochs[slot] += 1

    def _take(self, slot: int, length: int) -> int:
        self._free.remove(slot)
        self._epochs[slot] += 1
        self._slots[slot] = _Slot(length)
        return slot

    def length(self, slot: int) -> int:
        return self._slots[slot].length

    def extend(self, rows: Rows) -> Span:
        """Make room for `rows` behind what is pending."""
        state, count = self._slots[rows.slot], len(rows.tokens)
        first = state.length + state.pending
        if first + count > self.capacity:
            raise InvalidRequest(
                f"{first + count} tokens do not fit a context of {self.capacity}; "
                "shorten the prompt or raise max_context"
            )
        if not state.pending and rows.parents == range(ROOT, ROOT + count):  # a prompt, mostly
            state.chain = count
            return Span(rows.slot, state.length, first, ChainPaths(first, count))
        start = len(state.paths)
        for index, parent in enumerate(rows.parents, first):
            above = state.path(parent)
            in_order = isinstance(above, range) and above.stop == index
            state.paths.append(range(state.length, index + 1) if in_order else (*above, index))
        state.parents.extend(rows.parents)
        return Span(rows.slot, state.length, first, state.paths[start:])

    def commit(self, slot: int, path: Sequence[int]) -> list[tuple[int, int]]:
        """Keep pending rows `path` as the continuation of the prefix; returns the cache moves (from, to) it takes.

        Moves go to lower or equal indices in increasing order, so they may be carried out one after the other.
        """
        state = self._slots[slot]
        if path == range(len(path)) and len(path) <= state.chain:
            self._settle(state, state.length + len(path))
            return []
        expected = ROOT
        for row in path:
            if state.parent(row) != expected:
                raise ValueError(f"rows {list(path)} are not a path from the committed prefix")
            expected = row
        moves = [(state.length + row, state.length + offset) for offset, row in enumerate(path) if row != offset]
        self._settle(state, state.length + len(path))
        return moves

    def advance(self, grown: Mapping[int, int]) -> None:
        """The prefix of each of these has grown by so many tokens that were never pending here."""
        for slot, count in grown.items():
            state = self._slots[slot]
            if state.chain or state.parents:
                raise ValueError("a slot with pending rows cannot be advanced past them")
            state.length += count

    def rollback(self, slot: int, length: int) -> None:
        state = self._slots[slot]
        if not 0 <= length <= state.length:
            raise ValueError(f"cannot roll a slot of {state.length} tokens back to {length}")
        self._settle(state, length)

    @staticmethod
    def _settle(state: _Slot, length: int) -> None:
        state.length, state.chain = length, 0
        state.parents.clear()
        state.paths.clear()


class StaticCache(CachedNetwork):
    """The bookkeeping half of a network over a static cache; the other half runs rows and moves them."""

    keeps_prefixes = True

    def __init__(self, max_batch: int, max_context: int, slots: Slots | None = None) -> None:
        """`slots`: books of another kind."""
        self.max_batch = max_batch
        self.max_context = max_context
        self._slots = slots or Slots(max_batch, max_context)

    def open(self) -> int:
        return self._slots.open()

    def close(self, slot: int) -> None:
        self._slots.close(slot)

    @property
    def held(self) -> int:
        return self._slots.held

    def length(self, slot: int) -> int:
        return self._slots.length(slot)

    def epoch(self, slot: int) -> int:
        return self._slots.epoch(slot)

    def reopen(self, slot: int, length: int) -> None:
        self._slots.reopen(slot, length)

    def fork(self, source: int, length: int) -> int:
        slot = self._slots.fork(source, length)
        if slot != source:
            self._copy(source, slot, length)
        return slot

    def commit(self, slot: int, path: Sequence[int]) -> None:
        if moves := self._slots.commit(slot, path):
            sources, targets = zip(*moves, strict=True)
            self._move(slot, sources, targets)

    def rollback(self, slot: int, length: int) -> None:
        self._slots.rollback(slot, length)

    @abstractmethod
    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the cache rows at `sources` to `targets`, in order."""

    @abstractmethod
    def _copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cache rows of one slot to another."""


def wanted_rows(batch: Sequence[Rows]) -> list[int]:
    """Which rows of a pass, all of the batch counted on, have their logits asked for."""
    wanted: list[int] = []
    start = 0
    for rows in batch:
        within = range(len(rows.tokens)) if rows.logits is None else rows.logits
        wanted.extend(start + i for i in within)
        start += len(rows.tokens)
    return wanted
