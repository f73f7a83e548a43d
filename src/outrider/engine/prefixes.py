"""Which cache slots hold the beginning of a new request. Books only; no torch here.

Conversations come back with all they said before, and requests share instructions. A slot that a request has left
keeps its tokens until it is needed, and a new request that begins alike goes on from there, if it has the same salt:
how soon it answers tells how much of it somebody has sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST = 16
"""Fewer common tokens are run again: most texts begin with the same few."""


class Holder(NamedTuple):
    """A slot and what is in it: `cached` of these tokens, run for the request of this id and salt."""

    slot: int
    tokens: Sequence[int]
    cached: int
    request: int
    salt: str | None
    epoch: int | None
    """Of the slot when its request left it; None: it is still running there."""


class Prefixes:
    """What finished and aborted requests have left behind, at most one per slot. The cache may meanwhile have given a
    slot to somebody else; whoever asks says which entries still hold."""

    def __init__(self) -> None:
        self._left: dict[int, Holder] = {}  # by slot, the one unused for longest first

    @property
    def left(self) -> list[Holder]:
        return list(self._left.values())

    @property
    def tokens(self) -> int:
        return sum(holder.cached for holder in self._left.values())

    def leave(self, holder: Holder) -> None:
        self.forget(holder.slot)
        self._left[holder.slot] = holder

    def touch(self, slot: int) -> None:
        """It was of use: it is forgotten last."""
        if slot in self._left:
            self._left[slot] = self._left.pop(slot)

    def forget(self, slot: int) -> None:
        self._left.pop(slot, None)

    def trim(self, most: int) -> None:
        """Forget what was unused for longest until at most so many tokens are left."""
        for slot in list(self._left):
            if self.tokens <= most:
                return
            self.forget(slot)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with. Halves are compared whole, which Python does without a loop."""
    low, high = 0, min(len(one), len(other))
    if not high or one[0] != other[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def worth_keeping(length: int, cached: int) -> bool:
    """Whether a slot of so many tokens of which `length` are of use now should be copied rather than taken over: what
    would be lost is a good part of it, so somebody else may come back for it."""
    return 2 * (cached - length) > length
