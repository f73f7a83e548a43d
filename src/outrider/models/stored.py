"""Matrices that stay as a file stores them, in blocks of few bits: where they lie, until a decoder packs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""What the compiled decoder multiplies with as it is stored; the index is what C calls it (decoder.h)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix [rows, inputs] in a file, or several [count, rows, inputs]. Nothing is read before it is packed."""

    kind: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Tensor]
    """The bytes of rows first to last, uint8 [rows, bytes]; of several, as if their rows were one's."""
    mapped: Callable[[], Tensor]
    """All bytes where they lie in the file, to look up a few rows now and then: only those come to memory."""
    order: Tensor | None = None
    """Of the file's rows; None: as they come."""

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, order: Tensor) -> Stored:
        """These rows, in this order."""
        own = order if self.order is None else self.order[order]
        return replace(self, shape=(len(order), *self.shape[1:]), order=own)

    def __iter__(self) -> Iterator[Stored]:
        """Of several, one after the other."""
        count, rows, inputs = self.shape
        for i in range(count):
            yield replace(self, shape=(rows, inputs), read=partial(_from, self.read, i * rows))

    def tensor_split(self, cuts: Sequence[int]) -> list[Stored]:
        """The rows before, between and behind these, as of a tensor."""
        return [self[torch.arange(first, last)] for first, last in pairwise((0, *cuts, len(self)))]

    def pieces(self, rows: int) -> Iterator[Tensor]:
        """All rows, at most so many at once."""
        if self.order is None:
            for first in range(0, self.shape[0], rows):
                yield self.read(first, min(first + rows, self.shape[0]))
        else:  # from anywhere in the file's: read them all
            everything = self.read(0, int(self.order.max()) + 1)
            for own in torch.split(self.order, rows):
                yield everything[own]


def _from(read: Callable[[int, int], Tensor], start: int, first: int, last: int) -> Tensor:
    return read(start + first, start + last)
