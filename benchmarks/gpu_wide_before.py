"""Kernels as they were, to compare with."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous

BLOCK_N = 64
"""Columns of a tile wherever sums of squares are kept per tile; part of what a bit-exact result means."""

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
def _fold(x, M: tl.constexpr, LEVELS: tl.constexpr):
    """The sums of x's rows [M, 2^LEVELS], in one order whatever M is: a library sum chooses its own by shape."""
    for level in tl.static_range(LEVELS):
        even, odd = tl.split(tl.reshape(x, [M, 1 << (LEVELS - 1 - level), 2]))
        x = even + odd
    return tl.reshape(x, [M])


@triton.jit
def _prefetch(ptrs):
    """Ask for the cache lines at `ptrs` to come to L2; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ptrs], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x_ptr,  # [rows, K]
    w_ptr,  # [N, K], GATED: [2 N, K]
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
    MULTIPLIER: tl.constexpr = 1.0,  # of what is stored or added; not for GATED
):
    # Row tiles first: those of one tile of weights run together, and it comes from memory once.
    row_tile, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = row_tile * M + tl.arange(0, M)
    k = tl.arange(0, BLOCK_K)
    depth: tl.constexpr = K // SPLIT
    live = m < rows
    inside = n < N
    w_ptrs = w_ptr + (n.to(tl.int64) * K)[:, None] + (part * depth + k)[None, :]
    if DEPENDENT:
        lines = tl.arange(0, (BLOCK_K + 63) // 64) * 64
        for ahead in tl.static_range(PREFETCH):
            start = (n.to(tl.int64) * K)[:, None] + (part * depth + ahead * BLOCK_K + lines)[None, :]
            _prefetch(w_ptr + start)
            if EPILOGUE == GATED:
                _prefetch(w_ptr + start + N * K)
    after_previous(DEPENDENT)
    source = m
    if index_ptr is not None:
        source = tl.load(index_ptr + m, mask=live, other=0)
    x_ptrs = x_ptr + (source * K)[None, :] + (part * depth + k)[:, None]
    if squares_ptr is not None:  # asked for now, needed at the end
        t = tl.arange(0, 1 << LEVELS)
        squares_at = squares_ptr + source[:, None] * TILES + t[None, :]
        squares = tl.load(squares_at, mask=live[:, None] & (t < TILES)[None, :], other=0.0)
    acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    up = tl.zeros([BLOCK_N, M], dtype=tl.float32)
    for _ in range(0, depth, BLOCK_K):
        x = tl.load(x_ptrs, mask=live[None, :], other=0.0)  # [BLOCK_K, M]
        w = tl.load(w_ptrs, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
        acc = tl.dot(w, x, acc)
        if EPILOGUE == GATED:
            w = tl.load(w_ptrs + N * K, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
            up = tl.dot(w, x, up)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    last = True
    if SPLIT > 1:
        place = row_tile * tl.num_programs(1) + tile
        scratch = tl.arange(0, BLOCK_N)[:, None] * M + tl.arange(0, M)[None, :]
        block = partial_ptr + place.to(tl.int64) * SPLIT * BLOCK_N * M + scratch
        tl.store(block + part * BLOCK_N * M, acc)
        tl.debug_barrier()  # every thread's part is written before one of them says so
        last = tl.atomic_add(counter_ptr + place, 1, sem="acq_rel") == SPLIT - 1
        if last:
            tl.store(counter_ptr + place, 0)
            acc = tl.zeros([BLOCK_N, M], dtype=tl.float32)
            for other in tl.static_range(SPLIT):
                acc += tl.load(block + other * BLOCK_N * M, cache_modifier=".cg")
    if last:
        if squares_ptr is not None:
            scale = tl.rsqrt(_fold(squares, M, LEVELS) / K + eps)[None, :]
            acc = acc * scale
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
            total = rounded.to(tl.float32)
            gain = tl.load(gain_ptr + n, mask=inside, other=0.0)
            tl.store(y_ptr + at, total * gain[:, None], mask=kept)
            tl.store(squares_out_ptr + m * TILES + tile, tl.sum(total * total, axis=0), mask=live)
        else:
            tl.store(y_ptr + at, acc, mask=kept)


BLOCK = 128
"""Positions reduced together; part of what a bit-exact result means, so never tuned."""

TILE = 16
"""Query vectors per program: the fewest a matrix instruction takes."""


@triton.jit(do_not_specialize=["rows", "window"])
def attend_kernel(
    qkv_ptr,  # [rows, (HEADS + 2 KV_HEADS) DIM]
    keys_ptr,  # [slots, KV_HEADS, capacity, DIM]
    values_ptr,
    out_ptr,  # [rows, HEADS DIM]
    slots_ptr,  # int32 [rows] each
    positions_ptr,
    bases_ptr,
    paths_ptr,  # int32 [rows, PATH]: cache index of position base + j
    partial_ptr,  # fp32 [row groups, KV_HEADS, blocks, TILE, DIM]
    stats_ptr,  # fp32 [row groups, KV_HEADS, blocks, 2, TILE]
    counter_ptr,  # int32 [row groups, KV_HEADS] zeros, left as zeros
    rows,
    capacity,
    blocks,  # of a slot: how scratch is laid out
    window,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PATH: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """TOGETHER neighbouring rows, one key head, every `step`-th block of BLOCK absolute positions along their paths.

    Rows of one slot whose prefix covers a block share its keys and one program; for other blocks each row has its
    own. Whichever program of a group finishes last folds the blocks together in order of position, so a row's bits
    depend on its path alone. How long the paths are is read here, so one recorded launch serves any context.
    """
    group, head = tl.program_id(0), tl.program_id(1)
    step = tl.num_programs(2) // TOGETHER
    start, r = tl.program_id(2) % step, tl.program_id(2) // step
    HEADS_EACH: tl.constexpr = HEADS // KV_HEADS
    LANES: tl.constexpr = TILE // TOGETHER  # of the tile per row; those from HEADS_EACH on are idle
    lane = tl.arange(0, TILE)
    d = tl.arange(0, DIM)
    row = group * TOGETHER + lane // LANES  # [TILE]
    real = (lane % LANES < HEADS_EACH) & (row < rows)
    after_previous(DEPENDENT)
    length = tl.load(positions_ptr + row, mask=row < rows, other=0) + 1
    base = tl.load(bases_ptr + row, mask=row < rows, other=1 << 30)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=0)
    oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first = tl.min(tl.where(row < rows, oldest, 1 << 30), axis=0) // BLOCK
    last = (tl.max(length, axis=0) - 1) // BLOCK
    one_slot = tl.max(slot, axis=0) == tl.min(tl.where(row < rows, slot, 1 << 30), axis=0)
    apart = tl.where(one_slot, tl.maximum(first, tl.min(base, axis=0) // BLOCK), first)  # blocks below are shared
    query = (row * (HEADS + 2 * KV_HEADS) + head * HEADS_EACH + lane % LANES)[:, None] * DIM + d[None, :]
    q = tl.load(qkv_ptr + query, mask=real[:, None], other=0.0)  # [TILE, DIM]
    for block in range(start, last + 1, step):
        if (block >= first) & ((block >= apart) | (r == 0)):
            lead = tl.minimum(group * TOGETHER + r, rows - 1)
            position = block * BLOCK + tl.arange(0, BLOCK)
            its_length, its_base = tl.load(positions_ptr + lead) + 1, tl.load(bases_ptr + lead)
            ahead = (position >= its_base) & (position < its_length)
            index = tl.load(paths_ptr + lead * PATH + position - its_base, mask=ahead, other=0)
            index = tl.where(position < its_base, position, index)
            home = (tl.load(slots_ptr + lead).to(tl.int64) * KV_HEADS + head) * capacity * DIM
            place = home + index[:, None] * DIM + d[None, :]
            k = tl.load(keys_ptr + place, mask=(position < its_length)[:, None], other=0.0)  # [BLOCK, DIM]
            v = tl.load(values_ptr + place, mask=(position < its_length)[:, None], other=0.0)
            seen = (position[None, :] < length[:, None]) & (position[None, :] >= oldest[:, None])  # [TILE, BLOCK]
            score = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
            peak = tl.max(score, axis=1)
            weight = tl.where(seen, tl.exp(score - peak[:, None]), 0.0)
            total = tl.sum(weight, axis=1)
            part = tl.dot(weight.to(v.dtype), v)  # [TILE, DIM]
            programs = apart - first + TOGETHER * (last + 1 - apart)
            cell = group * KV_HEADS + head
            folding = True
            if programs > 1:
                mine = (lane // LANES == r) | (lane < tl.where(block < apart, TILE, 0))
                scratch = (cell * blocks + block).to(tl.int64) * TILE
                cells = lane[:, None] * DIM + d[None, :]
                tl.store(partial_ptr + scratch * DIM + cells, part, mask=mine[:, None])
                tl.store(stats_ptr + scratch * 2 + lane, peak, mask=mine)
                tl.store(stats_ptr + scratch * 2 + TILE + lane, total, mask=mine)
                tl.debug_barrier()  # every thread's part is written before one of them says so
                folding = tl.atomic_add(counter_ptr + cell, 1, sem="acq_rel") == programs - 1
                if folding:
                    tl.store(counter_ptr + cell, 0)
                    peak = tl.full([TILE], float("-inf"), dtype=tl.float32)
                    total = tl.zeros([TILE], dtype=tl.float32)
                    part = tl.zeros([TILE, DIM], dtype=tl.float32)
                    for other in range(first, last + 1):
                        scratch = (cell * blocks + other).to(tl.int64) * TILE
                        its_peak = tl.load(stats_ptr + scratch * 2 + lane, cache_modifier=".cg")
                        its_total = tl.load(stats_ptr + scratch * 2 + TILE + lane, cache_modifier=".cg")
                        its_part = tl.load(partial_ptr + scratch * DIM + cells, cache_modifier=".cg")
                        higher = tl.maximum(peak, its_peak)
                        before = tl.where(peak == float("-inf"), 0.0, tl.exp(peak - higher))
                        now = tl.where(its_peak == float("-inf"), 0.0, tl.exp(its_peak - higher))
                        part = part * before[:, None] + its_part * now[:, None]
                        total = total * before + its_total * now
                        peak = higher
            if folding:
                at = (row * HEADS + head * HEADS_EACH + lane % LANES)[:, None] * DIM + d[None, :]
                tl.store(out_ptr + at, part / total[:, None], mask=real[:, None])
