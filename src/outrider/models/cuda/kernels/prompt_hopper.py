"""`prompt_kernel` for compute capability 9.0, with its bits: one warp fetches, two groups of four attend.

Each group has half of a tile's rows, and its own way through the blocks: while one weighs scores the other multiplies.
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

from outrider.models.cuda.kernels.dependent_hopper import after_previous
from outrider.models.cuda.kernels.fetching import async_load
from outrider.models.cuda.kernels.wide_hopper import fold

ROWS = 128
"""Of a tile."""


@gluon.jit(do_not_specialize=["window"])
def prompt_hopper_kernel(
    queries,  # descriptor of [rows, (HEADS + 2 KV_HEADS) DIM], in tiles [M, DIM]
    keys,  # of [blocks * KV_HEADS * BLOCK, DIM], in tiles [BLOCK, DIM]
    values,
    out_ptr,  # from here on as for `prompt_kernel`
    table_ptr,
    slots_ptr,
    positions_ptr,
    tiles_ptr,
    columns,
    window,
    scale,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    DIM: gl.constexpr,
    M: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):
    head, tile = gl.program_id(0), gl.num_programs(1) - 1 - gl.program_id(1)  # the longest first
    # Tables are older than the kernel before the one that this follows, which has ended: they need no waiting for.
    start = gl.load(tiles_ptr + tile * 2, cache_modifier=".cg")
    count = gl.load(tiles_ptr + tile * 2 + 1, cache_modifier=".cg")
    if count > 0:
        begin = gl.load(positions_ptr + start, cache_modifier=".cg")
        end = begin + count
        first = gl.where(window > 0, gl.maximum(begin + 1 - window, 0), 0) // BLOCK
        last = (end - 1) // BLOCK
        # Blocks that every row sees as a whole need no mask: those from `whole` to `ragged`.
        inside = gl.minimum(gl.cdiv(gl.maximum(end - window, 0), BLOCK), (begin + 1) // BLOCK)
        whole = gl.maximum(gl.where(window > 0, inside, 0), first)
        ragged = gl.maximum((begin + 1) // BLOCK, whole)
        slot = gl.load(slots_ptr + start, cache_modifier=".cg")
        blocks_ptr, key_head = table_ptr + slot * columns, head // (HEADS // KV_HEADS)
        qs = gl.allocate_shared_memory(gl.bfloat16, [M, DIM], queries.layout)
        ks = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, DIM], keys.layout)
        vs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, DIM], values.layout)
        bars = gl.allocate_shared_memory(gl.int64, [4 * STAGES + 1, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(STAGES):
            mbarrier.init(bars.index(i), count=1)  # keys are there
            mbarrier.init(bars.index(STAGES + i), count=1)  # values are
            mbarrier.init(bars.index(2 * STAGES + i), count=2)  # both groups are done with keys
            mbarrier.init(bars.index(3 * STAGES + i), count=2)  # with values
        mbarrier.init(bars.index(4 * STAGES), count=1)  # queries are there
        span = (begin, first, last, whole, ragged, end, window)
        gl.warp_specialize(
            [
                (
                    _attend,
                    (qs, ks, vs, bars, out_ptr, start, count, head, span, scale, 0, HEADS, DIM, M, BLOCK, STAGES),
                ),
                (
                    _attend,
                    (qs, ks, vs, bars, out_ptr, start, count, head, span, scale, 1, HEADS, DIM, M, BLOCK, STAGES),
                ),
                (
                    _fetch,
                    (queries, keys, values, qs, ks, vs, bars, start, head * DIM, blocks_ptr, key_head, span, KV_HEADS,
                     DIM, M, BLOCK, STAGES),
                ),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


@gluon.jit
def _fetch(
    queries,
    keys,
    values,
    qs,
    ks,
    vs,
    bars,
    start,
    column,
    blocks_ptr,
    key_head,
    span,
    KV_HEADS: gl.constexpr,
    DIM: gl.constexpr,
    M: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):
    _, first, last, _, _, _, _ = span
    after_previous()
    mbarrier.expect(bars.index(4 * STAGES), 2 * M * DIM)
    async_load(queries, [start, column], bars.index(4 * STAGES), qs)
    its = gl.load(blocks_ptr + first)
    for block in range(first, last + 1):
        row = (its * KV_HEADS + key_head) * BLOCK
        its = gl.load(blocks_ptr + gl.minimum(block + 1, last))  # where the next is, before it is asked for
        fetch_block(keys, values, ks, vs, bars, row, block - first, DIM, BLOCK, STAGES)


@gluon.jit
def fetch_block(keys, values, ks, vs, bars, row, count, DIM: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr):
    """The block of the cache that begins in `row`, the `count`-th of those fetched, once its places are free: barriers
    say that keys and that values are there, then that each may be written over."""
    at, phase = count % STAGES, ((count // STAGES) & 1) ^ 1
    mbarrier.wait(bars.index(2 * STAGES + at), phase)
    mbarrier.expect(bars.index(at), 2 * BLOCK * DIM)
    async_load(keys, [row, 0], bars.index(at), ks.index(at))
    mbarrier.wait(bars.index(3 * STAGES + at), phase)
    mbarrier.expect(bars.index(STAGES + at), 2 * BLOCK * DIM)
    async_load(values, [row, 0], bars.index(STAGES + at), vs.index(at))


@gluon.jit
def _attend(
    qs,
    ks,
    vs,
    bars,
    out_ptr,
    start,
    count,
    head,
    span,
    scale,
    WHICH: gl.constexpr,
    HEADS: gl.constexpr,
    DIM: gl.constexpr,
    M: gl.constexpr,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):
    begin, first, last, whole, ragged, end, window = span
    ROWS: gl.constexpr = M // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    PARTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    position = begin + WHICH * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    oldest = gl.where(window > 0, gl.maximum(position + 1 - window, 0), 0)
    part = gl.zeros([ROWS, DIM], gl.float32, PARTS)
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    q = qs.slice(WHICH * ROWS, ROWS)
    after_previous()
    mbarrier.wait(bars.index(4 * STAGES), 0)
    for block in range(first, last + 1):
        at, phase = (block - first) % STAGES, ((block - first) // STAGES) & 1
        mbarrier.wait(bars.index(at), phase)
        score = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
        score = warpgroup_mma(q, ks.index(at).permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(bars.index(2 * STAGES + at), count=1)
        if (block < whole) | (block >= ragged):
            there = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, SCORES))
            seen = (there[None, :] <= position[:, None]) & (there[None, :] >= oldest[:, None])
            score = gl.where(seen, score, float("-inf"))
        weight, its_total, its_peak = weigh(score, scale)
        weight = gl.convert_layout(weight.to(gl.bfloat16), gl.DotOperandLayout(0, PARTS, 2))
        mbarrier.wait(bars.index(STAGES + at), phase)
        if block * BLOCK + BLOCK > end:
            clear(vs.index(at), block * BLOCK, end, BLOCK)
        its_part = warpgroup_mma(weight, vs.index(at), gl.zeros([ROWS, DIM], gl.float32, PARTS), is_async=True)
        its_part = warpgroup_mma_wait(0, deps=[its_part])
        mbarrier.arrive(bars.index(3 * STAGES + at), count=1)
        part, total, peak = merge(part, total, peak, its_part, its_total, its_peak, PARTS)
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    result = part / gl.convert_layout(total, gl.SliceLayout(1, PARTS))[:, None]
    result = gl.convert_layout(result.to(out_ptr.dtype.element_ty), OUT)
    row = WHICH * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    d = gl.arange(0, DIM, gl.SliceLayout(0, OUT))
    at_row = ((start + row).to(gl.int64) * HEADS + head) * DIM
    gl.store(out_ptr + at_row[:, None] + d[None, :], result, mask=(row < count)[:, None])


@gluon.jit
def weigh(score, scale):
    """As `attention.weigh`."""
    LEVELS: gl.constexpr = score.shape[1].bit_length() - 1
    peak = gl.max(score, axis=1) * scale
    known = gl.where(peak == float("-inf"), 0.0, peak)
    weight = gl.exp2(gl.fma(score, scale, -known[:, None]))
    LAYOUT: gl.constexpr = peak.type.layout
    return weight, gl.convert_layout(fold(weight, LEVELS), LAYOUT, assert_trivial=True), peak


@gluon.jit
def merge(part, total, peak, its_part, its_total, its_peak, PARTS: gl.constexpr):
    """As `attention.merge`."""
    higher = gl.maximum(peak, its_peak)
    before = gl.where(peak == float("-inf"), 0.0, gl.exp2(peak - higher))
    now = gl.where(its_peak == float("-inf"), 0.0, gl.exp2(its_peak - higher))
    row_before = gl.convert_layout(before, gl.SliceLayout(1, PARTS))
    row_now = gl.convert_layout(now, gl.SliceLayout(1, PARTS))
    part = gl.fma(part, row_before[:, None], its_part * row_now[:, None])
    return part, gl.fma(total, before, its_total * now), higher


@gluon.jit
def clear(values, first, end, BLOCK: gl.constexpr):
    """Values from `end` on may be anything, and no weight makes nothing of what is no number. Both groups write the
    same, so neither waits for the other."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    SOME: gl.constexpr = 32
    for i in gl.static_range(BLOCK // SOME):
        rows = values.slice(i * SOME, SOME)
        there = first + i * SOME + gl.arange(0, SOME, gl.SliceLayout(1, LAYOUT))
        rows.store(gl.where((there < end)[:, None], rows.load(LAYOUT), 0.0))
    fence_async_shared()
