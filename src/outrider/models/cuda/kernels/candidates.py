"""What may follow each node of a draft tree: the best tokens by the head, and what each is worth.

A token's weight is the share of its score among those of all that may follow the same node. Where the target draws,
scores have the noise of that position, which the target will draw by as well: the shares tell how likely it chooses
alike, as if its scores lay apart from the head's by other noise of that kind (half or double as much fits worse).

Of what was found, only that counts which top-k, top-p and min-p would leave the head: a guess, like the rest, at what
they leave the target.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outrider.models.cuda.kernels.scores import gumbel

LOWEST = tl.constexpr(-(2**63) + 1)
"""Below every key."""
_LAST = tl.constexpr(2**31 - 1)


@triton.jit
def key_of(score, place):
    """A score and where it stands (not negative) in one number: the higher score first, then the lower place."""
    bits = score.to(tl.float32).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _LAST)  # integers in the order of the numbers
    return (ordered.to(tl.int64) << 32) | (place ^ _LAST).to(tl.int64)


@triton.jit
def place_of(key):
    return (key & _LAST).to(tl.int32) ^ _LAST


@triton.jit
def score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _LAST)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["stride", "vocab"])
def sift_kernel(
    logits_ptr,  # fp32 [lanes * ROWS, stride]
    ids_ptr,  # int32 [vocab]: the token of each column
    words_ptr,  # int32 [lanes * ROWS, 2] and fp64 [lanes * ROWS, 4]: see `chooser.Noise`
    numbers_ptr,
    best_ptr,  # int64 [lanes * ROWS, blocks, BRANCH]: keys of the best columns
    peak_ptr,  # fp32 [lanes * ROWS, blocks] each: the largest score, the sum of exponentials relative to it,
    total_ptr,
    crest_ptr,  # and the largest logit
    stride,
    vocab,
    DRAWN: tl.constexpr,
    ROWS: tl.constexpr,
    BRANCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best of one block of columns, of the rows of a lane: all stand at one position, and have one noise. Scores
    that are no numbers count for nothing."""
    lane, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    row = lane * ROWS + tl.arange(0, ROWS)
    at = row.to(tl.int64)[:, None] * stride + column[None, :]
    inside = column[None, :] + 0 * row[:, None] < vocab
    score = tl.load(logits_ptr + at, mask=inside, other=float("-inf"))  # [ROWS, BLOCK]
    score = tl.where(score == score, score, float("-inf"))
    place = row * tl.num_programs(1) + block
    if DRAWN:
        tl.store(crest_ptr + place, tl.max(score, axis=1))
        temperature = tl.load(numbers_ptr + lane * ROWS * 4)
        if temperature > 0:
            token = tl.load(ids_ptr + column, mask=column < vocab, other=0)
            noise = gumbel(words_ptr, lane * ROWS, token)
            score = (score.to(tl.float64) / temperature + noise[None, :]).to(tl.float32)
    peak = tl.max(score, axis=1)
    known = tl.where(peak == float("-inf"), 0.0, peak)
    tl.store(peak_ptr + place, peak)
    tl.store(total_ptr + place, tl.sum(tl.exp(score - known[:, None]), axis=1))
    keys = key_of(score, column[None, :] + 0 * row[:, None])
    for i in tl.static_range(BRANCH):
        best = tl.max(keys, axis=1)
        keys = tl.where(keys == best[:, None], LOWEST, keys)
        tl.store(best_ptr + place * BRANCH + i, best)


