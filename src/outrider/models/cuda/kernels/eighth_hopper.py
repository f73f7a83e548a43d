"""`stream_hopper_kernel` for weights of 8 bits: one warp fetches, two groups of four widen and multiply.

Each group has units of its own, tiles of COLUMNS columns in SPLIT parts of the depth, and its own stages: while one
widens what the other's products wait for, neither waits for the other. As many weights as there is room for are fetched
while the kernel before still runs.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from outrider.models.cuda.kernels import eighth, linear
from outrider.models.cuda.kernels.dependent_hopper import after_previous
from outrider.models.cuda.kernels.fetching import async_load
from outrider.models.cuda.kernels.stream_hopper import finish_unit, scale_of_rows

GATED = gl.constexpr(linear.GATED.value)
COLUMNS = gl.constexpr(linear.BLOCK_N)
_E4M3, _INT8 = gl.constexpr(eighth.OF_E4M3), gl.constexpr(eighth.OF_INT8)

GROUP = 128
"""Neighbours in depth that lie in words together: a step."""
QUARTER = gl.constexpr(GROUP // 4)
GROUPS = 2
_GROUPS = gl.constexpr(GROUPS)
REGISTERS = 168
"""Of a thread, as if all had the same, those that fetch counting for four warps."""


@gluon.jit(do_not_specialize=["rows"])
def eighth_hopper_kernel(
    x,  # descriptor of [rows, K], in tiles [M, QUARTER]
    w,  # of words [N, K / 4], GATED: [2 N, K / 4], in tiles [COLUMNS, QUARTER]
    scales_ptr,  # from here on as for `linear_kernel`
    bias_ptr,
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
    STEP: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,  # of each group
    INTEGERS: gl.constexpr,
    MULTIPLIER: gl.constexpr = 1.0,
):
    gl.static_assert(STEP == 4 * QUARTER)
    PARTS: gl.constexpr = 2 if EPILOGUE == GATED else 1  # gate and up
    xs = gl.allocate_shared_memory(gl.bfloat16, [_GROUPS * STAGES * 4, M, QUARTER], x.layout)
    ws = gl.allocate_shared_memory(gl.int32, [_GROUPS * STAGES * PARTS, COLUMNS, QUARTER], w.layout)
    empty = gl.allocate_shared_memory(gl.int64, [_GROUPS * STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [_GROUPS * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_GROUPS * STAGES):
        mbarrier.init(empty.index(i), count=1)
        mbarrier.init(ready.index(i), count=1)
    ends = (
        scales_ptr, bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr,
        rows, eps,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply, (xs, ws, empty, ready, ends, 0, N, K, EPILOGUE, GELU, TILES, LEVELS, M, PARTS, SPLIT, STAGES,
             INTEGERS, MULTIPLIER)),
            (_multiply, (xs, ws, empty, ready, ends, 1, N, K, EPILOGUE, GELU, TILES, LEVELS, M, PARTS, SPLIT, STAGES,
             INTEGERS, MULTIPLIER)),
            (_fetch, (x, w, xs, ws, empty, ready, N, K, M, PARTS, SPLIT, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def _steps_of(group, N: gl.constexpr, K: gl.constexpr, SPLIT: gl.constexpr):
    """How many steps a group of this program has: all programs together go through all units, and in a program one
    group after the other takes the next."""
    UNITS: gl.constexpr = (N + COLUMNS - 1) // COLUMNS * SPLIT
    STEPS: gl.constexpr = K // SPLIT // (4 * QUARTER)
    stride = _GROUPS * gl.num_programs(0)
    first = gl.program_id(0) + group * gl.num_programs(0)
    return (gl.maximum(UNITS - first, 0) + stride - 1) // stride * STEPS


@gluon.jit
def _place(group, count, K: gl.constexpr, SPLIT: gl.constexpr):
    """Which tile of columns a group's step is of, and which of a row's steps it is."""
    STEPS: gl.constexpr = K // SPLIT // (4 * QUARTER)
    unit = gl.program_id(0) + (count // STEPS * _GROUPS + group) * gl.num_programs(0)
    return unit // SPLIT, unit % SPLIT * STEPS + count % STEPS


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
    PARTS: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    for early in range(STAGES):
        for group in gl.static_range(_GROUPS):
            if early < _steps_of(group, N, K, SPLIT):
                _fetch_weights(w, ws, ready, group, early, N, K, M, PARTS, SPLIT, STAGES)
    after_previous()
    for count in range(_steps_of(0, N, K, SPLIT)):  # the first group has at least as many as the other
        for group in gl.static_range(_GROUPS):
            if count < _steps_of(group, N, K, SPLIT):
                at = group * STAGES + count % STAGES
                mbarrier.wait(empty.index(at), ((count // STAGES) & 1) ^ 1)
                if count >= STAGES:
                    _fetch_weights(w, ws, ready, group, count, N, K, M, PARTS, SPLIT, STAGES)
                _, step = _place(group, count, K, SPLIT)
                for i in gl.static_range(4):
                    async_load(x, [0, (step * 4 + i) * QUARTER], ready.index(at), xs.index(at * 4 + i))


@gluon.jit
def _fetch_weights(
    w,
    ws,
    ready,
    group,
    count,
    N: gl.constexpr,
    K: gl.constexpr,
    M: gl.constexpr,
    PARTS: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Of one step; the rows come to the same barrier."""
    at = group * STAGES + count % STAGES
    mbarrier.expect(ready.index(at), 4 * QUARTER * (2 * M + PARTS * COLUMNS))
    tile, step = _place(group, count, K, SPLIT)
    for part in gl.static_range(PARTS):
        async_load(w, [part * N + tile * COLUMNS, step * QUARTER], ready.index(at), ws.index(at * PARTS + part))


