"""Memory of its own for what is large and stays: caches and packed weights."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from outrider.errors import ModelError


def trim_malloc() -> None:
    """Return freed memory to the system. glibc keeps it otherwise, and loading frees as much as it keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, full: bool = False) -> Tensor:
    """Zeros. On the CPU, pages straight from the system: they are committed only when first written, so that room for a
    long context costs nothing until it is used, and go back to it when dropped, so that weights being repacked never
    count twice. An allocator would do neither. `full`: all of it will be written soon."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape)
    pages = _pages(size * dtype.itemsize)
    if full:
        _make_huge(pages)
    return torch.frombuffer(pages, dtype=dtype, count=size).view(shape)


def _pages(size: int) -> mmap.mmap:
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        return mmap.mmap(-1, max(size, 1), **private)
    except (OSError, OverflowError) as error:
        raise ModelError(
            f"the system does not give {size / 2**30:.1f} GiB of memory; lower max_batch or max_context, or use a "
            "smaller model"
        ) from error


def _make_huge(pages: mmap.mmap) -> None:
    """Committed 2 MB at a time: one fault instead of 512, which take some microseconds each on a virtual machine."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)


def available() -> int | None:
    """Bytes that this process may still take without swapping; None where the system does not say."""
    free: list[int] = []
    with suppress(OSError, LookupError, ValueError):
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(1024 * int(fields["MemAvailable"].split()[0]))
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, LookupError, ValueError):  # a container's limit, where there is one
        usage = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(usage["inactive_file"])
        free.append(int((group / "memory.max").read_text()) - used)
    return min(free, default=None)


class Arena:
    """Memory on the CPU for what is read from end to end in every pass, cut from large pieces in huge pages where the
    system has them: one address translation per 2 MB instead of per 4 KB, which reads a third faster. A piece lives as
    long as any tensor cut from it."""

    _HUGE = 1 << 21
    _PIECE = 1 << 27

    def __init__(self) -> None:
        self._piece = _pages(0)
        self._used = self._end = 0

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape)
        start = -(-self._used // 64) * 64
        if start + size * dtype.itemsize > self._end:
            start = self._next_piece(size * dtype.itemsize)
        self._used = start + size * dtype.itemsize
        return torch.frombuffer(self._piece, dtype=dtype, count=size, offset=start).view(shape)

    def _next_piece(self, least: int) -> int:
        """A new piece with room for `least` bytes; returns where its first huge page starts."""
        self._end = max(self._PIECE, -(-least // self._HUGE) * self._HUGE) + self._HUGE
        self._piece = _pages(self._end)
        _make_huge(self._piece)
        return -torch.frombuffer(self._piece, dtype=torch.uint8).data_ptr() % self._HUGE


class Recycled:
    """Memory for results that are large and short-lived, used again once no tensor looks at it: fresh pages from the
    system cost a fault each, more than the results written to them."""

    _KEPT = 4

    def __init__(self) -> None:
        self._buffers = [_pages(1)]
        self._unused = 0
        """References to a buffer nobody else holds. Counted, not known: Python versions differ."""
        for buffer in self._buffers:
            self._unused = sys.getrefcount(buffer)

    def empty(self, rows: int, columns: int) -> Tensor:
        """[rows, columns] fp32, holding anything."""
        if not rows:
            return torch.empty(0, columns)
        size = 4 * rows * columns
        for buffer in self._buffers:
            if len(buffer) >= size and sys.getrefcount(buffer) == self._unused:
                return torch.frombuffer(buffer, dtype=torch.float32, count=rows * columns).view(rows, columns)
        self._buffers = [_pages(1 << (size - 1).bit_length()), *self._buffers][: self._KEPT]
        return torch.frombuffer(self._buffers[0], dtype=torch.float32, count=rows * columns).view(rows, columns)
