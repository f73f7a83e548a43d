"""`linear_kernel` for compute capability 9.0, with its bits: one warp fetches W and x, groups of four multiply.

Weights are written by nobody: as many as there is room for are fetched while the kernel before still runs. Each of
GROUPS groups has 64 columns (GATED: of gate and of up). All programs together go through all units: tiles of columns,
each in SPLIT parts of the depth, which whoever is last adds up in order.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from outrider.models.cuda.kernels import linear
from outrider.models.cuda.kernels.dependent_hopper import after_previous
from outrider.models.cuda.kernels.fetching import async_load, meet
from outrider.models.cuda.kernels.wide_hopper import activate, fold

ADD, GATED = gl.constexpr(linear.ADD.value), gl.constexpr(linear.GATED.value)
COLUMNS = gl.constexpr(linear.BLOCK_N)
_LEVELS = gl.constexpr(linear.BLOCK_N.bit_length() - 1)

REGISTERS = {1: 128, 2: 168}
"""By groups: of a thread, as if all had the same, those that fetch counting for four warps."""


@gluon.jit(do_not_specialize=["rows"])
def stream_hopper_kernel(
    x,  # descriptor of [rows, K], in tiles [M, STEP]
    w,  # of [N, K], GATED: [2 N, K], in tiles [COLUMNS, STEP]
    bias_ptr,  # from here on as for `linear_kernel`
    squares_ptr,
    y_ptr,
    residual_ptr,
    gain_ptr,
    squares_out_ptr,
    partial_ptr,
    counter_ptr,
    rows,
    eps,
    N: gl.constexpr,
    K: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    LEVELS: gl.constexpr,
    M: gl.constexpr,  # at least as many as rows
    GROUPS: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    MULTIPLIER: gl.constexpr = 1.0,
):
    PARTS: gl.constexpr = 2 if EPILOGUE == GATED else 1  # gate and up
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, M, STEP], x.layout)
    ws = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS * PARTS, COLUMNS, STEP], w.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=GROUPS)
        mbarrier.init(ready.index(i), count=1)
    ends = (bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows, eps)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, M, GROUPS, PARTS, STEP,
                 SPLIT, STAGES, MULTIPLIER)),
                (_fetch, (x, w, xs, ws, empty, ready, N, K, M, GROUPS, PARTS, STEP, SPLIT, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, M, GROUPS, PARTS, STEP,
                 SPLIT, STAGES, MULTIPLIER)),
                (_multiply, (xs, ws, empty, ready, ends, 1, N, K, EPILOGUE, GELU, TILES, LEVELS, M, GROUPS, PARTS, STEP,
                 SPLIT, STAGES, MULTIPLIER)),
                (_fetch, (x, w, xs, ws, empty, ready, N, K, M, GROUPS, PARTS, STEP, SPLIT, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


@gluon.jit
def _fetch(
    x,
    w,
    xs,
    ws,
    empty,
    ready,
    N: gl.constexpr,
    K: gl.constexpr,
    M: gl.constexpr,
    GROUPS: gl.constexpr,
    PARTS: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    DEPTH: gl.constexpr = K // SPLIT
    UNITS: gl.constexpr = (N + GROUPS * COLUMNS - 1) // (GROUPS * COLUMNS) * SPLIT
    EARLY: gl.constexpr = STAGES if STAGES * STEP <= DEPTH else 0
    BYTES: gl.constexpr = 2 * STEP * (M + GROUPS * PARTS * COLUMNS)
    first = gl.program_id(0)
    for i in range(EARLY):
        _fetch_weights(w, ws, ready, first // SPLIT, first % SPLIT * DEPTH + i * STEP, i, BYTES, N, GROUPS, PARTS, STEP)
    after_previous()
    count = 0
    for number in range(first, UNITS, gl.num_programs(0)):
        tile, begin = number // SPLIT, number % SPLIT * DEPTH
        for k in range(0, DEPTH, STEP):
            at = count % STAGES
            mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
            if count >= EARLY:
                _fetch_weights(w, ws, ready, tile, begin + k, at, BYTES, N, GROUPS, PARTS, STEP)
            async_load(x, [0, begin + k], ready.index(at), xs.index(at))
            count += 1


@gluon.jit
def _fetch_weights(
    w,
    ws,
    ready,
    tile,
    k,
    at,
    BYTES: gl.constexpr,
    N: gl.constexpr,
    GROUPS: gl.constexpr,
    PARTS: gl.constexpr,
    STEP: gl.constexpr,
):
    """Of one step; the rows come to the same barrier."""
    bar = ready.index(at)
    mbarrier.expect(bar, BYTES)
    for group in gl.static_range(GROUPS):
        for part in gl.static_range(PARTS):
            into = ws.index((at * GROUPS + group) * PARTS + part)
            async_load(w, [part * N + (tile * GROUPS + group) * COLUMNS, k], bar, into)


@gluon.jit
def _multiply(
    xs,
    ws,
    empty,
    ready,
    ends,
    WHICH: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    LEVELS: gl.constexpr,
    M: gl.constexpr,
    GROUPS: gl.constexpr,
    PARTS: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    MULTIPLIER: gl.constexpr,
):
    bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows, eps = ends
    STEPS: gl.constexpr = K // SPLIT // STEP
    UNITS: gl.constexpr = (N + GROUPS * COLUMNS - 1) // (GROUPS * COLUMNS) * SPLIT
    SUMMED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    after_previous()
    scale = gl.full([M], 1.0, gl.float32, gl.SliceLayout(1, OUT))
    if squares_ptr is not None:
        scale = gl.convert_layout(scale_of_rows(squares_ptr, rows, eps, M, K, TILES, LEVELS), gl.SliceLayout(1, OUT))
    count = 0
    for number in range(gl.program_id(0), UNITS, gl.num_programs(0)):
        tile, part = number // SPLIT * GROUPS + WHICH, number % SPLIT
        acc = gl.zeros([COLUMNS, M], gl.float32, SUMMED)
        up = gl.zeros([COLUMNS, M], gl.float32, SUMMED)
        for k in range(STEPS):
            at = count % STAGES
            mbarrier.wait(ready.index(at), (count // STAGES) & 1)
            rows_of = xs.index(at).permute((1, 0))
            acc = warpgroup_mma(ws.index((at * GROUPS + WHICH) * PARTS), rows_of, acc, is_async=True)
            if EPILOGUE == GATED:
                up = warpgroup_mma(ws.index((at * GROUPS + WHICH) * PARTS + 1), rows_of, up, is_async=True)
                acc, up = warpgroup_mma_wait(2, deps=[acc, up])  # the ones before are done with their tiles
            else:
                acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1, pred=k > 0)
            count += 1
        if EPILOGUE == GATED:
            acc, up = warpgroup_mma_wait(0, deps=[acc, up])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)
        outputs = (None, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows)
        finish_unit(
            acc, up, scale, outputs, tile, part, N, EPILOGUE, GELU, TILES, M, SPLIT, MULTIPLIER, SUMMED, OUT,
            squares_ptr is not None,
        )  # fmt: skip


@gluon.jit
def finish_unit(
    acc,  # fp32 [COLUMNS, M]: of one part of the depth
    up,
    scale,
    outputs,
    tile,
    part,
    N: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    M: gl.constexpr,
    SPLIT: gl.constexpr,
    MULTIPLIER: gl.constexpr,
    SUMMED: gl.constexpr,
    OUT: gl.constexpr,
    NORMED: gl.constexpr,
):
    """Whoever is last of a tile's parts adds them up in order."""
    scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows = outputs
    last = True
    if SPLIT > 1:
        column = gl.arange(0, COLUMNS, gl.SliceLayout(1, SUMMED))[:, None]
        row = gl.arange(0, M, gl.SliceLayout(0, SUMMED))[None, :]
        block = partial_ptr + tile.to(gl.int64) * (SPLIT * COLUMNS * M) + column * M + row
        live = (row < rows) & (column < COLUMNS)
        gl.store(block + part * (COLUMNS * M), acc, mask=live)
        meet()  # every thread's part is written before one of them says so
        last = gl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == SPLIT - 1
        if last:
            gl.store(counter_ptr + tile, 0)
            acc = gl.zeros([COLUMNS, M], gl.float32, SUMMED)
            for other in gl.static_range(SPLIT):
                acc += gl.load(block + other * (COLUMNS * M), mask=live, other=0.0, cache_modifier=".cg")
    if last:
        total = gl.convert_layout(acc.permute((1, 0)), OUT)
        beside = gl.convert_layout(up.permute((1, 0)), OUT) if EPILOGUE == GATED else total
        ends = (scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, rows)
        _finish(total, beside, scale, ends, tile, N, EPILOGUE, GELU, TILES, M, MULTIPLIER, OUT, NORMED)


