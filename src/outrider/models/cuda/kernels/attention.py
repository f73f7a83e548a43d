"""Attention of rows over their own paths through a static cache, chains and trees alike."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous

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
