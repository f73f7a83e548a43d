"""`attend_chains_kernel` for compute capability 9.0 where requests are few and contexts long, with its bits: one warp
fetches blocks, as many ahead as shared memory holds, one group of four attends.

A cache of 32,000 positions is read as fast as memory goes only if every multiprocessor always has some of it under way,
and if what blocks come to is then merged by more than one of them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from outrider.models.cuda.kernels.dependent_hopper import after_previous, wait_for_previous
from outrider.models.cuda.kernels.fetching import meet
from outrider.models.cuda.kernels.prompt_hopper import clear, fetch_block, merge, weigh

GIVEN_UP = gl.constexpr(1 << 16)
"""What a program that gives up waiting adds to the counter; one that is done adds 1."""

ROWS = 64
"""Query vectors of a program, at most: what a group of warps multiplies at once."""
REGISTERS = 128
"""Of a thread, as if all had the same: eight warps are what the roles take, the one that fetches counting for four."""


@gluon.jit(do_not_specialize=["window", "few"])
def chain_hopper_kernel(
    qkv_ptr,  # [chains * PER, (HEADS + 2 KV_HEADS) DIM]
    keys,  # descriptor of [blocks * KV_HEADS * BLOCK, DIM], in tiles [BLOCK, DIM]
    values,
    out_ptr,  # from here on as for `attend_chains_kernel`
    table_ptr,
    slots_ptr,
    positions_ptr,
    scratch_ptr,
    partial_ptr,
    stats_ptr,
    counter_ptr,  # int32 [chains, KV_HEADS], set to zero before: programs that are done, and those that do not wait
    columns,
    cells,
    window,
    scale,
    few,  # blocks that one program takes alone; EVEN: and so many that most have half of
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    DIM: gl.constexpr,
    PER: gl.constexpr,
    TILE: gl.constexpr,
    BLOCK: gl.constexpr,
    M: gl.constexpr,
    STAGES: gl.constexpr,
    PATIENCE: gl.constexpr,
    EVEN: gl.constexpr,
):
    """One key head of PER rows of one slot, as `attend_chains_kernel` takes them: every `step`-th block of theirs.

    Programs wait for one another, but not for ever, and then merge what blocks came to, each some of the query vectors.
    The last to come finds all blocks done, and merges all of them if somebody has given up waiting: so none depends on
    others running beside it.
    """
    chain, head, start = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    step = gl.num_programs(2)
    # Tables are older than the kernel before the one that this follows, which has ended: they need no waiting for.
    begin = gl.load(positions_ptr + chain * PER, cache_modifier=".cg")
    blocks_ptr = table_ptr + gl.load(slots_ptr + chain * PER, cache_modifier=".cg") * columns
    first_cell = gl.load(scratch_ptr + chain, cache_modifier=".cg")
    first = gl.where(window > 0, gl.maximum(begin + 1 - window, 0), 0) // BLOCK
    end = begin + 1 if PER == 1 else _end(positions_ptr + chain * PER, PER, M // _lanes(HEADS, KV_HEADS))
    last = (end - 1) // BLOCK
    if EVEN:
        every = gl.load(scratch_ptr + gl.num_programs(0), cache_modifier=".cg")
        few = gl.maximum(few, 2 * every // gl.num_programs(0))
    alone = (last - first < few) | (step == 1) | (first_cell + last >= cells)
    if (start == 0) | ((start <= last - first) & (alone == 0)):
        step = gl.where(alone, 1, step)
        qs = gl.allocate_shared_memory(gl.bfloat16, [M, DIM], keys.layout)
        ks = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, DIM], keys.layout)
        vs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, DIM], values.layout)
        bars = gl.allocate_shared_memory(gl.int64, [4 * STAGES, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(4 * STAGES):  # keys are there, values are; keys, values are done with
            mbarrier.init(bars.index(i), count=1)
        scratch = head.to(gl.int64) * cells + first_cell
        span = (begin, end, first, last, start, step, window, alone)
        gl.warp_specialize(
            [
                (
                    _attend,
                    (qs, ks, vs, bars, qkv_ptr, out_ptr, partial_ptr, stats_ptr, scratch, chain, head, span, scale,
                     HEADS, KV_HEADS, DIM, PER, TILE, BLOCK, M, STAGES),
                ),
                (_fetch, (keys, values, ks, vs, bars, blocks_ptr, head, span, KV_HEADS, DIM, BLOCK, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
        if alone == 0:
            EACH: gl.constexpr = HEADS // KV_HEADS
            programs = gl.minimum(step, last + 1 - first)
            MANY: gl.constexpr = 32
            factors = gl.allocate_shared_memory(gl.float32, [3, MANY], gl.SwizzledSharedLayout(1, 1, 1, [0]))
            counter_ptr += chain * KV_HEADS + head
            meet()  # every thread's parts are written before one of them says so
            before = gl.atomic_add(counter_ptr, 1, sem="acq_rel")
            done, given_up = before % GIVEN_UP + 1, before // GIVEN_UP
            tries = 0
            while (done < programs) & (tries < PATIENCE):
                done = gl.atomic_add(counter_ptr, 0, sem="acquire") % GIVEN_UP
                tries += 1
            if done < programs:
                done = gl.atomic_add(counter_ptr, GIVEN_UP, sem="acq_rel") % GIVEN_UP
            if done == programs:
                all_of_them = (tries == 0) & (given_up > 0)  # the last to come is the one that never had to wait
                for its in range(gl.where(all_of_them, 0, start), PER * EACH, gl.where(all_of_them, 1, programs)):
                    own, query = its // EACH, its % EACH
                    at = ((chain * PER + own) * HEADS + head * EACH + query) * DIM
                    lane = own * _lanes(HEADS, KV_HEADS) + query
                    _merge_lane(
                        partial_ptr, stats_ptr, out_ptr + at, scratch, first, last, lane, factors, TILE, DIM, MANY
                    )


@gluon.jit
def _end(positions_ptr, PER: gl.constexpr, MOST: gl.constexpr):
    """Behind the last position of a chain; rows that only fill it up lie before the others."""
    row = gl.arange(0, MOST, gl.BlockedLayout([1], [32], [4], [0]))
    return gl.max(gl.load(positions_ptr + row, mask=row < PER, other=0, cache_modifier=".cg"), axis=0) + 1


@gluon.constexpr_function
def _lanes(heads, kv_heads):
    """Of the tile per row; those beyond the query heads of a key head are idle."""
    each = heads // kv_heads
    return 1 << (each - 1).bit_length()


@gluon.jit
def _fetch(
    keys,
    values,
    ks,
    vs,
    bars,
    blocks_ptr,
    head,
    span,
    KV_HEADS: gl.constexpr,
    DIM: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):
    begin, _, first, last, start, step, _, _ = span
    its = gl.load(blocks_ptr + first + start, cache_modifier=".cg")
    for count in range((last - first - start) // step + 1):
        block = first + start + count * step
        if block >= begin // BLOCK:  # those before were there before this pass
            wait_for_previous()
        row = (its * KV_HEADS + head) * BLOCK
        its = gl.load(blocks_ptr + gl.minimum(block + step, last), cache_modifier=".cg")
        fetch_block(keys, values, ks, vs, bars, row, count, DIM, BLOCK, STAGES)


@gluon.jit
def _attend(
    qs,
    ks,
    vs,
    bars,
    qkv_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    scratch,
    chain,
    head,
    span,
    scale,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    DIM: gl.constexpr,
    PER: gl.constexpr,
    TILE: gl.constexpr,
    BLOCK: gl.constexpr,
    M: gl.constexpr,
    STAGES: gl.constexpr,
):
    begin, end, first, last, start, step, window, alone = span
    EACH: gl.constexpr = HEADS // KV_HEADS
    LANES: gl.constexpr = _lanes(HEADS, KV_HEADS)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    PARTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    after_previous()
    lane, d = gl.arange(0, M, gl.SliceLayout(1, LOADED)), gl.arange(0, DIM, gl.SliceLayout(0, LOADED))
    real = (lane % LANES < EACH) & (lane // LANES < PER)
    query = (chain * PER + lane // LANES) * (HEADS + 2 * KV_HEADS) + head * EACH + lane % LANES
    q = gl.load(qkv_ptr + query[:, None] * DIM + d[None, :], mask=real[:, None], other=0.0)
    qs.store(q)
    fence_async_shared()
    own = gl.arange(0, M, gl.SliceLayout(1, SCORES)) // LANES
    length = begin + own + 1
    oldest = gl.where(window > 0, gl.maximum(length - window, 0), 0)
    part = gl.zeros([M, DIM], gl.float32, PARTS)
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, SCORES))
    peak = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    lane = gl.arange(0, M, gl.SliceLayout(1, PARTS))
    kept = (lane % LANES < EACH) & (lane // LANES < PER)
    d = gl.arange(0, DIM, gl.SliceLayout(0, PARTS))
    stat = gl.arange(0, M, gl.SliceLayout(1, SCORES))
    for count in range((last - first - start) // step + 1):
        block = first + start + count * step
        at, phase = count % STAGES, (count // STAGES) & 1
        mbarrier.wait(bars.index(at), phase)
        score = gl.zeros([M, BLOCK], gl.float32, SCORES)
        score = warpgroup_mma(qs, ks.index(at).permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(bars.index(2 * STAGES + at), count=1)
        if (block * BLOCK + BLOCK > begin + 1) | ((window > 0) & (block * BLOCK < begin + PER - window)):
            there = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, SCORES))
            seen = (there[None, :] < length[:, None]) & (there[None, :] >= oldest[:, None])
            score = gl.where(seen, score, float("-inf"))
        weight, its_total, its_peak = weigh(score, scale)
        weight = gl.convert_layout(weight.to(gl.bfloat16), gl.DotOperandLayout(0, PARTS, 2))
        mbarrier.wait(bars.index(STAGES + at), phase)
        if block * BLOCK + BLOCK > end:
            clear(vs.index(at), block * BLOCK, end, BLOCK)
        its_part = warpgroup_mma(weight, vs.index(at), gl.zeros([M, DIM], gl.float32, PARTS), is_async=True)
        its_part = warpgroup_mma_wait(0, deps=[its_part])
        mbarrier.arrive(bars.index(3 * STAGES + at), count=1)
        if alone:
            part, total, peak = merge(part, total, peak, its_part, its_total, its_peak, PARTS)
        else:
            cell = (scratch + block) * TILE
            gl.store(partial_ptr + cell * DIM + lane[:, None] * DIM + d[None, :], its_part, mask=kept[:, None])
            held = (stat % LANES < EACH) & (stat // LANES < PER)
            gl.store(stats_ptr + cell * 2 + stat, its_peak, mask=held)
            gl.store(stats_ptr + cell * 2 + TILE + stat, its_total, mask=held)
    if alone:
        row = (chain * PER + lane // LANES) * HEADS + head * EACH + lane % LANES
        result = part / gl.convert_layout(total, gl.SliceLayout(1, PARTS))[:, None]
        gl.store(out_ptr + row[:, None] * DIM + d[None, :], result.to(out_ptr.dtype.element_ty), mask=kept[:, None])


@gluon.jit
def _merge_lane(
    partial_ptr,
    stats_ptr,
    out_ptr,
    scratch,
    first,
    last,
    lane,
    factors,  # in shared memory, fp32 [3, MANY]
    TILE: gl.constexpr,
    DIM: gl.constexpr,
    MANY: gl.constexpr,
):
    """What the blocks from `first` to `last` come to for one lane of the tile, in their order [DIM]; a thread has one
    number of it. Of MANY blocks at a time: what they are to be multiplied by depends on peaks alone, and so is found
    for all at once, and the next ones are asked for before these are added up."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    TILES: gl.constexpr = gl.BlockedLayout([MANY, 1], [1, 32], [1, 4], [0, 1])
    i, d = gl.arange(0, MANY, gl.SliceLayout(1, TILES)), gl.arange(0, DIM, gl.SliceLayout(0, TILES))
    j = gl.arange(0, MANY, LAYOUT)
    parts_ptr = partial_ptr + (scratch * TILE + lane) * DIM
    stats_ptr += scratch * TILE * 2 + lane
    part = gl.zeros([DIM], gl.float32, LAYOUT)
    total, peak = 0.0, float("-inf")
    its, stats = _parts_of(parts_ptr, first + i, d, last, TILE, DIM), _stats_of(stats_ptr, first + j, j, last, TILE)
    for some in range(first, last + 1, MANY):
        its_peak, its_total, preceding = stats
        following = _parts_of(parts_ptr, some + MANY + i, d, last, TILE, DIM)
        stats = _stats_of(stats_ptr, some + MANY + j, j, last, TILE)
        so_far = gl.maximum(gl.associative_scan(preceding, 0, _higher), peak)
        higher = gl.maximum(so_far, its_peak)
        before = gl.where(so_far == float("-inf"), 0.0, gl.exp2(so_far - higher))
        now = gl.where(its_peak == float("-inf"), 0.0, gl.exp2(its_peak - higher))
        peak = gl.max(higher, axis=0)
        factors.index(0).store(before)
        factors.index(1).store(now)
        factors.index(2).store(its_total * now)
        part, total = _add_up(part, total, its, factors, 0, DIM, LAYOUT)
        its = following
    gl.store(out_ptr + gl.arange(0, DIM, LAYOUT), (part / total).to(out_ptr.dtype.element_ty))


