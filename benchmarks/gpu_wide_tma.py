"""`wide_kernel` with its tiles fetched by the copy engine, to compare with."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.linear import GATED, finish
from outrider.models.cuda.kernels.wide import _place


@triton.jit(do_not_specialize=["rows"])
def wide_tma_kernel(
    x_desc,
    w_desc,
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
    TILES: tl.constexpr,
    LEVELS: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
):
    row_tile, tile = _place(tl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N, GROUP)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = row_tile * M + tl.arange(0, M)
    depth: tl.constexpr = K // SPLIT
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    if EPILOGUE == GATED:
        for k in range(0, depth, BLOCK_K):
            x = tl.trans(x_desc.load([row_tile * M, k]))
            acc = tl.dot(w_desc.load([tile * BLOCK_N, k]), x, acc)
            second = tl.dot(w_desc.load([N + tile * BLOCK_N, k]), x, second)
    elif PAIRED:
        for k in range(0, depth, BLOCK_K):
            acc = tl.dot(w_desc.load([tile * BLOCK_N, k]), tl.trans(x_desc.load([row_tile * M, k])), acc)
            x = tl.trans(x_desc.load([row_tile * M, depth + k]))
            second = tl.dot(w_desc.load([tile * BLOCK_N, depth + k]), x, second)
        acc = (0.0 + acc) + second
    else:
        for part in tl.static_range(SPLIT):
            second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for k in range(part * depth, part * depth + depth, BLOCK_K):
                second = tl.dot(w_desc.load([tile * BLOCK_N, k]), tl.trans(x_desc.load([row_tile * M, k])), second)
            acc += second
    squares = 0.0
    if squares_ptr is not None:
        t = tl.arange(0, 1 << LEVELS)
        squares = tl.load(squares_ptr + m[:, None] * TILES + t[None, :], mask=(t < TILES)[None, :], other=0.0)
    finish(
        acc, second, squares, None, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, tile, n, m, rows, eps,
        N, K, EPILOGUE, False, TILES, LEVELS, M, BLOCK_N, squares_ptr is not None, 1.0,
    )  # fmt: skip
