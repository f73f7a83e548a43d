"""y = x · Wᵀ for few rows, reading W once at memory speed.

A program computes BLOCK_N outputs of all rows of a tile over one of SPLIT equal parts of the depth. The parts are
added in order by whichever program of a tile finishes last. So every output is summed in one order, fixed by the
matrix alone: its bits depend neither on how many rows there are nor on which of them it is.

RMSNorm costs no pass of its own. Whoever writes the residual stream also writes it times the next norm's gain, and the
sums of squares of each tile; the next product adds those up and scales its result by 1/rms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous
from outrider.models.cuda.kernels.eighth import widened
from outrider.models.cuda.kernels.fold import fold

BLOCK_N = 64
"""Columns of a tile wherever sums of squares are kept per tile; part of what a bit-exact result means."""
_COLUMNS, _LEVELS = tl.constexpr(BLOCK_N), tl.constexpr(BLOCK_N.bit_length() - 1)

STORE = tl.constexpr(0)
"""y = x·Wᵀ + bias."""
ADD = tl.constexpr(1)
"""residual += x·Wᵀ + bias; also writes it times `gain`, and its squares per tile."""
GATED = tl.constexpr(2)
"""y = act(x·Gᵀ) * (x·Uᵀ), W holding G's rows, then U's."""


@triton.jit
def _activate(x, GELU: tl.constexpr):
    if GELU:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * tl.sigmoid(2 * inner)  # (1 + tanh(z)) / 2 = sigmoid(2z)
    return x * tl.sigmoid(x)


@triton.jit
def finish(
    acc,  # fp32 [BLOCK_N, M]: the product; GATED: of the gate
    up,
    squares,  # fp32 [M, 2^LEVELS], or anything where not NORMED
    scales_ptr,
    bias_ptr,
    y_ptr,
    residual_ptr,
    gain_ptr,
    squares_out_ptr,
    tile,  # of columns, and which those are [BLOCK_N]
    n,
    m,  # rows [M]
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
    NORMED: tl.constexpr,
    MULTIPLIER: tl.constexpr,
):
    """What becomes of a product, whatever tile it was computed in."""
    live, inside = m < rows, n < N
    if scales_ptr is not None:
        acc = acc * tl.load(scales_ptr + n, mask=inside, other=0.0)[:, None]
        if EPILOGUE == GATED:
            up = up * tl.load(scales_ptr + N + n, mask=inside, other=0.0)[:, None]
    if NORMED:
        scale = tl.rsqrt(fold(squares, LEVELS) / K + eps)[None, :]
        acc = acc * scale
        if EPILOGUE == GATED:
            up = up * scale
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n, mask=inside, other=0.0)[:, None]
        if EPILOGUE == GATED:
            up += tl.load(bias_ptr + N + n, mask=inside, other=0.0)[:, None]
    if MULTIPLIER != 1.0:
        acc = acc * MULTIPLIER
    at = (m.to(tl.int64) * N)[None, :] + n[:, None]
    kept = live[None, :] & inside[:, None]
    if EPILOGUE == GATED:
        tl.store(y_ptr + at, _activate(acc, GELU) * up, mask=kept)
    elif EPILOGUE == ADD:
        total = acc + tl.load(residual_ptr + at, mask=kept, other=0.0).to(tl.float32)
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + at, rounded, mask=kept)
        total = tl.where(kept, rounded.to(tl.float32), 0.0)
        gain = tl.load(gain_ptr + n, mask=inside, other=0.0)
        tl.store(y_ptr + at, total * gain[:, None], mask=kept)
        EACH: tl.constexpr = BLOCK_N // _COLUMNS
        sums = fold(tl.reshape(tl.trans(total * total), [M * EACH, _COLUMNS]), _LEVELS)
        its = tile * EACH + tl.arange(0, EACH)
        written = live[:, None] & (its < TILES)[None, :]
        tl.store(squares_out_ptr + m[:, None] * TILES + its[None, :], tl.reshape(sums, [M, EACH]), mask=written)
    else:
        tl.store(y_ptr + at, acc, mask=kept)


@triton.jit
def _prefetch(ptrs):
    """Ask for the cache lines at `ptrs` to come to L2; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ptrs], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr,  # [rows, K]
    w_ptr,  # [N, K], GATED: [2 N, K]; of 8 bits: words [N, K / 4] of groups of BLOCK_K
    scales_ptr,  # fp32 [N] (GATED: [2 N]), one for each row of W; None: all 1
    bias_ptr,  # fp32 [N] (GATED: [2 N]), or None
    index_ptr,  # which row of x (and of squares) row i is; None: row i
    squares_ptr,  # fp32 [rows, TILES]: sums of squares of x's source; None: x is not normalised
    y_ptr,  # [rows, N]; ADD: the residual times gain
    residual_ptr,  # ADD: [rows, N], read and written
    gain_ptr,  # ADD: fp32 [N]
    squares_out_ptr,  # ADD: fp32 [rows, TILES]
    partial_ptr,  # SPLIT > 1: fp32 scratch
    counter_ptr,  # SPLIT > 1: int32 zeros, left as zeros
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
    PREFETCH: tl.constexpr,
    DEPENDENT: tl.constexpr,
    UNROLLED: tl.constexpr = 1,  # tiles of a stage
    INTEGERS: tl.constexpr = False,  # see `widened`
    PACKED: tl.constexpr = False,
    MULTIPLIER: tl.constexpr = 1.0,  # of what is stored or added; not for GATED
):
    # Row tiles first: those of one tile of weights run together, and it comes from memory once.
    row_tile, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = row_tile * M + tl.arange(0, M)
    PARTS: tl.constexpr = 4 if w_ptr.dtype.element_ty == tl.int32 else 1
    STEP: tl.constexpr = BLOCK_K // PARTS
    WIDTH: tl.constexpr = K // PARTS  # of a row of W
    k = tl.arange(0, STEP)
    depth: tl.constexpr = K // SPLIT
    live = m < rows
    inside = n < N
    w_ptrs = w_ptr + (n.to(tl.int64) * WIDTH)[:, None] + (part * (depth // PARTS) + k)[None, :]
    if DEPENDENT:
        LINE: tl.constexpr = 1024 // w_ptr.dtype.element_ty.primitive_bitwidth
        lines = tl.arange(0, (STEP + LINE - 1) // LINE) * LINE
        for ahead in tl.static_range(PREFETCH):
            start = (n.to(tl.int64) * WIDTH)[:, None] + (part * (depth // PARTS) + ahead * STEP + lines)[None, :]
            _prefetch(w_ptr + start)
            if EPILOGUE == GATED:
                _prefetch(w_ptr + start + N * WIDTH)
    after_previous(DEPENDENT)
    source = m
    if index_ptr is not None:
        source = tl.load(index_ptr + m, mask=live, other=0)
    x_ptrs = x_ptr + (source * K)[None, :] + (part * depth + k)[:, None]
    squares = 0.0
    if squares_ptr is not None:  # asked for now, needed at the end
        t = tl.arange(0, 1 << LEVELS)
        squares_at = squares_ptr + source[:, None] * TILES + t[None, :]
        squares = tl.load(squares_at, mask=live[:, None] & (t < TILES)[None, :], other=0.0)
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    up = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    for _ in range(0, depth, BLOCK_K * UNROLLED):
        for _ in tl.static_range(UNROLLED):
            w = tl.load(w_ptrs, mask=inside[:, None], other=0, eviction_policy="evict_first")
            second = w
            if EPILOGUE == GATED:
                second = tl.load(w_ptrs + N * WIDTH, mask=inside[:, None], other=0, eviction_policy="evict_first")
            for i in tl.static_range(PARTS):
                x = tl.load(x_ptrs + i * STEP, mask=live[None, :], other=0.0)  # [STEP, M]
                acc = tl.dot(widened(w, x, i, INTEGERS, PACKED), x, acc)
                if EPILOGUE == GATED:
                    up = tl.dot(widened(second, x, i, INTEGERS, PACKED), x, up)
            x_ptrs += BLOCK_K
            w_ptrs += STEP
    last = True
    if SPLIT > 1:
        place = row_tile * tl.num_programs(1) + tile
        scratch = tl.arange(0, BLOCK_N)[:, None] * M + tl.arange(0, M)[None, :]
        block = partial_ptr + place.to(tl.int64) * SPLIT * BLOCK_N * M + scratch
        tl.store(block + part * BLOCK_N * M, acc, mask=live[None, :])
        tl.debug_barrier()  # every thread's part is written before one of them says so
        last = tl.atomic_add(counter_ptr + place, 1, sem="acq_rel") == SPLIT - 1
        if last:
            tl.store(counter_ptr + place, 0)
            acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for other in tl.static_range(SPLIT):
                acc += tl.load(block + other * BLOCK_N * M, mask=live[None, :], other=0.0, cache_modifier=".cg")
    if last:
        finish(
            acc, up, squares, scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr,
            tile, n, m, rows, eps, N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, squares_ptr is not None, MULTIPLIER,
        )  # fmt: skip
