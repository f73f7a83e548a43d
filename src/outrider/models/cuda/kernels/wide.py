"""y = x · Wᵀ for many rows, as fast as they can be multiplied, with the bits of few.

The depth is added up in the parts and in the order of `linear_kernel`, and what becomes of the product is its code.
One program computes all parts of its tile, so nothing goes through memory in between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.eighth import widened
from outrider.models.cuda.kernels.linear import GATED, finish


@triton.jit(do_not_specialize=["rows"])
def wide_kernel(
    x,  # [whole tiles of rows, K]: a pointer; COPIED: a descriptor of tiles [M, BLOCK_K / PARTS]
    w,  # [N, K], GATED: [2 N, K], or words of four, as for `linear_kernel`: likewise
    scales_ptr,  # from here on as for `linear_kernel`
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
    COPIED: tl.constexpr,
    PARTS: tl.constexpr = 1,  # weights to a word
    INTEGERS: tl.constexpr = False,
    PACKED: tl.constexpr = False,
    MULTIPLIER: tl.constexpr = 1.0,
):
    """COPIED: tiles are fetched by the copy engine of compute capability 9.0. PAIRED: two parts of the depth are added
    up side by side, which keeps the multipliers busier."""
    row_tile, tile = _place(tl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N, GROUP)
    top, left = row_tile * M, tile * BLOCK_N
    depth: tl.constexpr = K // SPLIT
    STEP: tl.constexpr = BLOCK_K // PARTS
    WIDTH: tl.constexpr = K // PARTS  # of a row of W
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    if EPILOGUE == GATED:
        for k in range(0, depth, BLOCK_K):
            gate = _tile(w, left, k // PARTS, WIDTH, BLOCK_N, STEP, N, COPIED)
            up = _tile(w, N + left, k // PARTS, WIDTH, BLOCK_N, STEP, 2 * N, COPIED)
            for i in tl.static_range(PARTS):
                part = tl.trans(_tile(x, top, k + i * STEP, K, M, STEP, 0, COPIED))
                acc = tl.dot(widened(gate, part, i, INTEGERS, PACKED), part, acc)
                second = tl.dot(widened(up, part, i, INTEGERS, PACKED), part, second)
    elif PAIRED:
        tl.static_assert(SPLIT == 2)
        for k in range(0, depth, BLOCK_K):
            one = _tile(w, left, k // PARTS, WIDTH, BLOCK_N, STEP, N, COPIED)
            other = _tile(w, left, (depth + k) // PARTS, WIDTH, BLOCK_N, STEP, N, COPIED)
            for i in tl.static_range(PARTS):
                part = tl.trans(_tile(x, top, k + i * STEP, K, M, STEP, 0, COPIED))
                acc = tl.dot(widened(one, part, i, INTEGERS, PACKED), part, acc)
                part = tl.trans(_tile(x, top, depth + k + i * STEP, K, M, STEP, 0, COPIED))
                second = tl.dot(widened(other, part, i, INTEGERS, PACKED), part, second)
        acc = (0.0 + acc) + second
    else:
        for number in tl.static_range(SPLIT):
            second = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for k in range(number * depth, number * depth + depth, BLOCK_K):
                one = _tile(w, left, k // PARTS, WIDTH, BLOCK_N, STEP, N, COPIED)
                for i in tl.static_range(PARTS):
                    part = tl.trans(_tile(x, top, k + i * STEP, K, M, STEP, 0, COPIED))
                    second = tl.dot(widened(one, part, i, INTEGERS, PACKED), part, second)
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
        acc, second, squares, scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr,
        tile, n, m, rows, eps, N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, squares_ptr is not None, MULTIPLIER,
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
