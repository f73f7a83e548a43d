"""Kernels of the bulk writer, in Triton: one row per lane, thousands of lanes, one new token each.

Rotation into the cache is the decoder's own kernel (models/cuda/kernels/rows.py).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(
    x_ptr,  # [lanes, HIDDEN]: the residual stream, written where ADD
    update_ptr,  # [lanes, HIDDEN]; not read unless ADD
    gain_ptr,  # fp32 [HIDDEN]
    out_ptr,  # [lanes, HIDDEN]
    eps,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ADD: tl.constexpr,
):
    lane = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    at = lane.to(tl.int64) * HIDDEN + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(update_ptr + at, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    tl.store(out_ptr + at, x * scale * gain, mask=inside)


@triton.jit
def gate_kernel(
    gate_up_ptr,  # [lanes, 2 MLP]
    out_ptr,  # [lanes, MLP]
    MLP: tl.constexpr,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < MLP
    source = gate_up_ptr + lane * 2 * MLP + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + MLP, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # (1 + tanh(z)) / 2 = sigmoid(2z)
        active = gate * tl.sigmoid(2 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out_ptr + lane * MLP + column, active * up, mask=inside)


@triton.jit
def attend_lanes_kernel(
    qkv_ptr,  # [lanes, (HEADS + 2 KV_HEADS) DIM], rotated
    keys_ptr,  # [lanes, KV_HEADS, context, DIM]
    values_ptr,
    position_ptr,  # int32 [lanes]: of the query
    out_ptr,  # [lanes, HEADS DIM]
    context,
    window,
    scale,  # times log2(e)
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One lane and one key head: the queries of its group (padded to TILE, the fewest a matrix instruction takes) over
    the lane's own positions, BLOCK at a time."""
    lane, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, d, j = tl.arange(0, TILE), tl.arange(0, DIM), tl.arange(0, BLOCK)
    cells = (head * GROUP + row)[:, None] * DIM + d[None, :]
    real = (row < GROUP)[:, None]
    q = tl.load(qkv_ptr + lane * (HEADS + 2 * KV_HEADS) * DIM + cells, mask=real, other=0.0)  # [TILE, DIM]
    length = tl.load(position_ptr + lane) + 1
    oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    home = (lane * KV_HEADS + head) * context * DIM
    peak = tl.full([TILE], float("-inf"), dtype=tl.float32)
    total = tl.zeros([TILE], dtype=tl.float32)
    acc = tl.zeros([TILE, DIM], dtype=tl.float32)
    for start in range(oldest // BLOCK * BLOCK, length, BLOCK):
        place = start + j
        seen = (place >= oldest) & (place < length)
        at = home + place[:, None] * DIM + d[None, :]
        k = tl.load(keys_ptr + at, mask=seen[:, None], other=0.0)  # [BLOCK, DIM]
        v = tl.load(values_ptr + at, mask=seen[:, None], other=0.0)
        score = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))  # [TILE, BLOCK]
        higher = tl.maximum(peak, tl.max(score, axis=1))  # finite: every block has a seen position
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        peak = higher
    tl.store(out_ptr + lane * HEADS * DIM + cells, acc / total[:, None], mask=real)


@triton.jit
def _mix(x):
    """As `mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def choose_lanes_kernel(
    logits_ptr,  # fp32 [lanes, vocab]
    position_ptr,  # int32 [lanes]: of the token just read
    words_ptr,  # int32 [lanes, 2]
    temperature_ptr,  # fp32 [lanes]
    best_ptr,  # fp32 [lanes, blocks]: the largest score of each block
    which_ptr,  # int32 [lanes, blocks]: whose it is
    vocab,
    BLOCK: tl.constexpr,
):
    """`Operations.choose` for BLOCK tokens of one lane."""
    lane, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    score = tl.load(logits_ptr + lane.to(tl.int64) * vocab + token, mask=inside, other=float("-inf"))
    temperature = tl.load(temperature_ptr + lane)
    if temperature > 0:
        step = (tl.load(position_ptr + lane) + 1).to(tl.uint32) * 0x9E3779B9
        low = _mix(tl.load(words_ptr + lane * 2).to(tl.uint32, bitcast=True) ^ step)
        high = _mix(tl.load(words_ptr + lane * 2 + 1).to(tl.uint32, bitcast=True) + step)
        word = _mix(_mix((token.to(tl.uint32) * 0x9E3779B9) ^ low) + high)
        u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
        noise = tl.where(u < 0.000244140625, u + u * u / 2, -tl.log(1 - u))
        score = tl.where(inside, score / tl.maximum(temperature, 1e-6) - tl.log(noise), float("-inf"))
    best, which = tl.max(score, axis=0, return_indices=True)
    place = lane * tl.num_programs(1) + block
    tl.store(best_ptr + place, best)
    tl.store(which_ptr + place, block * BLOCK + which)
