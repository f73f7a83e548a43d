"""The coupled rule's choice: argmax of (logit - max) / temperature + noise, in fp64, the lowest id on ties, among the
tokens that top-p and min-p leave.

The same numbers as sampling/: integers of the noise and of a nucleus exactly, logarithms and exponentials as the
device's fp64 library gives them. A row's numbers are its temperature (0: greedy), top_p, log(min_p) and one unused.
"""

from __future__ import annotations

import triton
import triton.language as tl

MASS = tl.constexpr(2.0**52)
"""As `_MASS` of sampling/warp.py."""


@triton.jit(do_not_specialize=["stride", "vocab"])
def peaks_kernel(
    logits_ptr,  # fp32 [rows, stride]
    best_ptr,  # fp64 [rows, blocks]: the largest logit of each block; infinite where one is not a number
    which_ptr,  # int32 [rows, blocks]: where it stands; -1 there
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab, other=float("-inf"))
    no_number = tl.max((logit != logit).to(tl.int32), axis=0) > 0
    best, which = tl.max(logit, axis=0, return_indices=True)
    place = row * tl.num_programs(1) + block
    tl.store(best_ptr + place, tl.where(no_number, float("inf"), best).to(tl.float64))
    tl.store(which_ptr + place, tl.where(no_number, -1, block * BLOCK + which))


@triton.jit
def _mix(x):
    """As `mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _perturbed(score, token, words_ptr, row, ids_ptr, vocab):
    """`score` with the noise of these columns."""
    low = tl.load(words_ptr + row * 2).to(tl.uint32, bitcast=True)
    high = tl.load(words_ptr + row * 2 + 1).to(tl.uint32, bitcast=True)
    if ids_ptr is not None:
        token = tl.load(ids_ptr + token, mask=token < vocab, other=0)
    word = _mix(_mix((token.to(tl.uint32) * 0x9E3779B9) ^ low) + high)
    k = (word ^ 0x80000000).to(tl.float64)  # the signed word plus 2^31
    return score - tl.log(-tl.log((k + 0.5) * 2.3283064365386963e-10))


@triton.jit
def _peak(peaks_ptr, row, blocks, BLOCKS: tl.constexpr):
    others = tl.arange(0, BLOCKS)
    return tl.max(tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf")), axis=0)


@triton.jit(do_not_specialize=["stride", "vocab", "blocks"])
def perturb_kernel(
    logits_ptr,  # fp32 [rows, stride]
    peaks_ptr,  # fp64 [rows, blocks]: from `peaks_kernel`
    words_ptr,  # int32 [rows, 2]: low and high word of each row's key
    numbers_ptr,  # fp64 [rows, 4]
    ids_ptr,  # int32 [vocab]: the token of each column, by which noise is keyed; None: the column itself
    best_ptr,  # fp64 [rows, blocks]: the largest perturbed score of each block
    which_ptr,  # int32 [rows, blocks]
    weight_ptr,  # fp64 [rows, blocks]: the sum of exponentials, where top_p is below 1
    stride,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    peak = _peak(peaks_ptr, row, blocks, BLOCKS)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab, other=float("-inf"))
    temperature, top_p = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 1)
    score = logit.to(tl.float64)
    if temperature > 0:
        score = (score - peak) / temperature
        if top_p < 1:
            tl.store(weight_ptr + row * blocks + block, tl.sum(tl.exp(score), axis=0))
        score = _perturbed(score, token, words_ptr, row, ids_ptr, vocab)
    best, which = tl.max(score, axis=0, return_indices=True)
    tl.store(best_ptr + row * blocks + block, best)
    tl.store(which_ptr + row * blocks + block, block * BLOCK + which)


@triton.jit
def _masses(logits_ptr, row, stride, token, vocab, peak, temperature, weight):
    """As `_nucleus` of sampling/warp.py: probabilities as integers, so that sums are exact in any order."""
    logit = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab, other=float("-inf"))
    share = tl.exp((logit.to(tl.float64) - peak) / temperature) / weight * MASS
    whole = tl.floor(share)
    up = (share - whole > 0.5) | ((share - whole == 0.5) & (whole.to(tl.int64) % 2 == 1))  # halves to even
    return whole.to(tl.int64) + up.to(tl.int64)


@triton.jit
def _sum(values_ptr, row, blocks, BLOCKS: tl.constexpr):
    others = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(values_ptr + row * blocks + others, mask=others < blocks, other=0), axis=0)


@triton.jit(do_not_specialize=["stride", "vocab", "blocks"])
def mass_kernel(
    logits_ptr,
    peaks_ptr,
    numbers_ptr,
    weight_ptr,
    mass_ptr,  # int64 [rows, blocks]: of each block together, where top_p is below 1
    stride,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    temperature, top_p = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 1)
    if (temperature > 0) & (top_p < 1):
        peak, weight = _peak(peaks_ptr, row, blocks, BLOCKS), _sum(weight_ptr, row, blocks, BLOCKS)
        token = block * BLOCK + tl.arange(0, BLOCK)
        mass = _masses(logits_ptr, row, stride, token, vocab, peak, temperature, weight)
        tl.store(mass_ptr + row * blocks + block, tl.sum(mass, axis=0))


@triton.jit
def _best(best_ptr, which_ptr, row, blocks, BLOCKS: tl.constexpr):
    """The column of a row's largest score, the lowest one on ties; -1 where nothing is possible."""
    block = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    which = tl.load(which_ptr + row * blocks + block, mask=block < blocks, other=1 << 30)
    top = tl.max(best, axis=0)
    return tl.where(top > float("-inf"), tl.min(tl.where(best == top, which, 1 << 30), axis=0), -1)


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
    chosen = _best(best_ptr, which_ptr, row, blocks, BLOCKS)
    if ids_ptr is not None:
        chosen = tl.where(chosen < 0, -1, tl.load(ids_ptr + tl.maximum(chosen, 0)))
    tl.store(chosen_ptr + row * stride, chosen)


