"""Kernels of the losses: one program per row of logits, which are read twice and written once."""

from __future__ import annotations

import triton
import triton.language as tl

_NEVER = tl.constexpr(-1e30)
"""Instead of minus infinity: the difference of two is a number."""


@triton.jit
def _read(logits_ptr, vocab, BLOCK: tl.constexpr):
    """Log-normaliser and largest column (the first of them) of a row."""
    lane = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], _NEVER, dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    where = lane
    for start in range(0, vocab, BLOCK):
        column = start + lane
        x = tl.load(logits_ptr + column, mask=column < vocab, other=_NEVER).to(tl.float32)
        where = tl.where(x > peak, column, where)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    highest = tl.max(peak, axis=0)
    normaliser = highest + tl.log(tl.sum(total * tl.exp(peak - highest), axis=0))
    return normaliser, tl.min(tl.where(peak == highest, where, vocab), axis=0)


@triton.jit
def normaliser_kernel(
    logits_ptr,  # [rows, vocab]
    out_ptr,  # fp32 [rows]
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    normaliser, _ = _read(logits_ptr + row * vocab, vocab, BLOCK)
    tl.store(out_ptr + row, normaliser)


@triton.jit
def judge_kernel(
    logits_ptr,  # [rows, vocab]: the student's; the gradient is written over them
    target_ptr,  # [rows, vocab]
    normaliser_ptr,  # fp32 [rows]: of the target's
    token_ptr,  # int64 [rows]: the target's own column, or -1
    weight_ptr,  # fp32 [rows]
    loss_ptr,  # fp32 [rows]
    chosen_ptr,  # int64 [rows]
    vocab,
    ce,
    kl,
    tv,
    VARIATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`Mix` of divergence.py: ce CE + kl KL + tv TV, times the row's weight. VARIATION: tv is not zero."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * vocab
    target_ptr += row * vocab
    lane = tl.arange(0, BLOCK)
    own, best = _read(logits_ptr, vocab, BLOCK)
    other = tl.load(normaliser_ptr + row)
    token = tl.load(token_ptr + row)
    weight = tl.load(weight_ptr + row)
    known = tl.where(token >= 0, ce, 0.0)
    said = tl.load(logits_ptr + tl.maximum(token, 0)).to(tl.float32) - own  # before it is overwritten
    common = tl.zeros([BLOCK], dtype=tl.float32)
    below = tl.zeros([BLOCK], dtype=tl.float32)
    if VARIATION:
        for start in range(0, vocab, BLOCK):
            column = start + lane
            q = tl.exp(tl.load(logits_ptr + column, mask=column < vocab, other=_NEVER).to(tl.float32) - own)
            p = tl.exp(tl.load(target_ptr + column, mask=column < vocab, other=_NEVER).to(tl.float32) - other)
            common += tl.minimum(p, q)
            below += tl.where(q < p, q, 0.0)
    share = tl.sum(below, axis=0)
    apart = tl.zeros([BLOCK], dtype=tl.float32)
    tl.debug_barrier()  # the one column read above may be another thread's to write
    for start in range(0, vocab, BLOCK):
        column = start + lane
        inside = column < vocab
        log_q = tl.load(logits_ptr + column, mask=inside, other=_NEVER).to(tl.float32) - own
        log_p = tl.load(target_ptr + column, mask=inside, other=_NEVER).to(tl.float32) - other
        q, p = tl.exp(log_q), tl.exp(log_p)
        apart += p * (log_p - log_q)
        gradient = kl * (q - p) + known * (q - tl.where(column == token, 1.0, 0.0))
        if VARIATION:
            gradient += tv * q * (share - tl.where(q < p, 1.0, 0.0))
        tl.store(logits_ptr + column, gradient * weight, mask=inside)
    loss = kl * tl.sum(apart, axis=0) - known * said
    if VARIATION:
        loss += tv * (1 - tl.sum(common, axis=0))
    tl.store(loss_ptr + row, loss * weight)
    tl.store(chosen_ptr + row, best.to(tl.int64))
