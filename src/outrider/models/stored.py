"""Matrices that stay as files store them: in blocks of few bits, which lie there until a decoder packs them, or fp8."""

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


_NUMBERS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROWS = 1024
"""Of a file, read at once."""


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

    def parts(self, rows: int) -> Iterator[Stored]:
        """At most so many rows each; one, if they come in an order of their own, for they are read together."""
        if self.order is not None:
            yield self
            return
        for first in range(0, len(self), rows):
            shape = min(rows, len(self) - first), *self.shape[1:]
            yield replace(self, shape=shape, read=partial(_from, self.read, first))

    def pieces(self, rows: int) -> Iterator[Tensor]:
        """All rows, at most so many at once."""
        if self.order is None:
            for first in range(0, self.shape[0], rows):
                yield self.read(first, min(first + rows, self.shape[0]))
        else:  # from anywhere among the file's: read all that lie between
            first, last = int(self.order.min()), int(self.order.max())
            everything = self.read(first, last + 1)
            for own in torch.split(self.order - first, rows):
                yield everything[own]

    def numbers(self) -> Tensor:
        """Those of a matrix that is in numbers, as the file has them."""
        return torch.cat(list(self.pieces(_ROWS))).view(_NUMBERS[self.kind])


@dataclass(frozen=True, slots=True)
class Fp8:
    """A matrix [out, in] in e4m3, or several, and a scale for each output channel."""

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def numel(self) -> int:
        return self.values.numel()

    def __getitem__(self, order: Tensor) -> Fp8:
        """These rows, in this order."""
        return Fp8(self.values.view(torch.uint8)[order].view(self.values.dtype), self.scales[order])

    def __iter__(self) -> Iterator[Fp8]:
        return map(Fp8, self.values, self.scales)

    def tensor_split(self, cuts: Sequence[int]) -> list[Fp8]:
        """The rows before, between and behind these, as of a tensor."""
        return list(map(Fp8, self.values.tensor_split(cuts), self.scales.tensor_split(cuts)))

    def wide(self) -> Tensor:
        """The numbers it stands for, in fp32."""
        return self.values.float() * self.scales[..., None]


def _from(read: Callable[[int, int], Tensor], start: int, first: int, last: int) -> Tensor:
    return read(start + first, start + last)