@gluon.jit
def scale_of_rows(squares_ptr, rows, eps, M: gl.constexpr, K: gl.constexpr, TILES: gl.constexpr, LEVELS: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    m, t = gl.arange(0, M, gl.SliceLayout(1, LAYOUT)), gl.arange(0, 1 << LEVELS, gl.SliceLayout(0, LAYOUT))
    live = (m < rows)[:, None] & (t < TILES)[None, :]
    squares = gl.load(squares_ptr + m[:, None] * TILES + t[None, :], mask=live, other=0.0)
    return gl.rsqrt(fold(squares, LEVELS) / K + eps)


@gluon.jit
def _finish(
    acc,
    up,
    scale,
    outputs,
    tile,
    N: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    M: gl.constexpr,
    MULTIPLIER: gl.constexpr,
    OUT: gl.constexpr,
    NORMED: gl.constexpr,
):
    """`linear.finish`."""
    scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, rows = outputs
    m = gl.arange(0, M, gl.SliceLayout(1, OUT))
    n = tile * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    inside = n < N
    at = (m.to(gl.int64) * N)[:, None] + n[None, :]
    kept = (m < rows)[:, None] & inside[None, :]
    if scales_ptr is not None:
        acc = acc * gl.load(scales_ptr + n, mask=inside, other=0.0)[None, :]
        if EPILOGUE == GATED:
            up = up * gl.load(scales_ptr + N + n, mask=inside, other=0.0)[None, :]
    if NORMED:
        acc = acc * scale[:, None]
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + n, mask=inside, other=0.0)[None, :]
    if MULTIPLIER != 1.0:
        acc = acc * MULTIPLIER
    if EPILOGUE == GATED:
        if NORMED:
            up = up * scale[:, None]
        if bias_ptr is not None:
            up += gl.load(bias_ptr + N + n, mask=inside, other=0.0)[None, :]
        gl.store(y_ptr + at, (activate(acc, GELU) * up).to(y_ptr.dtype.element_ty), mask=kept)
    elif EPILOGUE == ADD:
        total = acc + gl.load(residual_ptr + at, mask=kept, other=0.0).to(gl.float32)
        rounded = total.to(residual_ptr.dtype.element_ty)
        gl.store(residual_ptr + at, rounded, mask=kept)
        total = gl.where(kept, rounded.to(gl.float32), 0.0)
        gain = gl.load(gain_ptr + n, mask=inside, other=0.0)
        gl.store(y_ptr + at, (total * gain[None, :]).to(y_ptr.dtype.element_ty), mask=kept)
        sums = fold(total * total, _LEVELS)
        row = gl.arange(0, M, sums.type.layout)
        gl.store(squares_out_ptr + row * TILES + tile, sums, mask=(row < rows) & (tile < TILES))
    else:
        gl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=kept)
