"""Kernels that work row by row: embedding, taps, and rotation into the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.dependent import after_previous


@triton.jit
def _allot(positions_ptr, scratch_ptr, together, BLOCK: tl.constexpr):
    """Attention's scratch: the first cell of every group of so many rows, which needs one for each block it sees;
    then, where there are several, how many cells they need together."""
    rows = tl.num_programs(0)
    taken = 0
    tl.store(scratch_ptr, 0)
    for some in range(0, tl.where(rows > together, tl.cdiv(rows, together), 0), 128):  # one group has all of it
        group = some + tl.arange(0, 128)
        longest = tl.zeros([128], dtype=tl.int32)
        for i in range(together):
            row = group * together + i
            longest = tl.maximum(longest, tl.load(positions_ptr + row, mask=row < rows, other=-1) + 1)
        blocks = tl.cdiv(longest, BLOCK)
        tl.store(scratch_ptr + group, taken + tl.cumsum(blocks, axis=0) - blocks, mask=group * together < rows)
        taken += tl.sum(blocks, axis=0)
    tl.store(scratch_ptr + tl.cdiv(rows, together), taken, mask=rows > together)


@triton.jit(do_not_specialize=["together"])
def embed_kernel(
    tokens_ptr,  # int32 [rows]
    positions_ptr,  # int32 [rows]
    embedding_ptr,  # [vocab, HIDDEN]
    gain_ptr,  # fp32 [HIDDEN]: of the first norm
    residual_ptr,  # [rows, HIDDEN]
    y_ptr,  # [rows, HIDDEN]: the residual times gain
    squares_ptr,  # fp32 [rows, TILES]: the sum of squares in tile 0, zeros in the others
    scratch_ptr,  # int32 [row groups]: see `_allot`
    together,  # rows of a group, 0: none needs scratch
    scale,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    after_previous(DEPENDENT)
    if (row == 0) & (together > 0):
        _allot(positions_ptr, scratch_ptr, together, BLOCK)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    x = tl.load(embedding_ptr + token * HIDDEN + column, mask=inside, other=0.0).to(tl.float32) * scale
    rounded = x.to(residual_ptr.dtype.element_ty)
    x = rounded.to(tl.float32)
    at = row * HIDDEN + column
    tl.store(residual_ptr + at, rounded, mask=inside)
    tl.store(y_ptr + at, x * tl.load(gain_ptr + column, mask=inside, other=0.0), mask=inside)
    total = tl.sum(x * x, axis=0)
    for tile in tl.static_range(TILES):
        tl.store(squares_ptr + row * TILES + tile, total if tile == 0 else 0.0)


@triton.jit(do_not_specialize=["together"])
def pair_kernel(
    tokens_ptr,  # int32 [rows]
    positions_ptr,  # int32 [rows]
    embedding_ptr,  # [vocab, HIDDEN]
    states_ptr,  # [any, HIDDEN]
    index_ptr,  # int32 [rows]: which of the states row i starts from; None: state i
    token_gain_ptr,  # fp32 [HIDDEN] each: of the embedding's norm and of the state's
    state_gain_ptr,
    residual_ptr,  # [rows, HIDDEN]
    y_ptr,  # [rows, 2 HIDDEN]: the embedding, then the state, each normalised
    scratch_ptr,  # int32 [row groups]: see `_allot`
    together,  # rows of a group, 0: none needs scratch
    scale,
    eps,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """What a drafting head's first layer reads. The residual is the state, NORMED: the normalised one."""
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    after_previous(DEPENDENT)
    if (row == 0) & (together > 0):
        _allot(positions_ptr, scratch_ptr, together, BLOCK)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    source = row
    if index_ptr is not None:
        source = tl.load(index_ptr + row)
    x = tl.load(embedding_ptr + token * HIDDEN + column, mask=inside, other=0.0).to(tl.float32) * scale
    x = x.to(y_ptr.dtype.element_ty).to(tl.float32)
    state = tl.load(states_ptr + source * HIDDEN + column, mask=inside, other=0.0)
    wide = state.to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps) * tl.load(token_gain_ptr + column, mask=inside, other=0.0)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / HIDDEN + eps)
    wide = wide * tl.load(state_gain_ptr + column, mask=inside, other=0.0)
    at = y_ptr + row * 2 * HIDDEN + column
    tl.store(at, x, mask=inside)
    tl.store(at + HIDDEN, wide, mask=inside)
    if NORMED:
        tl.store(residual_ptr + row * HIDDEN + column, wide, mask=inside)
    else:
        tl.store(residual_ptr + row * HIDDEN + column, state, mask=inside)