@gluon.jit
def _widened(words, PART: gl.constexpr, INTEGERS: gl.constexpr):
    """As `eighth.widened`, two at once."""
    CODE: gl.constexpr = _INT8[PART] if INTEGERS else _E4M3[PART]
    return gl.inline_asm_elementwise(CODE, "=r,r,r", [words], dtype=gl.bfloat16, is_pure=True, pack=2)


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
    PARTS: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    INTEGERS: gl.constexpr,
    MULTIPLIER: gl.constexpr,
):
    (scales_ptr, bias_ptr, squares_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows,
     eps) = ends  # fmt: skip
    STEPS: gl.constexpr = K // SPLIT // (4 * QUARTER)
    SUMMED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])
    TAKEN: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMMED, k_width=2)
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    after_previous()
    scale = gl.full([M], 1.0, gl.float32, gl.SliceLayout(1, OUT))
    if squares_ptr is not None:
        scale = gl.convert_layout(scale_of_rows(squares_ptr, rows, eps, M, K, TILES, LEVELS), gl.SliceLayout(1, OUT))
    outputs = (scales_ptr, bias_ptr, y_ptr, residual_ptr, gain_ptr, squares_out_ptr, partial_ptr, counter_ptr, rows)
    count = 0
    for _ in range(_steps_of(WHICH, N, K, SPLIT) // STEPS):
        tile, first = _place(WHICH, count, K, SPLIT)
        acc = gl.zeros([COLUMNS, M], gl.float32, SUMMED)
        up = gl.zeros([COLUMNS, M], gl.float32, SUMMED)
        for _ in range(STEPS):
            at = WHICH * STAGES + count % STAGES
            mbarrier.wait(ready.index(at), (count // STAGES) & 1)
            words = ws.index(at * PARTS).load(TAKEN)
            beside = ws.index(at * PARTS + PARTS - 1).load(TAKEN)
            for i in gl.static_range(4):
                its = xs.index(at * 4 + i).permute((1, 0))
                acc = warpgroup_mma(_widened(words, i, INTEGERS), its, acc, is_async=True)
                if EPILOGUE == GATED:
                    up = warpgroup_mma(_widened(beside, i, INTEGERS), its, up, is_async=True)
                    acc, up = warpgroup_mma_wait(0, deps=[acc, up])  # their registers are needed again
                else:
                    acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(at), count=1)
            count += 1
        finish_unit(
            acc, up, scale, outputs, tile, first // STEPS, N, EPILOGUE, GELU, TILES, M, SPLIT, MULTIPLIER, SUMMED, OUT,
            squares_ptr is not None,
        )  # fmt: skip