@triton.jit(do_not_specialize=["blocks"])
def rank_kernel(
    best_ptr,  # as `sift_kernel` left them
    peak_ptr,
    total_ptr,
    ids_ptr,
    columns_ptr,  # int32 [lanes * ROWS, BRANCH]: the best of all, the best first
    tokens_ptr,  # int32 [lanes * ROWS, BRANCH]
    weights_ptr,  # fp32 [lanes * ROWS, BRANCH]; 0: there is none
    blocks,
    ROWS: tl.constexpr,
    BRANCH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    block = tl.arange(0, BLOCKS)[None, :] + 0 * row  # [ROWS, BLOCKS]
    peaks = tl.load(peak_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    totals = tl.load(total_ptr + row * blocks + block, mask=block < blocks, other=0.0)
    peak = tl.max(peaks, axis=1)
    known = tl.where(peak == float("-inf"), 0.0, peak)[:, None]
    total = tl.sum(totals * tl.exp(peaks - known), axis=1)[:, None]
    i = tl.arange(0, BLOCKS * BRANCH)[None, :] + 0 * row
    keys = tl.load(best_ptr + row * blocks * BRANCH + i, mask=i < blocks * BRANCH, other=LOWEST)
    child = tl.arange(0, BRANCH)[None, :] + 0 * row  # [ROWS, BRANCH]
    best = tl.full([ROWS, BRANCH], LOWEST, dtype=tl.int64)
    for place in tl.static_range(BRANCH):
        top = tl.max(keys, axis=1)[:, None]
        keys = tl.where(keys == top, LOWEST, keys)
        best = tl.where(child == place, top, best)
    score = score_of(best)
    there = (best > LOWEST) & (score > float("-inf"))
    weight = tl.where(there, tl.minimum(tl.exp(score - known) / total, 1.0), 0.0)
    column = tl.where(there, place_of(best), 0)
    tl.store(columns_ptr + row * BRANCH + child, column)
    tl.store(tokens_ptr + row * BRANCH + child, tl.load(ids_ptr + column))
    tl.store(weights_ptr + row * BRANCH + child, weight)


@triton.jit
def _truncates(numbers):
    """Whether a row has top-k or top-p, where it has a temperature."""
    return (tl.load(numbers) > 0) & ((tl.load(numbers + 1) < 1) | (tl.load(numbers + 3) > 0))


@triton.jit
def _crests(crest_ptr, row, blocks, BLOCKS: tl.constexpr):
    """The largest logit of each row [ROWS, 1]."""
    block = tl.arange(0, BLOCKS)[None, :] + 0 * row
    found = tl.load(crest_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    return tl.max(found, axis=1)[:, None]


@triton.jit(do_not_specialize=["stride", "vocab"])
def measure_kernel(
    logits_ptr,
    columns_ptr,
    crest_ptr,
    numbers_ptr,
    mass_ptr,  # fp32 [lanes * ROWS, BRANCH + 1, blocks]: of likelier tokens than each of those found, and of all
    count_ptr,  # int32 [lanes * ROWS, BRANCH, blocks]: how many likelier ones there are
    stride,
    vocab,
    ROWS: tl.constexpr,
    BRANCH: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One block of columns, where a lane has top-k or top-p."""
    lane, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if _truncates(numbers_ptr + lane * ROWS * 4):
        temperature = tl.load(numbers_ptr + lane * ROWS * 4).to(tl.float32)
        row = lane * ROWS + tl.arange(0, ROWS)[:, None]
        column = block * BLOCK + tl.arange(0, BLOCK)[None, :] + 0 * row
        logits = logits_ptr + row.to(tl.int64) * stride
        score = tl.load(logits + column, mask=column < vocab, other=float("-inf"))  # [ROWS, BLOCK]
        mass = tl.exp((score - _crests(crest_ptr, row, blocks, BLOCKS)) / temperature)
        line = lane * ROWS + tl.arange(0, ROWS)
        tl.store(mass_ptr + (line * (BRANCH + 1) + BRANCH) * blocks + block, tl.sum(mass, axis=1))
        for child in tl.static_range(BRANCH):
            likelier = score > tl.load(logits + tl.load(columns_ptr + row * BRANCH + child))
            above = tl.sum(tl.where(likelier, mass, 0.0), axis=1)
            tl.store(mass_ptr + (line * (BRANCH + 1) + child) * blocks + block, above)
            tl.store(count_ptr + (line * BRANCH + child) * blocks + block, tl.sum(likelier.to(tl.int32), axis=1))


@triton.jit(do_not_specialize=["stride", "blocks"])
def trim_kernel(
    logits_ptr,
    columns_ptr,
    crest_ptr,
    numbers_ptr,
    mass_ptr,  # as `measure_kernel` left it
    count_ptr,
    weights_ptr,  # of what was found: 0 where it is cut off, the others share what that had
    stride,
    blocks,
    ROWS: tl.constexpr,
    BRANCH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    lane = tl.program_id(0)
    numbers = numbers_ptr + lane * ROWS * 4
    temperature, top_p, least, top_k = (
        tl.load(numbers),
        tl.load(numbers + 1),
        tl.load(numbers + 2),
        tl.load(numbers + 3),
    )
    if (temperature > 0) & ((top_p < 1) | (top_k > 0) | (least > float("-inf"))):
        row = lane * ROWS + tl.arange(0, ROWS)[:, None]
        child = tl.arange(0, BRANCH)[None, :] + 0 * row  # [ROWS, BRANCH]
        found = row * BRANCH + child
        column = tl.load(columns_ptr + found)
        score = tl.load(logits_ptr + row.to(tl.int64) * stride + column) - _crests(crest_ptr, row, blocks, BLOCKS)
        kept = score / temperature >= least
        if _truncates(numbers):
            block = tl.arange(0, BLOCKS)[None, None, :] + 0 * found[:, :, None]  # [ROWS, BRANCH, BLOCKS]
            own = (found + row)[:, :, None] * blocks + block
            mass = tl.sum(tl.load(mass_ptr + own, mask=block < blocks, other=0.0), axis=2)
            each = (row * (BRANCH + 1) + BRANCH + 0 * child)[:, :, None] * blocks + block
            total = tl.sum(tl.load(mass_ptr + each, mask=block < blocks, other=0.0), axis=2)
            counts = tl.load(count_ptr + found[:, :, None] * blocks + block, mask=block < blocks, other=0)
            kept &= mass < tl.where(top_p < 1, top_p, float("inf")) * total
            kept &= tl.sum(counts, axis=2) < tl.where(top_k > 0, top_k, float("inf"))
        weight = tl.load(weights_ptr + found)
        left = 1 - tl.sum(tl.where(kept, 0.0, weight), axis=1)[:, None]
        weight = tl.where(kept, tl.minimum(weight / tl.maximum(left, weight), 1.0), 0.0)
        tl.store(weights_ptr + found, tl.where(weight == weight, weight, 0.0))
