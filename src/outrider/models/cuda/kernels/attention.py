"""Attention of rows over their own paths through a cache of blocks, chains and trees alike."""

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
    keys_ptr,  # [blocks, KV_HEADS, BLOCK, DIM]
    values_ptr,
    out_ptr,  # [rows, HEADS DIM]
    table_ptr,  # int32 [slots, columns]: the blocks of each slot
    slots_ptr,  # int32 [rows] each
    positions_ptr,
    bases_ptr,
    paths_ptr,  # int32 [rows, PATH]: cache index of position base + j
    scratch_ptr,  # int32 [row groups]: the first of its cells of scratch; as many as it sees blocks
    partial_ptr,  # fp32 [KV_HEADS, cells, TILE, DIM]
    stats_ptr,  # fp32 [KV_HEADS, cells, 2, TILE]
    counter_ptr,  # int32 [row groups, KV_HEADS] zeros, left as zeros
    rows,
    columns,
    cells,
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
    depend on its path alone. Where there is no scratch left for a group, one program of each row takes all blocks in
    that order. How long the paths are is read here, so one recorded launch serves any context.
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
    # Tables are older than the kernel before the one that this follows, which has ended: they need no waiting for.
    length = tl.load(positions_ptr + row, mask=row < rows, other=0, cache_modifier=".cg") + 1
    base = tl.load(bases_ptr + row, mask=row < rows, other=1 << 30, cache_modifier=".cg")
    slot = tl.load(slots_ptr + row, mask=row < rows, other=0, cache_modifier=".cg")
    lead = tl.minimum(group * TOGETHER + r, rows - 1)
    its_length = tl.load(positions_ptr + lead, cache_modifier=".cg") + 1
    its_base = tl.load(bases_ptr + lead, cache_modifier=".cg")
    table_ptr += tl.load(slots_ptr + lead, cache_modifier=".cg") * columns
    home = tl.load(table_ptr + start, mask=start < columns, other=0, cache_modifier=".cg")
    first_cell = tl.load(scratch_ptr + group, cache_modifier=".cg")
    oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first = tl.min(tl.where(row < rows, oldest, 1 << 30), axis=0) // BLOCK
    last = (tl.max(length, axis=0) - 1) // BLOCK
    one_slot = tl.max(slot, axis=0) == tl.min(tl.where(row < rows, slot, 1 << 30), axis=0)
    apart = tl.where(one_slot, tl.maximum(first, tl.min(base, axis=0) // BLOCK), first)  # blocks below are shared
    query = (row * (HEADS + 2 * KV_HEADS) + head * HEADS_EACH + lane % LANES)[:, None] * DIM + d[None, :]
    after_previous(DEPENDENT)
    q = tl.load(qkv_ptr + query, mask=real[:, None], other=0.0)  # [TILE, DIM]
    if first_cell + last < cells:
        scratch = head.to(tl.int64) * cells + first_cell
        for block in range(start, last + 1, step):
            following = tl.load(table_ptr + block + step, mask=block + step < columns, other=0)
            if (block >= first) & ((block >= apart) | (r == 0)):
                part, total, peak = _attend_block(
                    q, length, oldest, its_length, its_base, home, lead, head, block, keys_ptr, values_ptr, table_ptr,
                    paths_ptr, scale, KV_HEADS, DIM, PATH, BLOCK,
                )  # fmt: skip
                programs = apart - first + TOGETHER * (last + 1 - apart)
                cell = group * KV_HEADS + head
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
                        merged = merge_all(partial_ptr, stats_ptr, scratch, first, last, USED, TILE, DIM)
                        tl.store(out_ptr + at, merged, mask=kept[:, None])
            home = following
    elif start == 0:
        part = tl.zeros([TILE, DIM], dtype=tl.float32)
        total = tl.zeros([TILE], dtype=tl.float32)
        peak = tl.full([TILE], float("-inf"), dtype=tl.float32)
        for block in tl.range(first, last + 1, num_stages=1):  # what is fetched ahead takes shared memory from all
            its_part, its_total, its_peak = _attend_block(
                q, length, oldest, its_length, its_base, tl.load(table_ptr + block), lead, head, block, keys_ptr,
                values_ptr, table_ptr, paths_ptr, scale, KV_HEADS, DIM, PATH, BLOCK,
            )  # fmt: skip
            part, total, peak = merge(part, total, peak, its_part, its_total, its_peak)
        at = (row * HEADS + head * HEADS_EACH + lane % LANES)[:, None] * DIM + d[None, :]
        tl.store(out_ptr + at, part / total[:, None], mask=(real & (lane // LANES == r))[:, None])


@triton.jit
def _attend_block(
    q,  # [TILE, DIM]
    length,  # [TILE]: of what each sees
    oldest,
    its_length,  # of the path of row `lead`, and how much of it lies in order
    its_base,
    home,  # the block of the cache
    lead,
    head,
    block,  # the block of the path
    keys_ptr,
    values_ptr,
    table_ptr,  # of the slot
    paths_ptr,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PATH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile against one block of the path of row `lead`: parts, sums, and what they are relative to."""
    d = tl.arange(0, DIM)
    position = block * BLOCK + tl.arange(0, BLOCK)
    ahead = (position >= its_base) & (position < its_length)
    index = tl.load(paths_ptr + lead * PATH + position - its_base, mask=ahead, other=0)
    home = tl.where(ahead, tl.load(table_ptr + index // BLOCK, mask=ahead, other=0), home)
    cell = (home.to(tl.int64) * KV_HEADS + head) * BLOCK + tl.where(ahead, index, position) % BLOCK
    place = cell[:, None] * DIM + d[None, :]
    k = tl.load(keys_ptr + place, mask=(position < its_length)[:, None], other=0.0)  # [BLOCK, DIM]
    v = tl.load(values_ptr + place, mask=(position < its_length)[:, None], other=0.0)
    seen = (position[None, :] < length[:, None]) & (position[None, :] >= oldest[:, None])  # [TILE, BLOCK]
    weight, total, peak = weigh(tl.where(seen, tl.dot(q, tl.trans(k)), float("-inf")), scale)
    return tl.dot(weight.to(v.dtype), v), total, peak


@triton.jit
def merge_all(
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
