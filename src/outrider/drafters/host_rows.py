"""Small moves of tensor rows between passes.

On the CPU they are NumPy's, which stays on this thread: PyTorch may wake its own, and those spin for a while on the
cores that the next pass of a compiled model needs. And its code is cold after a pass: a slice of a tensor then takes 40
to 60 microseconds. So what is kept for later is an array there, not a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kept = NDArray[Any] | Tensor
"""Rows that are looked at between passes, as an array where NumPy can hold them."""


def kept(rows: Tensor) -> Kept:
    """The same rows, not copied."""
    return rows.numpy() if _quiet(rows) else rows


def copied(rows: Kept) -> Kept:
    return rows.clone() if isinstance(rows, Tensor) else rows.copy()


def chosen(rows: Tensor, which: Sequence[int]) -> Tensor:
    """rows[which]; a view where that is the beginning."""
    if list(which) == list(range(len(which))):
        return rows if len(which) == len(rows) else rows[: len(which)]
    return torch.from_numpy(rows.numpy()[list(which)]) if _quiet(rows) else rows[list(which)]


def joined(pieces: Sequence[Kept]) -> Tensor:
    rows = together(pieces)
    return rows if isinstance(rows, Tensor) else torch.from_numpy(rows)


def together(pieces: Sequence[Kept]) -> Kept:
    """As `joined`, to be kept."""
    if len(pieces) == 1:
        return pieces[0]
    return _concatenated([kept(piece) if isinstance(piece, Tensor) else piece for piece in pieces])


def _concatenated(pieces: Sequence[Kept]) -> Kept:
    tensors = [piece for piece in pieces if isinstance(piece, Tensor)]
    return torch.cat(tensors) if tensors else np.concatenate(pieces)


def _quiet(rows: Tensor) -> bool:
    """Whether NumPy can hold them."""
    return rows.is_cpu and rows.dtype != torch.bfloat16
