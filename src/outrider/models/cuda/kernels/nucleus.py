"""What top-p leaves, without sorting.

The best perturbed score of all is looked at first, and mostly left; if not, no token as unlikely as it is left either,
and the best of the likelier ones is looked at. The first rounds of that are kernels over all blocks of a row
(`mass_kernel`, then `next_kernel` and `check_kernel` by turns), each of which does nothing where the round before has
found the choice; `pick_left_kernel` goes on alone where they have not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.scores import perturbed, row_best, row_peak, row_sum, score_at, scores, token_of

MASS = tl.constexpr(2.0**52)
"""As `_MASS` of sampling/warp.py."""


@triton.jit
def masses(score, limit, weight):
    """As `_nucleus` of sampling/warp.py: probabilities as integers, so that sums are exact in any order."""
    share = tl.exp(score) / weight * MASS
    whole = tl.floor(share)
    up = (share - whole > 0.5) | ((share - whole == 0.5) & (whole.to(tl.int64) % 2 == 1))  # halves to even
    return tl.where(score >= limit, whole.to(tl.int64) + up.to(tl.int64), 0)


@triton.jit
def needed(total, top_p):
    """What the likelier tokens must not have reached."""
    return tl.maximum((total.to(tl.float64) * top_p).to(tl.int64), 1)


@triton.jit
def has_nucleus(numbers_ptr, peak, row):
    """Whether top-p is to be looked at."""
    drawn = (tl.load(numbers_ptr + row * 4) > 0) & (tl.load(numbers_ptr + row * 4 + 1) < 1)
    return drawn & (peak > float("-inf")) & (peak < float("inf"))


@triton.jit
def _above(score, floor, limit, weight):
    """The mass of the tokens that weigh more than one of the score `floor`."""
    mass = masses(score, limit, weight)
    return tl.sum(tl.where(mass > masses(floor, limit, weight), mass, 0), axis=0)


@triton.jit
def _likelier(
    given, sizes, row, block, words_ptr, floor, peak, temperature, least, LONGEST: tl.constexpr, BLOCK: tl.constexpr
):
    """Half a round, in one block: the best perturbed score of the tokens likelier than `floor`, and its column."""
    column = block * BLOCK + tl.arange(0, BLOCK)
    raw = scores(given, sizes, row, column, LONGEST)
    score = (raw - peak) / temperature
    noisy = perturbed(given, sizes, row, column, score, words_ptr)
    noisy = tl.where((raw > floor) & (score >= least), noisy, float("-inf"))
    best, which = tl.max(noisy, axis=0, return_indices=True)
    return best, block * BLOCK + which


@triton.jit
def _mass_above(
    given, sizes, row, block, floor, peak, temperature, limit, weight, LONGEST: tl.constexpr, BLOCK: tl.constexpr
):
    """The other half: the mass of the block's tokens that weigh more than one of the score `floor`."""
    score = (scores(given, sizes, row, block * BLOCK + tl.arange(0, BLOCK), LONGEST) - peak) / temperature
    return _above(score, (floor - peak) / temperature, limit, weight)


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def mass_kernel(
    given,  # see `scores`
    peaks_ptr,
    numbers_ptr,
    limit_ptr,
    best_ptr,
    which_ptr,
    weight_ptr,
    mass_ptr,  # int64 [rows, blocks]: of each block together, where top_p is below 1
    above_ptr,  # int64 [rows, blocks]: of those that weigh more than the row's best
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
    peak = row_peak(peaks_ptr, row, blocks, BLOCKS)
    if has_nucleus(numbers_ptr, peak, row):
        temperature, limit = tl.load(numbers_ptr + row * 4), tl.load(limit_ptr + row)
        weight = row_sum(weight_ptr, row, blocks, BLOCKS)
        floor = score_at(given, sizes, row, row_best(best_ptr, which_ptr, row, blocks, BLOCKS), LONGEST)
        score = (scores(given, sizes, row, block * BLOCK + tl.arange(0, BLOCK), LONGEST) - peak) / temperature
        tl.store(mass_ptr + row * blocks + block, tl.sum(masses(score, limit, weight), axis=0))
        tl.store(above_ptr + row * blocks + block, _above(score, (floor - peak) / temperature, limit, weight))


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def next_kernel(
    given,
    peaks_ptr,
    words_ptr,
    numbers_ptr,
    limit_ptr,
    mass_ptr,
    above_ptr,  # of the round before, as are the next two
    best_ptr,
    which_ptr,
    next_best_ptr,  # fp64 [rows, blocks]: among those likelier than the row's best before, where that is not left
    next_which_ptr,
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
    place = row * blocks + block
    peak = row_peak(peaks_ptr, row, blocks, BLOCKS)
    if has_nucleus(numbers_ptr, peak, row):
        best, which = tl.load(best_ptr + place), tl.load(which_ptr + place)
        need = needed(row_sum(mass_ptr, row, blocks, BLOCKS), tl.load(numbers_ptr + row * 4 + 1))
        if row_sum(above_ptr, row, blocks, BLOCKS) >= need:
            floor = score_at(given, sizes, row, row_best(best_ptr, which_ptr, row, blocks, BLOCKS), LONGEST)
            best = tl.full([], float("-inf"), tl.float64)
            if tl.load(peaks_ptr + place) > floor:
                temperature = tl.load(numbers_ptr + row * 4)
                least = tl.maximum(tl.load(limit_ptr + row), tl.load(numbers_ptr + row * 4 + 2))
                best, which = _likelier(
                    given, sizes, row, block, words_ptr, floor, peak, temperature, least, LONGEST, BLOCK
                )
        tl.store(next_best_ptr + place, best)
        tl.store(next_which_ptr + place, which)


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks"])
def check_kernel(
    given,
    peaks_ptr,
    numbers_ptr,
    limit_ptr,
    weight_ptr,
    mass_ptr,
    best_ptr,  # of this round
    which_ptr,
    above_ptr,  # of the round before
    next_above_ptr,  # int64 [rows, blocks]: of this one
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
    place = row * blocks + block
    peak = row_peak(peaks_ptr, row, blocks, BLOCKS)
    if has_nucleus(numbers_ptr, peak, row):
        above = tl.load(above_ptr + place)
        need = needed(row_sum(mass_ptr, row, blocks, BLOCKS), tl.load(numbers_ptr + row * 4 + 1))
        if row_sum(above_ptr, row, blocks, BLOCKS) >= need:
            floor = score_at(given, sizes, row, row_best(best_ptr, which_ptr, row, blocks, BLOCKS), LONGEST)
            above = tl.full([], 0, tl.int64)
            if tl.load(peaks_ptr + place) > floor:
                temperature, limit = tl.load(numbers_ptr + row * 4), tl.load(limit_ptr + row)
                weight = row_sum(weight_ptr, row, blocks, BLOCKS)
                above = _mass_above(given, sizes, row, block, floor, peak, temperature, limit, weight, LONGEST, BLOCK)
        tl.store(next_above_ptr + place, above)


@triton.jit
def _block_after(peaks, floor, block, BLOCKS: tl.constexpr):
    """The first one behind `block` with a token likelier than `floor`; BLOCKS: there is none."""
    others = tl.arange(0, BLOCKS)
    return tl.min(tl.where((peaks > floor) & (others > block), others, BLOCKS), axis=0)


@triton.jit(do_not_specialize=["stride", "said_stride", "vocab", "blocks", "chosen_stride"])
def pick_left_kernel(
    given,
    peaks_ptr,
    peak_which_ptr,
    words_ptr,
    numbers_ptr,
    limit_ptr,
    weight_ptr,
    mass_ptr,
    best_ptr,  # of the first round, as is the next
    which_ptr,
    last_best_ptr,  # of the last one
    last_which_ptr,
    above_ptr,
    chosen_ptr,
    stride,
    said_stride,
    vocab,
    blocks,
    chosen_stride,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0)
    sizes = stride, said_stride, vocab
    others = tl.arange(0, BLOCKS)
    peaks = tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf"))
    peak = tl.max(peaks, axis=0)
    temperature, top_p = tl.load(numbers_ptr + row * 4), tl.load(numbers_ptr + row * 4 + 1)
    finite = (peak > float("-inf")) & (peak < float("inf"))
    if temperature > 0:
        if has_nucleus(numbers_ptr, peak, row):
            chosen = row_best(last_best_ptr, last_which_ptr, row, blocks, BLOCKS)
            weight, limit = row_sum(weight_ptr, row, blocks, BLOCKS), tl.load(limit_ptr + row)
            least = tl.maximum(limit, tl.load(numbers_ptr + row * 4 + 2))
            need = needed(row_sum(mass_ptr, row, blocks, BLOCKS), top_p)
            above = row_sum(above_ptr, row, blocks, BLOCKS)
            while above >= need:  # only tokens likelier than this one may be left
                floor = score_at(given, sizes, row, chosen, LONGEST)
                top = tl.full([], float("-inf"), tl.float64)
                block = _block_after(peaks, floor, -1, BLOCKS)
                while block < BLOCKS:
                    best, which = _likelier(
                        given, sizes, row, block, words_ptr, floor, peak, temperature, least, LONGEST, BLOCK
                    )
                    chosen = tl.where(best > top, which, chosen)
                    top = tl.maximum(best, top)
                    block = _block_after(peaks, floor, block, BLOCKS)
                floor = score_at(given, sizes, row, chosen, LONGEST)
                above = tl.full([], 0, tl.int64)
                block = _block_after(peaks, floor, -1, BLOCKS)
                while block < BLOCKS:
                    above += _mass_above(
                        given, sizes, row, block, floor, peak, temperature, limit, weight, LONGEST, BLOCK
                    )
                    block = _block_after(peaks, floor, block, BLOCKS)
        else:
            chosen = row_best(best_ptr, which_ptr, row, blocks, BLOCKS)
    else:
        chosen = row_best(peaks_ptr, peak_which_ptr, row, blocks, BLOCKS)
    chosen = tl.where((temperature > 0) & (finite == 0), -1, chosen)
    _, _, _, _, _, _, ids_ptr = given
    tl.store(chosen_ptr + row * chosen_stride, token_of(ids_ptr, chosen))
