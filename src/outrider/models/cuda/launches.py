"""What all launches of a pass have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.fold import UNFUSED

_SWIZZLED = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
"""How tiles of bf16 lie in shared memory for groups of warps to multiply."""

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


def swizzled(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """For the copy engine to fetch tiles of so many, as groups of warps multiply them."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns], _SWIZZLED)


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
