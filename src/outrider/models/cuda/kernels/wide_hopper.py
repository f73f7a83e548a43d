"""`wide_kernel` for compute capability 9.0, with its bits: one warp fetches tiles, two groups of four multiply them.

Each group has half of a tile's rows, and its own way through the program: while one finishes a tile the other still
multiplies, and the next tile is already being fetched. All programs together go through all tiles. Weights are written
by nobody: the first are asked for while the kernel before still runs.

A group has registers for the sums of one part of the depth only. Those of the first wait in memory, in the order of the
threads, until the second is done: they come from L2, and few of them in a tile's time.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from outrider.models.cuda.kernels import linear
from outrider.models.cuda.kernels.dependent_hopper import after_previous
from outrider.models.cuda.kernels.fetching import async_load

ADD, GATED = gl.constexpr(linear.ADD.value), gl.constexpr(linear.GATED.value)
COLUMNS = gl.constexpr(linear.BLOCK_N)
_LEVELS = gl.constexpr(linear.BLOCK_N.bit_length() - 1)

STEP = 64
"""Of the depth, fetched at once: a row of it is as wide as the copy engine shuffles."""
REGISTERS = 168
"""Of a thread, as if all had the same: twelve warps are what the roles take, the one that fetches counting for four."""


@gluon.jit(do_not_specialize=["rows"])
def wide_hopper_kernel(
    x,  # descriptor of [whole tiles of rows, K], in tiles [M, STEP]
    w,  # of [N, K], GATED: [2 N, K], in tiles [BLOCK_N, STEP]
    bias_ptr,  # from here on as for `linear_kernel`
    squares_ptr,
    y_ptr,
    residual_ptr,
    gain_ptr,
    squares_out_ptr,
    waiting_ptr,  # SPLIT > 1: fp32 [programs, M, BLOCK_N]
    live_ptr,  # int32: how many of the rows there are; None: all
    rows,
    eps,
    N: gl.constexpr,
    K: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    LEVELS: gl.constexpr,
    M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    MULTIPLIER: gl.constexpr = 1.0,
):
    WIDTH: gl.constexpr = 2 * BLOCK_N if EPILOGUE == GATED else BLOCK_N  # gate and up side by side
    if live_ptr is not None:
        rows = gl.load(live_ptr, cache_modifier=".cg")
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, M, STEP], x.layout)
    ws = gl.allocate_shared_memory(gl.bfloat16, [STAGES, WIDTH, STEP], w.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=2)
        mbarrier.init(ready.index(i), count=1)
    ends = (bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, waiting_ptr, rows, eps)
    gl.warp_specialize(
        [
            (
                _multiply,
                (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, WIDTH, STEP, SPLIT,
                 STAGES, GROUP, MULTIPLIER),
            ),
            (
                _multiply,
                (xs, ws, empty, ready, ends, 1, N, K, EPILOGUE, GELU, TILES, LEVELS, M, BLOCK_N, WIDTH, STEP, SPLIT,
                 STAGES, GROUP, MULTIPLIER),
            ),
            (_fetch, (x, w, xs, ws, empty, ready, rows, N, K, M, BLOCK_N, WIDTH, STEP, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def _place(number, row_tiles, tiles, GROUP: gl.constexpr):
    """As in `wide_kernel`: which tile of rows and of columns this is."""
    first = number // (GROUP * tiles) * GROUP
    height = gl.minimum(row_tiles - first, GROUP)
    within = number % (GROUP * tiles)
    return first + within % height, within // height


@gluon.jit
def _fetch(
    x,
    w,
    xs,
    ws,
    empty,
    ready,
    rows,
    N: gl.constexpr,
    K: gl.constexpr,
    M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    row_tiles, tiles = gl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N
    EARLY: gl.constexpr = STAGES if STAGES * STEP <= K else 0
    if gl.program_id(0) < row_tiles * tiles:
        _, tile = _place(gl.program_id(0), row_tiles, tiles, GROUP)
        for i in gl.static_range(EARLY):
            _fetch_weights(w, ws, ready, tile, i * STEP, i, N, M, BLOCK_N, WIDTH, STEP)
    after_previous()
    count = 0
    for number in range(gl.program_id(0), row_tiles * tiles, gl.num_programs(0)):
        row_tile, tile = _place(number, row_tiles, tiles, GROUP)
        for k in range(0, K, STEP):
            at = count % STAGES
            mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
            if count >= EARLY:
                _fetch_weights(w, ws, ready, tile, k, at, N, M, BLOCK_N, WIDTH, STEP)
            async_load(x, [row_tile * M, k], ready.index(at), xs.index(at))
            count += 1


@gluon.jit
def _fetch_weights(
    w,
    ws,
    ready,
    tile,
    k,
    at,
    N: gl.constexpr,
    M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
):
    """Of one step; the rows come to the same barrier."""
    bar = ready.index(at)
    mbarrier.expect(bar, 2 * STEP * (M + WIDTH))
    for half in gl.static_range(WIDTH // BLOCK_N):
        into = ws.index(at).slice(half * BLOCK_N, BLOCK_N)
        async_load(w, [half * N + tile * BLOCK_N, k], bar, into)


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
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    MULTIPLIER: gl.constexpr,
):
    gl.static_assert(SPLIT <= 2)
    bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, waiting_ptr, rows, eps = ends
    ROWS: gl.constexpr = M // 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    row_tiles, tiles = gl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N
    count = 0
    own = (gl.program_id(0) * 2 + WHICH) * ROWS * WIDTH
    after_previous()
    for number in range(gl.program_id(0), row_tiles * tiles, gl.num_programs(0)):
        row_tile, tile = _place(number, row_tiles, tiles, GROUP)
        acc = gl.zeros([ROWS, WIDTH], gl.float32, LAYOUT)
        for part in gl.static_range(SPLIT):
            if part > 0:
                gl.store(waiting_ptr + own + cells(0, ROWS, WIDTH, WIDTH, LAYOUT), acc)
                acc = gl.zeros([ROWS, WIDTH], gl.float32, LAYOUT)
            for k in range(0, K // SPLIT, STEP):
                at = count % STAGES
                mbarrier.wait(ready.index(at), (count // STAGES) & 1)
                its = xs.index(at).slice(WHICH * ROWS, ROWS)
                acc = warpgroup_mma(its, ws.index(at).permute((1, 0)), acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=[acc])  # the one before is done with its tiles
                mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1, pred=k > 0)
                count += 1
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1)
        top = row_tile * M + WHICH * ROWS
        OUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        scale = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, OUT))
        if squares_ptr is not None:
            scale = gl.convert_layout(scale_of(squares_ptr, top, eps, ROWS, K, TILES, LEVELS), gl.SliceLayout(1, OUT))
        gate, up = acc, acc
        if EPILOGUE == GATED:
            gate, up = halves(acc)
        outputs = (bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, waiting_ptr, own, rows)
        finish(
            gate, up, scale, outputs, top, tile * BLOCK_N, 0, N, EPILOGUE, GELU, TILES, ROWS, WIDTH, SPLIT, MULTIPLIER,
            OUT, squares_ptr is not None,
        )  # fmt: skip


@gluon.jit
def cells(first: gl.constexpr, ROWS: gl.constexpr, COUNT: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Where the sums of the columns `first` to first + COUNT wait: those of a warp's threads next to each other."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    column = first + gl.arange(0, COUNT, gl.SliceLayout(0, LAYOUT))[None, :]
    return (row // 8) * (WIDTH * 8) + (column // 8) * 64 + (row % 8) * 8 + column % 8


@gluon.jit
def halves(x):
    """Its left half and its right one, which lie with the same threads."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def fold(x, LEVELS: gl.constexpr):
    """As `fold`."""
    for _ in gl.static_range(LEVELS):
        x = gl.sum(x.reshape([x.shape[0], 2, x.shape[1] // 2]), axis=1)
    return x.reshape([x.shape[0]])


@gluon.jit
def scale_of(
    squares_ptr,
    top,
    eps,
    ROWS: gl.constexpr,
    K: gl.constexpr,
    TILES: gl.constexpr,
    LEVELS: gl.constexpr,
):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    m, t = top + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), gl.arange(0, 1 << LEVELS, gl.SliceLayout(0, LAYOUT))
    squares = gl.load(squares_ptr + m[:, None] * TILES + t[None, :], mask=(t < TILES)[None, :], other=0.0)
    return gl.rsqrt(fold(squares, LEVELS) / K + eps)


@gluon.jit
def activate(x, GELU: gl.constexpr):
    if GELU:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * _sigmoid(2 * inner)
    return x * _sigmoid(x)


@gluon.jit
def _sigmoid(x):
    return 1 / (1 + gl.exp(-x))


@gluon.jit
def finish(
    acc,
    up,
    scale,
    outputs,
    top,
    left,
    FIRST: gl.constexpr,  # of these columns in the tile
    N: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    SPLIT: gl.constexpr,
    MULTIPLIER: gl.constexpr,
    OUT: gl.constexpr,
    NORMED: gl.constexpr,
):
    """`linear.finish`, COLUMNS columns at a time: as many as sums of squares are kept for."""
    COUNT: gl.constexpr = acc.shape[1]
    if COUNT > COLUMNS:
        one, other = halves(acc)
        one_up, other_up = halves(up)
        finish(
            one, one_up, scale, outputs, top, left, FIRST, N, EPILOGUE, GELU, TILES, ROWS, WIDTH, SPLIT, MULTIPLIER,
            OUT, NORMED,
        )  # fmt: skip
        finish(
            other, other_up, scale, outputs, top, left, FIRST + COUNT // 2, N, EPILOGUE, GELU, TILES, ROWS, WIDTH,
            SPLIT, MULTIPLIER, OUT, NORMED,
        )  # fmt: skip
    else:
        bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, waiting_ptr, own, rows = outputs
        SUMMED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COUNT, 16])
        acc = gl.convert_layout(acc, SUMMED, assert_trivial=True)
        if SPLIT > 1:
            acc = (0.0 + gl.load(waiting_ptr + own + cells(FIRST, ROWS, COUNT, WIDTH, SUMMED))) + acc
        acc = gl.convert_layout(acc, OUT)
        m = top + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
        n = left + FIRST + gl.arange(0, COUNT, gl.SliceLayout(0, OUT))
        inside = n < N
        at = (m.to(gl.int64) * N)[:, None] + n[None, :]
        kept = (m < rows)[:, None] & inside[None, :]
        if NORMED:
            acc = acc * scale[:, None]
        if bias_ptr is not None:
            acc += gl.load(bias_ptr + n, mask=inside, other=0.0)[None, :]
        if MULTIPLIER != 1.0:
            acc = acc * MULTIPLIER
        if EPILOGUE == GATED:
            up = gl.convert_layout(gl.convert_layout(up, SUMMED, assert_trivial=True), OUT)
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
            row, its = top + gl.arange(0, ROWS, sums.type.layout), (left + FIRST) // COLUMNS
            gl.store(squares_out_ptr + row * TILES + its, sums, mask=(row < rows) & (its < TILES))
        else:
            gl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=kept)