@triton.jit
def tap_kernel(
    residual_ptr,  # [rows, HIDDEN]
    features_ptr,  # [rows, stride]: from here on, this tap's columns
    stride,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    after_previous(DEPENDENT)
    state = tl.load(residual_ptr + row * HIDDEN + column, mask=inside, other=0.0)
    tl.store(features_ptr + row * stride + column, state, mask=inside)


@triton.jit
def rotate_kernel(
    qkv_ptr,  # [rows, (HEADS + 2 KV_HEADS) DIM]; queries are rotated in place
    cosines_ptr,  # fp32 [positions, DIM / 2]
    sines_ptr,
    q_norm_ptr,  # fp32 [DIM], or None
    k_norm_ptr,
    keys_ptr,  # [blocks, KV_HEADS, BLOCK, DIM]
    values_ptr,
    table_ptr,  # int32 [slots, columns]: the blocks of each slot
    slots_ptr,  # int32 [rows] each, from here on
    positions_ptr,
    indices_ptr,
    counter_ptr,  # int32 [rows, KV_HEADS]: those of the attention that follows, set to zero; or None
    columns,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Normalise and rotate queries and keys; put keys and values where the cache wants them. TOGETHER heads at once."""
    row = tl.program_id(0)
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
    j = tl.arange(0, DIM // 2)[None, :]
    real = head < HEADS + 2 * KV_HEADS
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    # Tables are older than the kernel before the one that this follows, which has ended: they need no waiting for.
    index = tl.load(indices_ptr + row, cache_modifier=".cg")
    slot = tl.load(slots_ptr + row, cache_modifier=".cg")
    block = tl.load(table_ptr + slot * columns + index // BLOCK, cache_modifier=".cg").to(tl.int64)
    turn = tl.load(positions_ptr + row, cache_modifier=".cg") * (DIM // 2) + j
    cosine, sine = tl.load(cosines_ptr + turn), tl.load(sines_ptr + turn)
    after_previous(DEPENDENT)
    if counter_ptr is not None:
        counter = tl.arange(0, triton.next_power_of_2(KV_HEADS))
        tl.store(counter_ptr + row * KV_HEADS + counter, 0, mask=(counter < KV_HEADS) & (tl.program_id(1) == 0))
    source = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * DIM + head * DIM + j
    low = tl.load(source, mask=real, other=0.0).to(tl.float32)  # [TOGETHER, DIM / 2]
    high = tl.load(source + DIM // 2, mask=real, other=0.0).to(tl.float32)
    kv_head = tl.where(is_value, head - HEADS - KV_HEADS, head - HEADS)
    place = ((block * KV_HEADS + kv_head) * BLOCK + index % BLOCK) * DIM + j
    tl.store(values_ptr + place, low, mask=is_value & real)
    tl.store(values_ptr + place + DIM // 2, high, mask=is_value & real)
    if q_norm_ptr is not None:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / DIM + eps)[:, None]
        low_gain = tl.where(is_query, tl.load(q_norm_ptr + j), tl.load(k_norm_ptr + j))
        high_gain = tl.where(is_query, tl.load(q_norm_ptr + DIM // 2 + j), tl.load(k_norm_ptr + DIM // 2 + j))
        low = (low * scale * low_gain).to(qkv_ptr.dtype.element_ty).to(tl.float32)
        high = (high * scale * high_gain).to(qkv_ptr.dtype.element_ty).to(tl.float32)
    first, second = low * cosine - high * sine, high * cosine + low * sine
    tl.store(source, first, mask=is_query)
    tl.store(source + DIM // 2, second, mask=is_query)
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    tl.store(keys_ptr + place, first, mask=is_key)
    tl.store(keys_ptr + place + DIM // 2, second, mask=is_key)
