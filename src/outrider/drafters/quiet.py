"""Small moves of tensor rows between passes.

On the CPU they are NumPy's, which stays on this thread: PyTorch may wake its own, and those spin for a while on the
cores that the next pass of a compiled model needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def copied(rows: Tensor) -> Tensor:
    return torch.from_numpy(rows.numpy().copy()) if _quiet(rows) else rows.clone()


def chosen(rows: Tensor, which: Sequence[int]) -> Tensor:
    """rows[which]; a view where that is the beginning."""
    if list(which) == list(range(len(which))):
        return rows if len(which) == len(rows) else rows[: len(which)]
    return torch.from_numpy(rows.numpy()[list(which)]) if _quiet(rows) else rows[list(which)]


def joined(pieces: Sequence[Tensor]) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    if all(map(_quiet, pieces)):
        return torch.from_numpy(np.concatenate([piece.numpy() for piece in pieces]))
    return torch.cat(list(pieces))


def _quiet(rows: Tensor) -> bool:
    """Whether NumPy can hold them."""
    return rows.is_cpu and rows.dtype != torch.bfloat16
