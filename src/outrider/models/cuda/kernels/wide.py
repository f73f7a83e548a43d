"""y = x · Wᵀ for many rows, as fast as they can be multiplied, with the bits of few.

The depth is added up in the parts and in the order of `linear_kernel`, and what becomes of the product is its code.
One program computes all parts of its tile, so nothing goes through memory in between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous
from outrider.models.cuda.kernels.linear import GATED, finish


@triton.jit(do_not_specialize=["rows"])
def wide_kernel(
    x_ptr,  # as for `linear_kernel`, with room for whole tiles of rows
    w_ptr,
    bias_ptr,
    squares_ptr,
    y_ptr,
    residual_ptr,
    gain_ptr,
    squares_out_ptr,
    rows,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    GELU: tl.constexpr,
    TILES: tl.constexpr,
    LEVELS: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
    MULTIPLIER: tl.constexpr = 1.0,
):
    row_tile, tile = _place(tl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N, GROUP)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = row_tile * M + tl.arange(0, M)
    k = tl.arange(0, BLOCK_K)
    depth: tl.constexpr = K // SPLIT
    source = n
    if N % BLOCK_N != 0:
        source = tl.where(n < N, n, 0)  # never stored
    w_ptrs = w_ptr + (source.to(tl.int64) * K)[:, None] + k[None, :]
    x_ptrs = x_ptr + (m.to(tl.int64) * K)[None, :] + k[:, None]
    after_previous(DEPENDENT)
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    if EPILOGUE == GATED:
        for _ in range(0, depth, BLOCK_K):
            x = tl.load(x_ptrs)
            acc = tl.dot(tl.load(w_ptrs), x, acc)
            second = tl.dot(tl.load(w_ptrs + N * K), x, second)
            x_ptrs += BLOCK_K
            w_ptrs += BLOCK_K
    elif PAIRED:  # two parts side by side
        tl.static_assert(SPLIT == 2)
        for _ in range(0, depth, BLOCK_K):
            acc = tl.dot(tl.load(w_ptrs), tl.load(x_ptrs), acc)
            second = tl.dot(tl.load(w_ptrs + depth), tl.load(x_ptrs + depth), second)
            x_ptrs += BLOCK_K
            w_ptrs += BLOCK_K
        acc = (0.0 + acc) + second
    else:
        for _ in tl.static_range(SPLIT):
            part = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for _ in range(0, depth, BLOCK_K):
                part = tl.dot(tl.load(w_ptrs), tl.load(x_ptrs), part)
                x_ptrs += BLOCK_K
                w_ptrs += BLOCK_K
            if SPLIT > 1:
                acc += part
            else:
                acc = part
    squares = 0.0
    if squares_ptr is not None:
        t = tl.arange(0, 1 << LEVELS)
        squares = tl.load(squares_ptr + m[:, None] * TILES + t[None, :], mask=(t < TILES)[None, :], other=0.0)
    finish(
        acc, second, squares, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, tile, n, m, rows, eps,
        N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, squares_ptr is not None, MULTIPLIER,
    )  # fmt: skip


@triton.jit
def _place(row_tiles, tiles, GROUP: tl.constexpr):
    """Which tile of rows and of columns a program computes: GROUP tiles of rows side by side share what lies in L2."""
    program = tl.program_id(0)
    group = program // (GROUP * tiles)
    first = group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = program % (GROUP * tiles)
    return first + within % height, within // height
