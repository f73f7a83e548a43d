"""The order in which weights of 8 bits lie in memory: see `kernels/eighth.py`."""

from __future__ import annotations

import torch
from torch import Tensor


def arranged(weight: Tensor, group: int) -> None:
    """Put the bytes of a matrix [out, in] in the order of words: of every `group` neighbours, those that are a quarter
    of it apart lie together."""
    rows, depth = weight.shape
    taken = weight.view(torch.uint8).view(rows, depth // group, 4, group // 4).transpose(2, 3)
    weight.view(torch.uint8).copy_(taken.reshape(rows, depth))
