"""The coupled rule's choice: argmax of (score - max) / temperature + noise, in fp64, the lowest id on ties, among the
tokens that top-k, top-p and min-p leave (top-p: `nucleus.py`).

The same numbers as sampling/: integers of the noise and of a nucleus exactly, logarithms and exponentials as the
device's fp64 library gives them. A row's numbers are its temperature (0: greedy), top_p, log(min_p) and top_k (0: off).
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.scores import MARKS, MASK, perturbed, row_best, row_peak, scores, token_of, unmasked


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab"])
def peaks_kernel(
    given,  # see `scores`
    best_ptr,  # fp64 [rows, blocks]: the largest score of each block; infinite where one is not a number
    which_ptr,  # int32 [rows, blocks]: where it stands; -1 there
    stride,
    said_stride,
    vocab,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    score = scores(given, (stride, said_stride, vocab), row, block * BLOCK + tl.arange(0, BLOCK), LONGEST)
    _store_peak(score, block * BLOCK, best_ptr, which_ptr, row * tl.num_programs(1) + block)


@triton.jit
def _store_peak(score, first, best_ptr, which_ptr, place):
    """Of a block whose first column is `first`."""
    no_number = tl.max((score != score).to(tl.int32), axis=0) > 0
    best, which = tl.max(score, axis=0, return_indices=True)
    tl.store(best_ptr + place, tl.where(no_number, float("inf"), best))
    tl.store(which_ptr + place, tl.where(no_number, -1, first + which))


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def unmask_kernel(
    given,
    best_ptr,  # as `peaks_kernel` left them
    which_ptr,
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A row of which its mask would leave nothing stays as it is, and has none from now on: as `_keep_allowed` of
    sampling/warp.py."""
    row = tl.program_id(0)
    _, _, _, marks_ptr, _, _, _ = given
    mask = marks_ptr + row * MARKS + MASK
    if (tl.load(mask) > 0) & (row_peak(best_ptr, row, blocks, BLOCKS) == float("-inf")):
        tl.store(mask, 0)
        block = tl.full([], 0, tl.int32)
        while block < blocks:
            column = block * BLOCK + tl.arange(0, BLOCK)
            score = unmasked(given, (stride, said_stride, vocab), row, column, LONGEST)
            _store_peak(score, block * BLOCK, best_ptr, which_ptr, row * blocks + block)
            block += 1


@triton.jit
def following(given, sizes, row, best, which, LONGEST: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """The best score of each block and its column [BLOCKS] once the largest of all is taken away; the first of equals
    goes first."""
    others = tl.arange(0, BLOCKS)
    top = tl.max(best, axis=0)
    block = tl.min(tl.where(best == top, others, BLOCKS), axis=0)
    taken = tl.max(tl.where(others == block, which, -1), axis=0)
    column = block * BLOCK + tl.arange(0, BLOCK)
    score = scores(given, sizes, row, column, LONGEST)
    score = tl.where((score < top) | ((score == top) & (column > taken)), score, float("-inf"))
    next_best, next_which = tl.max(score, axis=0, return_indices=True)
    best = tl.where(others == block, next_best, best)
    return best, tl.where(others == block, block * BLOCK + next_which, which)


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def top_k_kernel(
    given,
    peaks_ptr,  # fp64 [rows, blocks]: from `peaks_kernel`
    which_ptr,
    numbers_ptr,  # fp64 [rows, 4]
    limit_ptr,  # fp64 [rows]: the heated score of the last token that top-k leaves, and its equals; -inf: it is off
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Takes the likeliest away one by one: few are asked for."""
    row = tl.program_id(0)
    temperature, left = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 3).to(tl.int32)
    limit = tl.full([], float("-inf"), tl.float64)
    if (temperature > 0) & (left > 0):
        others = tl.arange(0, BLOCKS)
        best = tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf"))
        which = tl.load(which_ptr + row * blocks + others, mask=others < blocks, other=-1)
        peak = tl.max(best, axis=0)
        top = peak
        left = tl.where((peak > float("-inf")) & (peak < float("inf")), left, 0)
        while left > 1:
            best, which = following(given, (stride, said_stride, vocab), row, best, which, LONGEST, BLOCK, BLOCKS)
            top = tl.max(best, axis=0)
            left = tl.where(top > float("-inf"), left - 1, 0)
        limit = (top - peak) / temperature
    tl.store(limit_ptr + row, limit)


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def perturb_kernel(
    given,
    peaks_ptr,
    words_ptr,  # int32 [rows, 2]: low and high word of each row's key
    numbers_ptr,
    limit_ptr,
    best_ptr,  # fp64 [rows, blocks]: the largest perturbed score of each block, where there is a temperature
    which_ptr,  # int32 [rows, blocks]
    weight_ptr,  # fp64 [rows, blocks]: the sum of exponentials that top-k leaves, where top_p is below 1
    stride,
    said_stride,
    vocab,
    blocks,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    sizes = stride, said_stride, vocab
    temperature, top_p = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 1)
    if temperature > 0:
        peak, limit = row_peak(peaks_ptr, row, blocks, BLOCKS), tl.load(limit_ptr + row)
        column = block * BLOCK + tl.arange(0, BLOCK)
        score = (scores(given, sizes, row, column, LONGEST) - peak) / temperature
        if top_p < 1:
            weight = tl.sum(tl.where(score >= limit, tl.exp(score), 0.0), axis=0)
            tl.store(weight_ptr + row * blocks + block, weight)
        least = tl.maximum(limit, tl.load(numbers_ptr + row * 4 + 2))
        noisy = perturbed(given, sizes, row, column, score, words_ptr)
        best, which = tl.max(tl.where(score >= least, noisy, float("-inf")), axis=0, return_indices=True)
        tl.store(best_ptr + row * blocks + block, best)
        tl.store(which_ptr + row * blocks + block, block * BLOCK + which)


@triton.jit(do_not_specialize=["stride", "blocks"])
def pick_kernel(
    best_ptr,  # fp64 [rows, blocks]
    which_ptr,  # int32 [rows, blocks]
    ids_ptr,  # int32: the token of each column; None: the column itself
    chosen_ptr,  # int32, row r at r * stride; -1 where a score is not a number
    stride,
    blocks,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0)
    chosen = row_best(best_ptr, which_ptr, row, blocks, BLOCKS)
    tl.store(chosen_ptr + row * stride, token_of(ids_ptr, chosen))