@gluon.jit
def _parts_of(parts_ptr, block, d, last, TILE: gl.constexpr, DIM: gl.constexpr):
    at = parts_ptr + (block * (TILE * DIM))[:, None] + d[None, :]
    return gl.load(at, mask=(block <= last)[:, None], other=0.0, cache_modifier=".cg")


@gluon.jit
def _stats_of(stats_ptr, block, j, last, TILE: gl.constexpr):
    """Peaks and totals of some blocks, and the peak before each but the first; one beyond the last changes nothing."""
    at = stats_ptr + block * (TILE * 2)
    peak = gl.load(at, mask=block <= last, other=float("-inf"), cache_modifier=".cg")
    total = gl.load(at + TILE, mask=block <= last, other=0.0, cache_modifier=".cg")
    before = (j > 0) & (block - 1 <= last)
    return peak, total, gl.load(at - TILE * 2, mask=before, other=float("-inf"), cache_modifier=".cg")


@gluon.jit
def _higher(a, b):
    return gl.maximum(a, b)


@gluon.jit
def _add_up(part, total, its, factors, FIRST: gl.constexpr, DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """`attention.merge` of the blocks from FIRST on, whose parts are `its` [blocks, DIM], one after the other."""
    COUNT: gl.constexpr = its.shape[0]
    if COUNT > 1:
        these, others = its.reshape([2, COUNT // 2, DIM]).permute((1, 2, 0)).split()
        part, total = _add_up(part, total, these, factors, FIRST, DIM, LAYOUT)
        part, total = _add_up(part, total, others, factors, FIRST + COUNT // 2, DIM, LAYOUT)
    else:
        before = gl.max(factors.index(0).slice(FIRST, 1).load(LAYOUT), axis=0)
        now = gl.max(factors.index(1).slice(FIRST, 1).load(LAYOUT), axis=0)
        its_total = gl.max(factors.index(2).slice(FIRST, 1).load(LAYOUT), axis=0)
        its_part = gl.convert_layout(its.reshape([DIM]), LAYOUT, assert_trivial=True)
        part = gl.fma(part, before, its_part * now)
        total = gl.fma(total, before, its_total)
    return part, total
