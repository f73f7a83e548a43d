"""Attention of chains: rows of one request that follow one another, as plain decoding and drafted chains have them.

With the bits of `attend_kernel`: blocks of BLOCK positions, each with its own maximum, merged in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.attention import merge, merge_all, weigh
from outrider.models.cuda.kernels.dependent import after_previous


@triton.jit(do_not_specialize=["window"])
def attend_chains_kernel(
    qkv_ptr,  # [lanes * PER, (HEADS + 2 KV_HEADS) DIM]
    keys_ptr,  # [blocks, KV_HEADS, BLOCK, DIM]
    values_ptr,
    out_ptr,  # [lanes * PER, HEADS DIM]
    table_ptr,  # int32 [slots, columns]: the blocks of each slot
    slots_ptr,  # int32 [lanes * PER] each
    positions_ptr,
    scratch_ptr,  # int32 [lanes + 1]: the first of its cells of scratch; as many as it sees blocks. Then all they need
    partial_ptr,  # fp32 [KV_HEADS, cells, TILE, DIM]
    stats_ptr,  # fp32 [KV_HEADS, cells, 2, TILE]
    counter_ptr,  # int32 [lanes, KV_HEADS] zeros, left as zeros
    columns,
    cells,
    window,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PER: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One key head of PER rows of one slot, next to each other and in order; or of fewer, and others that only fill up
    the chain, come last and lie before them: what they see does not matter.

    A program that sees all blocks of its rows folds them as they come, and writes what they come to. Where there are
    more than FEW, and twice as many as the chains have on average, and scratch is left for them, every program of the
    rows takes some, and whichever finishes last folds them.
    """
    chain, head, start = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    step = tl.num_programs(2)
    EACH: tl.constexpr = HEADS // KV_HEADS
    LANES: tl.constexpr = TILE // triton.next_power_of_2(PER)  # of the tile per row; those from EACH on are idle
    USED: tl.constexpr = TILE if PER > 1 else triton.next_power_of_2(EACH)
    lane = tl.arange(0, TILE)
    d = tl.arange(0, DIM)
    own = lane // LANES
    real = (lane % LANES < EACH) & (own < PER)
    row = chain * PER + own
    query = (row * (HEADS + 2 * KV_HEADS) + head * EACH + lane % LANES)[:, None] * DIM + d[None, :]
    out = (row * HEADS + head * EACH + lane % LANES)[:, None] * DIM + d[None, :]
    after_previous(DEPENDENT)
    begin = tl.load(positions_ptr + chain * PER)
    table_ptr += tl.load(slots_ptr + chain * PER) * columns
    first_cell = tl.load(scratch_ptr + chain)
    length = begin + own + 1
    oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first = tl.where(window > 0, tl.maximum(begin + 1 - window, 0), 0) // BLOCK
    end = tl.max(tl.load(positions_ptr + row, mask=own < PER, other=0), axis=0) + 1
    last = (end - 1) // BLOCK
    few = tl.maximum(FEW, 2 * tl.load(scratch_ptr + tl.num_programs(0)) // tl.num_programs(0))
    alone = (last - first < few) | (step == 1) | (first_cell + last >= cells)
    if (start == 0) | ((start <= last - first) & (alone == 0)):
        q = tl.load(qkv_ptr + query, mask=real[:, None], other=0.0)  # [TILE, DIM]
        place = (head * BLOCK + tl.arange(0, BLOCK))[:, None] * DIM + d[None, :]
        SIZE: tl.constexpr = KV_HEADS * BLOCK * DIM
        if alone:
            home = tl.load(table_ptr + first).to(tl.int64) * SIZE
            part = tl.zeros([TILE, DIM], dtype=tl.float32)
            total = tl.zeros([TILE], dtype=tl.float32)
            peak = tl.full([TILE], float("-inf"), dtype=tl.float32)
            for block in range(first, last):
                k = tl.load(keys_ptr + home + place)  # [BLOCK, DIM]
                v = tl.load(values_ptr + home + place)
                home = tl.load(table_ptr + block + 1).to(tl.int64) * SIZE  # where the next is, before it is asked for
                its_part, its_total, its_peak = _block(q, k, v, block, length, oldest, scale, BLOCK)
                part, total, peak = merge(part, total, peak, its_part, its_total, its_peak)
            there = (last * BLOCK + tl.arange(0, BLOCK) < end)[:, None]
            k = tl.load(keys_ptr + home + place, mask=there, other=0.0)
            v = tl.load(values_ptr + home + place, mask=there, other=0.0)
            its_part, its_total, its_peak = _block(q, k, v, last, length, oldest, scale, BLOCK)
            part, total, peak = merge(part, total, peak, its_part, its_total, its_peak)
            tl.store(out_ptr + out, part / total[:, None], mask=real[:, None])
        else:
            scratch = head.to(tl.int64) * cells + first_cell
            home = tl.load(table_ptr + first + start).to(tl.int64) * SIZE
            for block in range(first + start, last + 1, step):
                there = (block * BLOCK + tl.arange(0, BLOCK) < end)[:, None]
                k = tl.load(keys_ptr + home + place, mask=there, other=0.0)
                v = tl.load(values_ptr + home + place, mask=there, other=0.0)
                home = tl.load(table_ptr + tl.minimum(block + step, last)).to(tl.int64) * SIZE
                its_part, its_total, its_peak = _block(q, k, v, block, length, oldest, scale, BLOCK)
                its = (scratch + block) * TILE
                tl.store(partial_ptr + its * DIM + lane[:, None] * DIM + d[None, :], its_part, mask=real[:, None])
                tl.store(stats_ptr + its * 2 + lane, its_peak, mask=real)
                tl.store(stats_ptr + its * 2 + TILE + lane, its_total, mask=real)
            tl.debug_barrier()  # every thread's parts are written before one of them says so
            programs = tl.minimum(step, last + 1 - first)
            counter_ptr += chain * KV_HEADS + head
            if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == programs - 1:
                tl.store(counter_ptr, 0)
                if PER == 1:
                    for each in tl.static_range(EACH):
                        merged = _merge_one(partial_ptr, stats_ptr, scratch, first, last, each, TILE, DIM)
                        tl.store(out_ptr + (chain * HEADS + head * EACH + each) * DIM + d, merged)
                else:
                    merged = merge_all(partial_ptr, stats_ptr, scratch, first, last, USED, TILE, DIM)
                    tl.store(out_ptr + out, merged, mask=real[:, None])


@triton.jit
def _block(q, k, v, block, length, oldest, scale, BLOCK: tl.constexpr):
    position = block * BLOCK + tl.arange(0, BLOCK)
    seen = (position[None, :] < length[:, None]) & (position[None, :] >= oldest[:, None])  # [TILE, BLOCK]
    weight, total, peak = weigh(tl.where(seen, tl.dot(q, tl.trans(k)), float("-inf")), scale)
    return tl.dot(weight.to(v.dtype), v), total, peak


@triton.jit
def _merge_one(partial_ptr, stats_ptr, scratch, first, last, lane, TILE: tl.constexpr, DIM: tl.constexpr):
    """What the blocks from `first` to `last` come to for one lane of the tile, in their order [DIM]. Sums and peaks are
    scalars, which every thread has: nothing is exchanged between them."""
    MANY: tl.constexpr = 16
    d = tl.arange(0, DIM)
    part = tl.zeros([DIM], dtype=tl.float32)
    total, peak = 0.0, float("-inf")
    for some in range(first, last + 1, MANY):
        for ahead in tl.static_range(MANY):
            block = some + ahead
            there = block <= last  # one beyond changes nothing
            its = (scratch + block) * TILE
            its_peak = tl.load(stats_ptr + its * 2 + lane, mask=there, other=float("-inf"), cache_modifier=".cg")
            its_total = tl.load(stats_ptr + its * 2 + TILE + lane, mask=there, other=0.0, cache_modifier=".cg")
            cells = partial_ptr + (its + lane) * DIM + d
            its_part = tl.load(cells, mask=d * 0 + block <= last, other=0.0, cache_modifier=".cg")
            higher = tl.maximum(peak, its_peak)
            before = tl.where(peak == float("-inf"), 0.0, tl.exp2(peak - higher))
            now = tl.where(its_peak == float("-inf"), 0.0, tl.exp2(its_peak - higher))
            part = tl.fma(part, before, its_part * now)
            total = tl.fma(total, before, its_total * now)
            peak = higher
    return part / total
