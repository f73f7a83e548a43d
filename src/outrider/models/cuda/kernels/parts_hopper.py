"""`wide_hopper_kernel` for as many rows as decode at once, where what is fetched counts as much as what is multiplied.

Each of two or three groups of four warps has 64 rows of a tile. Parts of the depth are units of their own, for other
programs: who is second adds them up, in order. All programs together go through all units; those of the same weights
run side by side, so that these come from memory once, and turn about, since the last tile of rows may be smaller:
groups without a row multiply nothing, and only rows that there are are fetched.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from outrider.models.cuda.kernels import linear
from outrider.models.cuda.kernels.dependent_hopper import after_previous
from outrider.models.cuda.kernels.fetching import async_load, meet
from outrider.models.cuda.kernels.wide_hopper import cells, finish, halves, scale_of

GATED = gl.constexpr(linear.GATED.value)

OF_GROUP = gl.constexpr(64)
"""Rows of a group."""

BOX = 32
"""Rows of x fetched at once."""
REGISTERS = {2: 168, 3: 128}
"""By groups: of a thread, as if all had the same, those that fetch counting for four warps."""


@gluon.jit(do_not_specialize=["rows"])
def parts_hopper_kernel(
    x,  # descriptor of [rows, K], in tiles [BOX, STEP]
    w,  # of [N, K], GATED: [2 N, K], in tiles [BLOCK_N, STEP]
    bias_ptr,  # from here on as for `linear_kernel`
    squares_ptr,
    y_ptr,
    residual_ptr,
    gain_ptr,
    squares_out_ptr,
    partial_ptr,  # SPLIT > 1: fp32 scratch
    counter_ptr,  # SPLIT > 1: int32 zeros, left as zeros
    rows,
    eps,
    N: gl.constexpr,
    K: gl.constexpr,
    EPILOGUE: gl.constexpr,
    GELU: gl.constexpr,
    TILES: gl.constexpr,
    LEVELS: gl.constexpr,
    GROUPS: gl.constexpr,
    BOX: gl.constexpr,  # rows of x fetched at once
    BLOCK_N: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    MULTIPLIER: gl.constexpr = 1.0,
):
    gl.static_assert(SPLIT <= 2)
    WIDTH: gl.constexpr = 2 * BLOCK_N if EPILOGUE == GATED else BLOCK_N  # gate and up side by side
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES * GROUPS, OF_GROUP, STEP], x.layout)
    ws = gl.allocate_shared_memory(gl.bfloat16, [STAGES, WIDTH, STEP], w.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=GROUPS)
        mbarrier.init(ready.index(i), count=1)
    ends = (bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows, eps)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, GROUPS, BLOCK_N, WIDTH,
                 STEP, SPLIT, STAGES, MULTIPLIER)),
                (_multiply, (xs, ws, empty, ready, ends, 1, N, K, EPILOGUE, GELU, TILES, LEVELS, GROUPS, BLOCK_N, WIDTH,
                 STEP, SPLIT, STAGES, MULTIPLIER)),
                (_fetch, (x, w, xs, ws, empty, ready, rows, N, K, GROUPS, BOX, BLOCK_N, WIDTH, STEP, SPLIT, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, GROUPS, BLOCK_N, WIDTH,
                 STEP, SPLIT, STAGES, MULTIPLIER)),
                (_multiply, (xs, ws, empty, ready, ends, 1, N, K, EPILOGUE, GELU, TILES, LEVELS, GROUPS, BLOCK_N, WIDTH,
                 STEP, SPLIT, STAGES, MULTIPLIER)),
                (_multiply, (xs, ws, empty, ready, ends, 2, N, K, EPILOGUE, GELU, TILES, LEVELS, GROUPS, BLOCK_N, WIDTH,
                 STEP, SPLIT, STAGES, MULTIPLIER)),
                (_fetch, (x, w, xs, ws, empty, ready, rows, N, K, GROUPS, BOX, BLOCK_N, WIDTH, STEP, SPLIT, STAGES)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )  # fmt: skip


@gluon.jit
def _place(number, row_tiles, SPLIT: gl.constexpr):
    """Which tile of rows and of columns, and which part of the depth. Programs are a multiple of the tiles of rows."""
    turn = number // gl.num_programs(0)
    within = number // row_tiles
    return (number % row_tiles + turn) % row_tiles, within // SPLIT, within % SPLIT


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
    GROUPS: gl.constexpr,
    BOX: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    M: gl.constexpr = GROUPS * OF_GROUP
    EACH: gl.constexpr = OF_GROUP // BOX
    DEPTH: gl.constexpr = K // SPLIT
    row_tiles, tiles = gl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N
    EARLY: gl.constexpr = STAGES if STAGES * STEP <= DEPTH else 0
    units = row_tiles * tiles * SPLIT
    if gl.program_id(0) < units:
        row_tile, tile, part = _place(gl.program_id(0), row_tiles, SPLIT)
        for i in range(EARLY):
            _fetch_weights(
                w, ws, ready, tile, part * DEPTH + i * STEP, i, rows - row_tile * M, N, GROUPS, BOX, BLOCK_N,
                WIDTH, STEP,
            )  # fmt: skip
    after_previous()
    count = 0
    for number in range(gl.program_id(0), units, gl.num_programs(0)):
        row_tile, tile, part = _place(number, row_tiles, SPLIT)
        left = rows - row_tile * M
        for k in range(0, DEPTH, STEP):
            at = count % STAGES
            mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
            if count >= EARLY:
                _fetch_weights(w, ws, ready, tile, part * DEPTH + k, at, left, N, GROUPS, BOX, BLOCK_N, WIDTH, STEP)
            for box in gl.static_range(GROUPS * EACH):  # as many as there are rows for
                into = xs.index(at * GROUPS + box // EACH).slice(box % EACH * BOX, BOX)
                place = [row_tile * M + box * BOX, part * DEPTH + k]
                async_load(x, place, ready.index(at), into, pred=left > box * BOX)
            count += 1


@gluon.jit
def _fetch_weights(
    w,
    ws,
    ready,
    tile,
    k,
    at,
    left,
    N: gl.constexpr,
    GROUPS: gl.constexpr,
    BOX: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
):
    """Of one step; the rows, `left` or as many as a tile has, come to the same barrier."""
    bar = ready.index(at)
    EACH: gl.constexpr = OF_GROUP // BOX
    for boxes in gl.static_range(1, GROUPS * EACH + 1):
        its = left > (boxes - 1) * BOX
        if boxes < GROUPS * EACH:
            its = its & (left <= boxes * BOX)
        mbarrier.expect(bar, 2 * STEP * (boxes * BOX + WIDTH), pred=its)
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
    GROUPS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    WIDTH: gl.constexpr,
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    MULTIPLIER: gl.constexpr,
):
    bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows, eps = ends
    M: gl.constexpr = GROUPS * OF_GROUP
    DEPTH: gl.constexpr = K // SPLIT
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    row_tiles, tiles = gl.cdiv(rows, M), (N + BLOCK_N - 1) // BLOCK_N
    count = 0
    after_previous()
    for number in range(gl.program_id(0), row_tiles * tiles * SPLIT, gl.num_programs(0)):
        row_tile, tile, part = _place(number, row_tiles, SPLIT)
        top = row_tile * M + WHICH * OF_GROUP
        if top < rows:
            acc = gl.zeros([OF_GROUP, WIDTH], gl.float32, LAYOUT)
            for step in range(DEPTH // STEP):
                at = (count + step) % STAGES
                mbarrier.wait(ready.index(at), ((count + step) // STAGES) & 1)
                its = xs.index(at * GROUPS + WHICH)
                acc = warpgroup_mma(its, ws.index(at).permute((1, 0)), acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=[acc])  # the one before is done with its tiles
                mbarrier.arrive(empty.index((count + step + STAGES - 1) % STAGES), count=1, pred=step > 0)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index((count + DEPTH // STEP - 1) % STAGES), count=1)
            last = True
            if SPLIT > 1:
                place = (row_tile * GROUPS + WHICH) * tiles + tile
                own = (
                    partial_ptr + place.to(gl.int64) * (2 * OF_GROUP * WIDTH) + cells(0, OF_GROUP, WIDTH, WIDTH, LAYOUT)
                )
                kept = (top + gl.arange(0, OF_GROUP, gl.SliceLayout(1, LAYOUT)) < rows)[:, None]
                gl.store(own + part * (OF_GROUP * WIDTH), acc, mask=kept)
                meet()  # every thread's part is written before one of them says so
                last = gl.atomic_add(counter_ptr + place, 1, sem="acq_rel") == 1
                if last:
                    gl.store(counter_ptr + place, 0)
                    other = gl.load(own + (part ^ 1) * (OF_GROUP * WIDTH), mask=kept, other=0.0, cache_modifier=".cg")
                    acc = (0.0 + other) + acc  # of two parts: the same either way
            if last:
                OUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
                scale = gl.full([OF_GROUP], 1.0, gl.float32, gl.SliceLayout(1, OUT))
                if squares_ptr is not None:
                    scale = gl.convert_layout(
                        scale_of(squares_ptr, top, eps, OF_GROUP, K, TILES, LEVELS), gl.SliceLayout(1, OUT)
                    )
                gate, up = acc, acc
                if EPILOGUE == GATED:
                    gate, up = halves(acc)
                outputs = (bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, 0, rows)
                finish(
                    gate, up, scale, outputs, top, tile * BLOCK_N, 0, N, EPILOGUE, GELU, TILES, OF_GROUP, WIDTH, 1,
                    MULTIPLIER, OUT, squares_ptr is not None,
                )  # fmt: skip
        else:
            for step in range(DEPTH // STEP):
                at = (count + step) % STAGES
                mbarrier.wait(ready.index(at), ((count + step) // STAGES) & 1)
                mbarrier.arrive(empty.index(at), count=1)
        count += DEPTH // STEP
