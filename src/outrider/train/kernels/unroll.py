"""Kernels of the unrolled attention: what lies outside the fused attention to the true states.

Programs take TOGETHER rows of one text and the GROUP query heads of one key head. Row r of step `step` stands beside
row r - step + i of every earlier step i >= 1, and its own. Rows before `step` have no draft: they get zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch", "rows", "step"])
def join_kernel(
    q_ptr,  # [batch, rows, HEADS, DIM]
    keys_ptr,  # [steps, batch, rows, KV_HEADS, DIM]: step i's at i - 1
    values_ptr,
    part_ptr,  # [batch, HEADS, rows - step, DIM] with these distances: attention to the true states alone
    normaliser_ptr,  # fp32 [batch, HEADS, rows - step]: its log-normaliser
    out_ptr,  # [batch, rows, HEADS, DIM]: attention to all
    joint_ptr,  # fp32 [batch, HEADS, rows - step]: its log-normaliser
    batch,
    rows,
    step,
    out_batch,
    out_head,
    out_row,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    text, kv = tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = (tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)).to(tl.int64)
    member, d = tl.arange(0, GROUP_WIDTH), tl.arange(0, DIM_WIDTH)
    head = kv * GROUP + member
    there, drafted = row < rows, (row < rows) & (row >= step)
    ours = (member < GROUP)[:, None] & (d < DIM)[None, :]  # [GROUP, DIM]
    cells = (text * rows + row)[:, None, None] * (HEADS * DIM) + (head[:, None] * DIM + d[None, :])[None, :, :]
    mask = drafted[:, None, None] & ours[None, :, :]
    q = tl.load(q_ptr + cells, mask=mask, other=0.0).to(tl.float32)  # [TOGETHER, GROUP, DIM]
    part = part_ptr + text * out_batch + head[None, :, None] * out_head + (row - step)[:, None, None] * out_row
    acc = tl.load(part + d[None, None, :], mask=mask, other=0.0).to(tl.float32)
    place = (text * HEADS + head)[None, :] * (rows - step) + (row - step)[:, None]  # [TOGETHER, GROUP]
    counted = drafted[:, None] & (member < GROUP)[None, :]
    peak = tl.load(normaliser_ptr + place, mask=counted, other=0.0)
    total = tl.full([TOGETHER, GROUP_WIDTH], 1.0, dtype=tl.float32)
    beside = drafted[:, None] & (d < DIM)[None, :]
    for i in range(1, step + 1):
        at = (((i - 1) * batch + text) * rows + row - step + i)[:, None] * (KV_HEADS * DIM) + (kv * DIM + d)[None, :]
        k = tl.load(keys_ptr + at, mask=beside, other=0.0).to(tl.float32)[:, None, :]
        v = tl.load(values_ptr + at, mask=beside, other=0.0).to(tl.float32)[:, None, :]
        score = tl.sum(q * k, axis=2) * scale
        higher = tl.maximum(peak, score)
        shrink, weight = tl.exp(peak - higher), tl.exp(score - higher)
        total = total * shrink + weight
        acc = acc * shrink[:, :, None] + weight[:, :, None] * v
        peak = higher
    tl.store(out_ptr + cells, acc / total[:, :, None], mask=there[:, None, None] & ours[None, :, :])
    tl.store(joint_ptr + place, peak + tl.log(total), mask=counted)


@triton.jit(do_not_specialize=["batch", "rows", "step"])
def join_backward_kernel(
    grad_ptr,  # [batch, rows, HEADS, DIM]
    q_ptr,  # likewise
    out_ptr,  # likewise
    keys_ptr,  # [steps, batch, rows, KV_HEADS, DIM]
    values_ptr,
    joint_ptr,  # fp32 [batch, HEADS, rows - step]
    part_ptr,  # [batch, HEADS, rows - step, DIM] with these distances: gradient at q through the true states
    d_q_ptr,  # [batch, rows, HEADS, DIM]
    d_keys_ptr,  # fp32, like keys: added to
    d_values_ptr,
    batch,
    rows,
    step,
    part_batch,
    part_head,
    part_row,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """No two programs of a launch touch the same keys: row, step and key head name them."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    text, kv = tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = (tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)).to(tl.int64)
    member, d = tl.arange(0, GROUP_WIDTH), tl.arange(0, DIM_WIDTH)
    head = kv * GROUP + member
    there, drafted = row < rows, (row < rows) & (row >= step)
    ours = (member < GROUP)[:, None] & (d < DIM)[None, :]
    cells = (text * rows + row)[:, None, None] * (HEADS * DIM) + (head[:, None] * DIM + d[None, :])[None, :, :]
    mask = drafted[:, None, None] & ours[None, :, :]
    grad = tl.load(grad_ptr + cells, mask=mask, other=0.0).to(tl.float32)  # [TOGETHER, GROUP, DIM]
    q = tl.load(q_ptr + cells, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(grad * tl.load(out_ptr + cells, mask=mask, other=0.0).to(tl.float32), axis=2)
    place = (text * HEADS + head)[None, :] * (rows - step) + (row - step)[:, None]
    joint = tl.load(joint_ptr + place, mask=drafted[:, None] & (member < GROUP)[None, :], other=0.0)
    part = part_ptr + text * part_batch + head[None, :, None] * part_head + (row - step)[:, None, None] * part_row
    d_q = tl.load(part + d[None, None, :], mask=mask, other=0.0).to(tl.float32)
    beside = drafted[:, None] & (d < DIM)[None, :]
    for i in range(1, step + 1):
        at = (((i - 1) * batch + text) * rows + row - step + i)[:, None] * (KV_HEADS * DIM) + (kv * DIM + d)[None, :]
        k = tl.load(keys_ptr + at, mask=beside, other=0.0).to(tl.float32)[:, None, :]
        v = tl.load(values_ptr + at, mask=beside, other=0.0).to(tl.float32)[:, None, :]
        weight = tl.exp(tl.sum(q * k, axis=2) * scale - joint)  # [TOGETHER, GROUP]
        d_score = (weight * (tl.sum(grad * v, axis=2) - mean) * scale)[:, :, None]
        d_q += d_score * k
        d_key = tl.load(d_keys_ptr + at, mask=beside, other=0.0) + tl.sum(d_score * q, axis=1)
        d_value = tl.load(d_values_ptr + at, mask=beside, other=0.0) + tl.sum(weight[:, :, None] * grad, axis=1)
        tl.store(d_keys_ptr + at, d_key, mask=beside)
        tl.store(d_values_ptr + at, d_value, mask=beside)
    tl.store(d_q_ptr + cells, d_q, mask=there[:, None, None] & ours[None, :, :])


@triton.jit(do_not_specialize=["rows", "total_rows"])
def fold_kernel(
    x_ptr,  # [batch, HEADS, rows, DIM] with these distances
    sum_ptr,  # fp32 [batch, total_rows, KV_HEADS, DIM]: the first `rows` are added to
    rows,
    total_rows,
    x_batch,
    x_head,
    x_row,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Gradients at a key or value as every query head saw it, added up for the one it is."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    text, kv = tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = (tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)).to(tl.int64)
    member, d = tl.arange(0, GROUP_WIDTH), tl.arange(0, DIM_WIDTH)
    inside = (row < rows)[:, None] & (d < DIM)[None, :]
    x = x_ptr + text * x_batch + (kv * GROUP + member)[None, :, None] * x_head + row[:, None, None] * x_row
    mask = inside[:, None, :] & (member < GROUP)[None, :, None]
    whole = tl.sum(tl.load(x + d[None, None, :], mask=mask, other=0.0).to(tl.float32), axis=1)
    at = (text * total_rows + row)[:, None] * (KV_HEADS * DIM) + (kv * DIM + d)[None, :]
    tl.store(sum_ptr + at, tl.load(sum_ptr + at, mask=inside, other=0.0) + whole, mask=inside)
