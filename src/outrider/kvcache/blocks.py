"""Bookkeeping of a cache in blocks: which blocks the tokens of each slot lie in, who shares them, and which are free.
No tensors here.

The first `length` tokens of a slot lie in its blocks in order, `size` in each. Slots that begin alike hold the same
blocks; what is held more than once is never written. Nothing is set aside for a slot: it is given blocks as its tokens
come, and what a closed slot has kept is given away when there is no other, from the slot unused for longest on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from outrider.core.model import Rows
from outrider.errors import InvalidRequest
from outrider.kvcache.slots import Slots, Span

SPARE = 0
"""The block that belongs to nobody: places of a slot that hold nothing lie there."""

AHEAD = 192
"""Rows that a slot may need beyond the tokens of its request: of three steps on a device, two of which may be under way
when the third is launched, or of a draft."""


class Changes(NamedTuple):
    """What is to be done to the cache itself, copies first."""

    copies: list[tuple[int, int]]
    """Blocks: from, to."""
    entries: dict[tuple[int, int], int]
    """By slot and place in it: the block that lies there now."""

    def __bool__(self) -> bool:
        return bool(self.copies or self.entries)


class BlockSlots(Slots):
    """`Slots` over `count` blocks of `size` tokens, numbered from 1 on."""

    def __init__(self, slots: int, capacity: int, size: int) -> None:
        """There are no blocks before `provide`."""
        super().__init__(slots, capacity)
        self.size = size
        self.count = 0
        self.shared = 0
        """How many more blocks there would have to be if open slots shared none."""
        self._blocks: list[list[int]] = [[] for _ in range(slots)]
        """Of each slot, open or closed."""
        self._unused: list[int] = []
        self._holders: Counter[int] = Counter()
        """Of each block: slots that hold it."""
        self._users: Counter[int] = Counter()
        """Those of them that are open."""
        self._changes = Changes([], {})

    def provide(self, count: int) -> None:
        """So many blocks more."""
        self._unused.extend(range(self.count + count, self.count, -1))
        self.count += count

    def blocks(self, slot: int) -> Sequence[int]:
        """Where its tokens lie."""
        return self._blocks[slot]

    @property
    def unused(self) -> int:
        """Blocks that hold nothing of anybody."""
        return len(self._unused)

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether there are blocks enough for open slots of so many tokens and what they may need beyond. Those that
        are open already count as far as they share."""
        if sum(lengths) + len(lengths) * (AHEAD + self.size) <= self.count * self.size:  # at most steps
            return True
        needed = sum([-(-(min(length, self.capacity) + AHEAD) // self.size) for length in lengths])
        return needed <= self.count + self.shared

    def drain(self) -> Changes:
        """What has come up since the last time; must be done before anything is run over the cache."""
        changes, self._changes = self._changes, Changes([], {})
        return changes

    def forget(self) -> None:
        """Also, the cache knows of nobody's blocks: it is told again of those that open slots have."""
        super().forget()
        for slot in self._free:
            self._cut(slot, 0, used=False)
        held = {(slot, place): block for slot in self._slots for place, block in enumerate(self._blocks[slot])}
        self._changes = Changes([], held)

    def extend(self, rows: Rows) -> Span:
        state = self._slots[rows.slot]
        end = state.length + state.pending + len(rows.tokens)
        if end <= self.capacity:
            self.reserve(rows.slot, end)
        return super().extend(rows)

    def reserve(self, slot: int, end: int) -> int:
        """Blocks for everything from the committed tokens up to `end`, its own to write; returns up to where they
        are."""
        state, blocks, size = self._slots[slot], self._blocks[slot], self.size
        wanted = -(-end // size)
        for place in range(state.length // size, min(len(blocks), wanted)):
            if self._holders[block := blocks[place]] > 1:
                self._put(slot, place, self._take_block())
                if place * size < state.length:
                    self._changes.copies.append((block, blocks[place]))
                self._let_go(block, used=True)
        while len(blocks) < wanted:
            self._put(slot, len(blocks), self._take_block())
        return len(blocks) * size

    def close(self, slot: int) -> None:
        super().close(slot)
        self._cut(slot, self._left[slot], used=True)
        for block in self._blocks[slot]:
            self._end_use(block)

    def rollback(self, slot: int, length: int) -> None:
        super().rollback(slot, length)
        self._cut(slot, length + AHEAD, used=True)

    def fork(self, source: int, length: int) -> int:
        """Whole blocks are shared, the rest of the last one is copied."""
        kept = self._blocks[source][: -(-length // self.size)]
        for block in kept:
            self._holders[block] += 1  # whatever is given away meanwhile
        try:
            slot = super().fork(source, length)
            whole = len(kept) if slot == source else length // self.size
            for place, block in enumerate(kept[:whole]):
                self._put(slot, place, block)
            for block in kept[whole:]:
                self._put(slot, whole, self._taken_for(slot))
                self._changes.copies.append((block, self._blocks[slot][whole]))
        finally:
            for block in kept:
                self._let_go(block, used=False)
        return slot

    def _taken_for(self, slot: int) -> int:
        """A block, or the slot is closed again."""
        try:
            return self._take_block()
        except InvalidRequest:
            self._slots[slot].length = 0
            self.close(slot)
            raise

    def _take(self, slot: int, length: int) -> int:
        super()._take(slot, length)
        self._cut(slot, length, used=False)
        for block in self._blocks[slot]:
            self._use(block)
        return slot

    def _cut(self, slot: int, length: int, *, used: bool) -> None:
        """Let go of the blocks beyond the first `length` tokens."""
        blocks = self._blocks[slot]
        for place in range(-(-length // self.size), len(blocks)):
            self._let_go(blocks[place], used=used)
            self._changes.entries[slot, place] = SPARE
        del blocks[-(-length // self.size) :]

    def _put(self, slot: int, place: int, block: int) -> None:
        """An open slot has this block there, in place of another or behind its last."""
        self._blocks[slot][place : place + 1] = [block]
        self._changes.entries[slot, place] = block
        self._holders[block] += 1
        self._use(block)

    def _take_block(self) -> int:
        while not self._unused:
            left = next((slot for slot in self._free if self._blocks[slot]), None)
            if left is None:
                raise InvalidRequest(
                    f"all {self.count} blocks of the cache are in use; raise gpu_memory or finish a request first"
                )
            self._cut(left, 0, used=False)
            self._left[left] = 0
            self._epochs[left] += 1
        return self._unused.pop()

    def _use(self, block: int) -> None:
        self._users[block] += 1
        self.shared += self._users[block] > 1

    def _end_use(self, block: int) -> None:
        self.shared -= self._users[block] > 1
        self._users[block] -= 1

    def _let_go(self, block: int, *, used: bool) -> None:
        """One slot fewer holds it. `used`: one that is open."""
        if used:
            self._end_use(block)
        self._holders[block] -= 1
        if not self._holders[block]:
            self._unused.append(block)
