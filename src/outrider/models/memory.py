"""Memory of its own for what is large and stays: caches and packed weights."""

from __future__ import annotations

import ctypes
import math
import mmap

import torch
from torch import Tensor


def give_back() -> None:
    """Return freed memory to the system. glibc keeps it otherwise, and loading frees as much as it keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU, pages straight from the system: they are committed only when first written, so that room for a
    long context costs nothing until it is used, and go back to it when dropped, so that weights being repacked never
    count twice. An allocator would do neither."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, **private), dtype=dtype, count=size).view(shape)
