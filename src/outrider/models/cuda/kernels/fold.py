"""Sums in one order, whatever tile they are computed in.

A library sum adds in the order of the registers, lanes and warps that a tile happens to lie in. A sum of two numbers
has only one order: so halves are added to halves until one number is left.

Kernels whose bits must agree are also compiled with UNFUSED: a product that is added to something is rounded first,
unless it says `tl.fma`. Left to the compiler, one kernel would fuse the two and another would not.
"""

from __future__ import annotations

import triton
import triton.language as tl

UNFUSED = {"enable_fp_fusion": False}


@triton.jit
def fold(x, LEVELS: tl.constexpr):
    """The sums of x's rows [M, 2^LEVELS]."""
    for _ in tl.static_range(LEVELS):
        x = tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), axis=1)
    return tl.reshape(x, [x.shape[0]])
