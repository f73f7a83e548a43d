"""What all launches of a pass have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.fold import UNFUSED

_SHALLOW = ContextVar("shallow", default=False)


@contextmanager
def shallow() -> Iterator[None]:
    """Passes launch every kernel, but leave out layers that launch the same ones again."""
    before = _SHALLOW.set(True)
    try:
        yield
    finally:
        _SHALLOW.reset(before)


def is_shallow() -> bool:
    return _SHALLOW.get()


def dependent(gpu: GPU) -> dict[str, Any]:
    """Options of a kernel that may start before the one it follows has ended, where the GPU can do that."""
    return {**UNFUSED, **({"DEPENDENT": True, "launch_pdl": True} if gpu.copies else {"DEPENDENT": False})}


@cache
def _layout(bits: int, width: int) -> NVMMASharedLayout:
    return NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=bits, rank=2)


def swizzled(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """For the copy engine to fetch tiles of so many, as groups of warps multiply them."""
    size = matrix.element_size()
    return TensorDescriptor.from_tensor(matrix, [rows, columns], _layout(8 * size, min(128, size * columns)))


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
