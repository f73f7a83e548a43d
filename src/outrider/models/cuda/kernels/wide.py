"""y = x · Wᵀ for many rows, as fast as they can be multiplied, with the bits of few.

The depth is added up in the parts and in the order of `linear_kernel`, and what becomes of the product is its code.
One program computes all parts of its tile, so nothing goes through memory in between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.linear import GATED, finish


@triton.jit(do_not_specialize=["rows"])
def wide_kernel(
    x,  # [whole tiles of rows, K]: a pointer; COPIED: a descriptor of tiles [M, BLOCK_K]
    w,  # [N, K], GATED: [2 N, K]: likewise, of tiles [BLOCK_N, BLOCK_K]
    bias_ptr,  # from here on as for `linear_kernel`
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
    COPIED: tl.constexpr,
    MULTIPLIER: tl.constexpr = 1.0,
):
    """COPIED: tiles are fetched by the copy engine of compute capability 9.0. PAIRED: two parts of the depth are added
    up side by side, which keeps the multipliers busier."""
    row_tile, tile = _place(tl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N, GROUP)
    top, left = row_tile * M, tile * BLOCK_N
    depth: tl.constexpr = K // SPLIT
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    if EPILOGUE == GATED:
        for k in range(0, depth, BLOCK_K):
            part = tl.trans(_tile(x, top, k, K, M, BLOCK_K, 0, COPIED))
            acc = tl.dot(_tile(w, left, k, K, BLOCK_N, BLOCK_K, N, COPIED), part, acc)
            second = tl.dot(_tile(w, N + left, k, K, BLOCK_N, BLOCK_K, 2 * N, COPIED), part, second)
    elif PAIRED:
        tl.static_assert(SPLIT == 2)
        for k in range(0, depth, BLOCK_K):
            part = tl.trans(_tile(x, top, k, K, M, BLOCK_K, 0, COPIED))
            acc = tl.dot(_tile(w, left, k, K, BLOCK_N, BLOCK_K, N, COPIED), part, acc)
            part = tl.trans(_tile(x, top, depth + k, K, M, BLOCK_K, 0, COPIED))
            second = tl.dot(_tile(w, left, depth + k, K, BLOCK_N, BLOCK_K, N, COPIED), part, second)
        acc = (0.0 + acc) + second
    else:
        for number in tl.static_range(SPLIT):
            second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for k in range(number * depth, number * depth + depth, BLOCK_K):
                part = tl.trans(_tile(x, top, k, K, M, BLOCK_K, 0, COPIED))
                second = tl.dot(_tile(w, left, k, K, BLOCK_N, BLOCK_K, N, COPIED), part, second)
            if SPLIT > 1:
                acc += second
            else:
                acc = second
    m, n = top + tl.arange(0, M), left + tl.arange(0, BLOCK_N)
    squares = 0.0
    if squares_ptr is not None:
        t = tl.arange(0, 1 << LEVELS)
        squares = tl.load(squares_ptr + m[:, None] * TILES + t[None, :], mask=(t < TILES)[None, :], other=0.0)
    finish(
        acc, second, squares, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, tile, n, m, rows, eps,
        N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, squares_ptr is not None, MULTIPLIER,
    )  # fmt: skip


@triton.jit
def _tile(
    source,
    first,
    k,
    K: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    END: tl.constexpr,
    COPIED: tl.constexpr,
):
    """[HEIGHT, WIDTH] of a matrix whose rows are K long, from row `first` and column k on. Rows from END on (0: there
    are none) hold anything; nobody keeps what comes of them."""
    if COPIED:
        tile = source.load([first, k])
    else:
        row = first + tl.arange(0, HEIGHT)
        if END > 0:
            row = tl.minimum(row, END - 1)
        tile = tl.load(source + (row.to(tl.int64) * K)[:, None] + (k + tl.arange(0, WIDTH))[None, :])
    return tile


@triton.jit
def _place(row_tiles, tiles, GROUP: tl.constexpr):
    """Which tile of rows and of columns a program computes: GROUP tiles of rows side by side share what lies in L2."""
    program = tl.program_id(0)
    group = program // (GROUP * tiles)
    first = group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = program % (GROUP * tiles)
    return first + within % height, within // height
