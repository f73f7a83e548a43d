"""Attention of rows over their own paths through a static cache, chains and trees alike."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous
from outrider.models.cuda.kernels.fold import fold

BLOCK = 128
"""Positions reduced together; part of what a bit-exact result means, so never tuned."""

TILE = 16
"""Query vectors per program: the fewest a matrix instruction takes."""


_LEVELS = tl.constexpr(BLOCK.bit_length() - 1)


@triton.jit
def weigh(score, scale):
    """Weights of rows over one block, their sums, and what they are relative to. Scores [M, BLOCK] a row does not see
    are -inf.

    `scale` is that of attention times log2(e), so that weights are powers of two.
    """
    peak = tl.max(score, axis=1) * scale
    known = tl.where(peak == float("-inf"), 0.0, peak)
    weight = tl.exp2(tl.fma(score, scale, -known[:, None]))
    return weight, fold(weight, _LEVELS), peak


@triton.jit
def merge(part, total, peak, its_part, its_total, its_peak):
    """What blocks so far came to, and one block more."""
    higher = tl.maximum(peak, its_peak)
    before = tl.where(peak == float("-inf"), 0.0, tl.exp2(peak - higher))
    now = tl.where(its_peak == float("-inf"), 0.0, tl.exp2(its_peak - higher))
    part = tl.fma(part, before[:, None], its_part * now[:, None])
    return part, tl.fma(total, before, its_total * now), higher


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
    USED: tl.constexpr = TILE if TOGETHER > 1 else triton.next_power_of_2(HEADS_EACH)
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
            weight, total, peak = weigh(tl.where(seen, tl.dot(q, tl.trans(k)), float("-inf")), scale)
            part = tl.dot(weight.to(v.dtype), v)  # [TILE, DIM]
            programs = apart - first + TOGETHER * (last + 1 - apart)
            cell = group * KV_HEADS + head
            scratch = cell.to(tl.int64) * blocks
            if programs == 1:
                at = (row * HEADS + head * HEADS_EACH + lane % LANES)[:, None] * DIM + d[None, :]
                tl.store(out_ptr + at, part / total[:, None], mask=real[:, None])
            else:
                mine = real & ((lane // LANES == r) | (lane < tl.where(block < apart, TILE, 0)))
                its = (scratch + block) * TILE
                tl.store(partial_ptr + its * DIM + lane[:, None] * DIM + d[None, :], part, mask=mine[:, None])
                tl.store(stats_ptr + its * 2 + lane, peak, mask=mine)
                tl.store(stats_ptr + its * 2 + TILE + lane, total, mask=mine)
                tl.debug_barrier()  # every thread's part is written before one of them says so
                if tl.atomic_add(counter_ptr + cell, 1, sem="acq_rel") == programs - 1:
                    tl.store(counter_ptr + cell, 0)
                    used = tl.arange(0, USED)
                    its_row = group * TOGETHER + used // LANES
                    kept = (used % LANES < HEADS_EACH) & (its_row < rows)
                    at = (its_row * HEADS + head * HEADS_EACH + used % LANES)[:, None] * DIM + d[None, :]
                    merged = _merge_all(partial_ptr, stats_ptr, scratch, first, last, USED, TILE, DIM)
                    tl.store(out_ptr + at, merged, mask=kept[:, None])


@triton.jit
def _merge_all(
    partial_ptr,
    stats_ptr,
    scratch,
    first,
    last,
    USED: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
):
    """What the blocks from `first` to `last` come to, in their order [USED, DIM]."""
    part = tl.zeros([USED, DIM], dtype=tl.float32)
    total = tl.zeros([USED], dtype=tl.float32)
    peak = tl.full([USED], float("-inf"), dtype=tl.float32)
    MANY: tl.constexpr = 4 if USED * DIM > 1024 else 16
    rest = first + (last + 1 - first) // MANY * MANY
    for some in range(first, rest, MANY):
        part, total, peak = _merge_blocks(
            part, total, peak, partial_ptr, stats_ptr, scratch, some, last, MANY, USED, TILE, DIM
        )
    for some in range(rest, last + 1, 4):
        part, total, peak = _merge_blocks(
            part, total, peak, partial_ptr, stats_ptr, scratch, some, last, 4, USED, TILE, DIM
        )
    return part / total[:, None]


@triton.jit
def _merge_blocks(
    part,
    total,
    peak,
    partial_ptr,
    stats_ptr,
    scratch,
    some,
    last,
    COUNT: tl.constexpr,
    USED: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
):
    """COUNT blocks from scratch, all asked for at once; one beyond the last changes nothing."""
    lane = tl.arange(0, USED)
    cells = lane[:, None] * DIM + tl.arange(0, DIM)[None, :]
    for ahead in tl.static_range(COUNT):
        there = lane * 0 + some + ahead <= last
        its = (scratch + some + ahead) * TILE
        its_peak = tl.load(stats_ptr + its * 2 + lane, mask=there, other=float("-inf"), cache_modifier=".cg")
        its_total = tl.load(stats_ptr + its * 2 + TILE + lane, mask=there, other=0.0, cache_modifier=".cg")
        its_part = tl.load(partial_ptr + its * DIM + cells, mask=there[:, None], other=0.0, cache_modifier=".cg")
        part, total, peak = merge(part, total, peak, its_part, its_total, its_peak)
    return part, total, peak
