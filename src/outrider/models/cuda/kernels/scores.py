"""What choices are made by: the scores of a row's tokens, in fp64, their noise, and what blocks of them have found."""

from __future__ import annotations

import triton
import triton.language as tl

COUNT = tl.constexpr((1 << 20) - 1)
SEEN = tl.constexpr(1 << 20)
EDIT = tl.constexpr(21)
MOST_EDITS = tl.constexpr(1023)
"""What is said of a token in one word: how often the output has said it; whether the text has it; the number of its
bias, 0: none; and in the sign, whether it is forbidden early."""

NUMBERS = tl.constexpr(4)
"""repetition, frequency and presence penalty, one unused; biases by number follow."""
WORDS = tl.constexpr(2 * (4 + 1024))
"""Int32 of a lane before its words."""

LANE = tl.constexpr(0)
DEPTH = tl.constexpr(1)
EARLY = tl.constexpr(2)
REPORTS = tl.constexpr(3)
MASK = tl.constexpr(4)
MARKS = tl.constexpr(5)


@triton.jit
def scores(given, sizes, row, column, LONGEST: tl.constexpr):
    """In fp64, after the processors of sampling/warp.py; -inf beyond the vocabulary, and where a mask forbids.

    `given`, pointers to what scores are made of, which every kernel that needs them takes as one tuple:
        logits        fp32 [rows, stride]
        said          int32 [lanes, said_stride]: see `said.Said`; None, as are the next four: no row is processed
        said_numbers  the same as fp64
        marks         int32 [rows, MARKS]: its lane (-1: not processed), drafts before it, whether it may not end yet,
                      how much it reports, its mask and one (0: none)
        drafts        int32 [lanes, LONGEST]
        masks         int32 [any, words of 32 tokens]: see `masks.Masks`; of rows whose columns are the tokens
        ids           int32 [vocab]: the token of each column; None: the column itself
    `sizes`: stride, said_stride, vocab.
    """
    score = unmasked(given, sizes, row, column, LONGEST)
    _, said_ptr, _, marks_ptr, _, masks_ptr, _ = given
    _, _, vocab = sizes
    if said_ptr is not None:
        mask = tl.load(marks_ptr + row * MARKS + MASK)
        if mask > 0:
            words = masks_ptr + (mask - 1).to(tl.int64) * ((vocab + 31) // 32)
            word = tl.load(words + column // 32, mask=column < vocab, other=0)
            score = tl.where(((word >> (column % 32)) & 1) != 0, score, float("-inf"))
    return score


@triton.jit
def unmasked(given, sizes, row, column, LONGEST: tl.constexpr):
    """The same, whatever masks say."""
    logits_ptr, said_ptr, said_numbers_ptr, marks_ptr, drafts_ptr, _, ids_ptr = given
    stride, said_stride, vocab = sizes
    at = logits_ptr + row.to(tl.int64) * stride + column
    score = tl.load(at, mask=column < vocab, other=float("-inf")).to(tl.float64)
    if said_ptr is not None:
        marks = marks_ptr + row * MARKS
        lane = tl.load(marks + LANE)
        if lane >= 0:
            token = column
            if ids_ptr is not None:
                token = tl.load(ids_ptr + column, mask=column < vocab, other=0)
            words = said_ptr + lane.to(tl.int64) * said_stride + WORDS
            word = tl.load(words + token, mask=column < vocab, other=0)
            drafts = drafts_ptr + lane * LONGEST
            numbers = said_numbers_ptr + lane.to(tl.int64) * (said_stride // 2)
            score = _processed(score, token, word, numbers, drafts, tl.load(marks + DEPTH), tl.load(marks + EARLY))
    return score


@triton.jit
def score_at(given, sizes, row, column, LONGEST: tl.constexpr):
    """Of one column."""
    return tl.max(scores(given, sizes, row, column + tl.arange(0, 1), LONGEST), axis=0)


@triton.jit
def _processed(score, token, word, numbers, drafts, depth, early):
    """A product that is subtracted is rounded first, as on the host: kernels are compiled UNFUSED (`fold.py`)."""
    count = word & COUNT
    while depth > 0:
        depth -= 1
        count += (token == tl.load(drafts + depth)).to(tl.int32)
    repetition = tl.load(numbers)
    if repetition != 1:
        scaled = tl.where(score > 0, score / repetition, score * repetition)
        score = tl.where((count > 0) | ((word & SEEN) != 0), scaled, score)
    score -= tl.load(numbers + 1) * count.to(tl.float64)
    score -= tl.load(numbers + 2) * (count > 0).to(tl.float64)
    edit = (word >> EDIT) & MOST_EDITS
    score += tl.load(numbers + NUMBERS + edit, mask=edit > 0, other=0.0)
    return tl.where((word < 0) & (early > 0), float("-inf"), score)


@triton.jit
def _mix(x):
    """As `mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def noise_word(words_ptr, token):
    """32 uniform bits of a token, or whatever else has a number, by the two words of a key."""
    low = tl.load(words_ptr).to(tl.uint32, bitcast=True)
    high = tl.load(words_ptr + 1).to(tl.uint32, bitcast=True)
    return _mix(_mix((token.to(tl.uint32) * 0x9E3779B9) ^ low) + high)


@triton.jit
def perturbed(given, sizes, row, column, score, words_ptr):
    """`score` with the noise of these columns."""
    _, _, _, _, _, _, ids_ptr = given
    _, _, vocab = sizes
    token = column
    if ids_ptr is not None:
        token = tl.load(ids_ptr + column, mask=column < vocab, other=0)
    return score + gumbel(words_ptr, row, token)


@triton.jit
def gumbel(words_ptr, row, token):
    """The noise of a row's tokens, as sampling/noise.py has it."""
    k = (noise_word(words_ptr + row * 2, token) ^ 0x80000000).to(tl.float64)  # the signed word plus 2^31
    return -tl.log(-tl.log((k + 0.5) * 2.3283064365386963e-10))


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


@triton.jit
def token_of(ids_ptr, column):
    """What a column stands for; -1 stays."""
    token = column
    if ids_ptr is not None:
        token = tl.where(column < 0, -1, tl.load(ids_ptr + tl.maximum(column, 0)))
    return token