@triton.jit(do_not_specialize=["stride", "vocab", "blocks", "chosen_stride"])
def pick_left_kernel(
    logits_ptr,
    peaks_ptr,
    peak_which_ptr,
    words_ptr,
    numbers_ptr,
    ids_ptr,
    best_ptr,  # fp64 [rows, blocks]: perturbed
    which_ptr,
    weight_ptr,
    mass_ptr,
    chosen_ptr,
    stride,
    vocab,
    blocks,
    chosen_stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The best perturbed score among the tokens that top-p and min-p leave, without sorting: the best of all is taken
    if it is left, which it mostly is; if not, no token as unlikely as it is left either, and the best of the likelier
    ones is looked at."""
    row = tl.program_id(0)
    others = tl.arange(0, BLOCKS)
    peaks = tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf"))
    peak = tl.max(peaks, axis=0)
    temperature, top_p = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 1)
    log_min_p = tl.load(numbers_ptr + row * 4 + 2)
    finite = (peak > float("-inf")) & (peak < float("inf"))
    if temperature > 0:
        chosen = _best(best_ptr, which_ptr, row, blocks, BLOCKS)
    else:
        chosen = _best(peaks_ptr, peak_which_ptr, row, blocks, BLOCKS)
    looking = (temperature > 0) & ((top_p < 1) | (log_min_p > float("-inf"))) & finite
    weight = tl.full([], 1.0, tl.float64)
    need = tl.full([], 1, tl.int64)
    if looking & (top_p < 1):
        weight = _sum(weight_ptr, row, blocks, BLOCKS)
        need = tl.maximum((_sum(mass_ptr, row, blocks, BLOCKS).to(tl.float64) * top_p).to(tl.int64), 1)
    while looking:
        floor = tl.load(logits_ptr + row.to(tl.int64) * stride + chosen).to(tl.float64)
        looking = (floor - peak) / temperature < log_min_p
        if top_p < 1:
            own = _masses(logits_ptr, row, stride, chosen + tl.arange(0, 1), vocab, peak, temperature, weight)
            above = tl.full([], 0, tl.int64)
            block = tl.min(tl.where(peaks > floor, others, BLOCKS), axis=0)
            while block < BLOCKS:
                token = block * BLOCK + tl.arange(0, BLOCK)
                mass = _masses(logits_ptr, row, stride, token, vocab, peak, temperature, weight)
                above += tl.sum(tl.where(mass > own, mass, 0), axis=0)
                block = tl.min(tl.where((peaks > floor) & (others > block), others, BLOCKS), axis=0)
            looking = looking | (above >= need)
        if looking:  # only tokens likelier than this one may be left
            top = tl.full([], float("-inf"), tl.float64)
            block = tl.min(tl.where(peaks > floor, others, BLOCKS), axis=0)
            while block < BLOCKS:
                token = block * BLOCK + tl.arange(0, BLOCK)
                at = logits_ptr + row.to(tl.int64) * stride + token
                logit = tl.load(at, mask=token < vocab, other=float("-inf")).to(tl.float64)
                score = _perturbed((logit - peak) / temperature, token, words_ptr, row, ids_ptr, vocab)
                score = tl.where(logit > floor, score, float("-inf"))
                best, which = tl.max(score, axis=0, return_indices=True)
                chosen = tl.where(best > top, block * BLOCK + which, chosen)
                top = tl.maximum(best, top)
                block = tl.min(tl.where((peaks > floor) & (others > block), others, BLOCKS), axis=0)
    chosen = tl.where((temperature > 0) & (finite == 0), -1, chosen)
    if ids_ptr is not None:
        chosen = tl.where(chosen < 0, -1, tl.load(ids_ptr + tl.maximum(chosen, 0)))
    tl.store(chosen_ptr + row * chosen_stride, chosen)
