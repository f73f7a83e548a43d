"""Kernels over rows of states: norm, gate, rotation; forwards and backwards."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    x_ptr,  # [any, HIDDEN]
    pick_ptr,  # int64 [rows]: which rows of x; not read unless PICK
    gain_ptr,  # [HIDDEN]
    out_ptr,  # [rows, HIDDEN]
    eps,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PICK: tl.constexpr,
):
    """RMSNorm of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    source = tl.load(pick_ptr + row) if PICK else row
    x = tl.load(x_ptr + source * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + column, x * scale * gain, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_backward_kernel(
    grad_ptr,  # [rows, HIDDEN], rows `stride` apart
    x_ptr,  # [any, HIDDEN]
    pick_ptr,
    gain_ptr,
    d_x_ptr,  # like x: the picked rows are written, if INNER
    d_gain_ptr,  # fp32 [programs, HIDDEN]: each program's share
    rows,
    stride,
    eps,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PICK: tl.constexpr,
    INNER: tl.constexpr,
):
    """Every so many rows; y = x s g with s = 1 / sqrt(mean x² + eps)."""
    column = tl.arange(0, WIDTH)
    inside = column < HIDDEN
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.zeros([WIDTH], dtype=tl.float32)
    row = tl.program_id(0).to(tl.int64)
    for _ in range(tl.program_id(0), rows, tl.num_programs(0)):
        source = tl.load(pick_ptr + row) if PICK else row
        x = tl.load(x_ptr + source * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
        unit = x * scale
        share += grad * unit
        if INNER:
            inner = grad * gain
            d_x = scale * (inner - unit * (tl.sum(inner * unit, axis=0) / HIDDEN))
            tl.store(d_x_ptr + source * HIDDEN + column, d_x, mask=inside)
        row += tl.num_programs(0)
    tl.store(d_gain_ptr + tl.program_id(0) * HIDDEN + column, share, mask=inside)


@triton.jit
def gate_kernel(
    gate_ptr,  # [rows, MLP], rows so far apart
    up_ptr,
    out_ptr,  # [rows, MLP]
    gate_stride,
    up_stride,
    MLP: tl.constexpr,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < MLP
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # (1 + tanh(z)) / 2 = sigmoid(2z)
        active = gate * tl.sigmoid(2 * 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * MLP + column, active * up, mask=inside)


@triton.jit
def gate_backward_kernel(
    grad_ptr,  # all [rows, MLP]
    gate_ptr,
    up_ptr,
    d_gate_ptr,
    d_up_ptr,
    MLP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of silu(gate) * up."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < MLP
    at = tl.program_id(0).to(tl.int64) * MLP + column
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    tl.store(d_gate_ptr + at, grad * up * open_ * (1 + gate * (1 - open_)), mask=inside)
    tl.store(d_up_ptr + at, grad * gate * open_, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def rotate_rows_kernel(
    x_ptr,  # [batch, rows, HEADS, DIM] with these distances, the last 1
    cos_ptr,  # fp32 [rows, DIM / 2]
    sin_ptr,
    out_ptr,  # likewise, heads DIM apart; may be x
    rows,
    x_batch,
    x_row,
    x_head,
    out_batch,
    out_row,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    BACK: tl.constexpr,
):
    """TOGETHER rows of one text turned by their positions, or back; pairs are (j, j + DIM / 2)."""
    batch = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)).to(tl.int64)
    head, j = tl.arange(0, HEADS_WIDTH), tl.arange(0, HALF_WIDTH)
    turns = (row < rows)[:, None] & (j < HALF)[None, :]  # [TOGETHER, HALF]
    angle = row[:, None] * HALF + j[None, :]
    cos = tl.load(cos_ptr + angle, mask=turns, other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0)[:, None, :]
    if BACK:
        sin = -sin
    inside = turns[:, None, :] & (head < HEADS)[None, :, None]  # [TOGETHER, HEADS, HALF]
    x = x_ptr + batch * x_batch + row[:, None, None] * x_row + head[None, :, None] * x_head + j[None, None, :]
    first = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=inside, other=0.0).to(tl.float32)
    out = out_ptr + batch * out_batch + row[:, None, None] * out_row
    out += head[None, :, None] * (2 * HALF) + j[None, None, :]
    tl.store(out, first * cos - second * sin, mask=inside)
    tl.store(out + HALF, second * cos + first * sin, mask=inside)
