"""What choices are made by: the scores of a row's tokens, in fp64, their noise, and what blocks of them have found."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scores(logits_ptr, row, stride, column, vocab):
    """In fp64; -inf beyond the vocabulary."""
    at = logits_ptr + row.to(tl.int64) * stride + column
    return tl.load(at, mask=column < vocab, other=float("-inf")).to(tl.float64)


@triton.jit
def _mix(x):
    """As `mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def perturbed(score, column, words_ptr, row, ids_ptr, vocab):
    """`score` with the noise of these columns."""
    low = tl.load(words_ptr + row * 2).to(tl.uint32, bitcast=True)
    high = tl.load(words_ptr + row * 2 + 1).to(tl.uint32, bitcast=True)
    token = column
    if ids_ptr is not None:
        token = tl.load(ids_ptr + column, mask=column < vocab, other=0)
    word = _mix(_mix((token.to(tl.uint32) * 0x9E3779B9) ^ low) + high)
    k = (word ^ 0x80000000).to(tl.float64)  # the signed word plus 2^31
    return score - tl.log(-tl.log((k + 0.5) * 2.3283064365386963e-10))


@triton.jit
def row_peak(peaks_ptr, row, blocks, BLOCKS: tl.constexpr):
    others = tl.arange(0, BLOCKS)
    return tl.max(tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf")), axis=0)


@triton.jit
def row_sum(values_ptr, row, blocks, BLOCKS: tl.constexpr):
    others = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(values_ptr + row * blocks + others, mask=others < blocks, other=0), axis=0)


@triton.jit
def row_best(best_ptr, which_ptr, row, blocks, BLOCKS: tl.constexpr):
    """The column of a row's largest score, the lowest one on ties; -1 where nothing is possible."""
    block = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    which = tl.load(which_ptr + row * blocks + block, mask=block < blocks, other=1 << 30)
    top = tl.max(best, axis=0)
    return tl.where(top > float("-inf"), tl.min(tl.where(best == top, which, 1 << 30), axis=0), -1)
