"""Log-probabilities of the raw logits, for the rows that report them: of the token chosen, and the likeliest ones."""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.choose import following
from outrider.models.cuda.kernels.scores import MARKS, REPORTS

COUNT = tl.constexpr(0)
TOKENS = tl.constexpr(1)


@triton.jit(do_not_specialize=["stride", "vocab"])
def weigh_kernel(
    logits_ptr,  # fp32 [rows, stride]
    marks_ptr,  # int32 [rows, MARKS]
    best_ptr,  # fp64 [rows, blocks]: the largest logit of each block
    which_ptr,  # int32 [rows, blocks]
    weight_ptr,  # fp64 [rows, blocks]: the sum of exponentials, as if that were 0
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    if tl.load(marks_ptr + row * MARKS + REPORTS) > 0:
        column = block * BLOCK + tl.arange(0, BLOCK)
        at = logits_ptr + row.to(tl.int64) * stride + column
        logit = tl.load(at, mask=column < vocab, other=float("-inf")).to(tl.float64)
        best, which = tl.max(logit, axis=0, return_indices=True)
        place = row * tl.num_programs(1) + block
        tl.store(best_ptr + place, best)
        tl.store(which_ptr + place, block * BLOCK + which)
        tl.store(weight_ptr + place, tl.sum(tl.where(logit > float("-inf"), tl.exp(logit - best), 0.0), axis=0))


@triton.jit(do_not_specialize=["stride", "vocab", "blocks"])
def report_kernel(
    logits_ptr,
    marks_ptr,
    best_ptr,
    which_ptr,
    weight_ptr,
    chosen_ptr,  # int32 [rows]
    values_ptr,  # fp64 [rows, ROW / 2]: log-probability of the token chosen, and of the likeliest in turn
    tokens_ptr,  # int32 [rows, ROW]: how many of those are told, one more; the likeliest, -1 where no other is possible
    stride,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROW: tl.constexpr,
):
    row = tl.program_id(0)
    told = tl.load(marks_ptr + row * MARKS + REPORTS)
    values, tokens = values_ptr + row * (ROW // 2), tokens_ptr + row * ROW
    tl.store(tokens + COUNT, told)
    if told > 0:
        others = tl.arange(0, BLOCKS)
        best = tl.load(best_ptr + row * blocks + others, mask=others < blocks, other=float("-inf"))
        which = tl.load(which_ptr + row * blocks + others, mask=others < blocks, other=-1)
        peak = tl.max(best, axis=0)
        weight = tl.load(weight_ptr + row * blocks + others, mask=others < blocks, other=0.0)
        whole = tl.log(tl.sum(tl.where(best > float("-inf"), weight * tl.exp(best - peak), 0.0), axis=0))
        chosen = tl.maximum(tl.load(chosen_ptr + row), 0)
        tl.store(values, tl.load(logits_ptr + row.to(tl.int64) * stride + chosen).to(tl.float64) - peak - whole)
        told = tl.minimum(told, vocab + 1)
        raw = logits_ptr, None, None, None, None, None, None
        i = tl.full([], 1, tl.int32)
        while i < told:
            top = tl.max(best, axis=0)
            block = tl.min(tl.where(best == top, others, BLOCKS), axis=0)
            token = tl.max(tl.where(others == block, which, -1), axis=0)
            tl.store(values + i, top - peak - whole)
            tl.store(tokens + i, tl.where(top > float("-inf"), token, -1))
            best, which = following(raw, (stride, 0, vocab), row, best, which, 1, BLOCK, BLOCKS)
            i += 1
