"""The coupled rule's choice: argmax of (logit - max) / temperature + noise, in fp64, the lowest id on ties.

The same numbers as sampling/: integers of the noise exactly, its logarithms as the device's fp64 library gives them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def peaks_kernel(
    logits_ptr,  # fp32 [rows, stride]
    best_ptr,  # fp64 [rows, blocks]: the largest logit of each block
    which_ptr,  # int32 [rows, blocks]: where it stands
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab, other=float("-inf"))
    best, which = tl.max(logit, axis=0, return_indices=True)
    place = row * tl.num_programs(1) + block
    tl.store(best_ptr + place, best.to(tl.float64))
    tl.store(which_ptr + place, block * BLOCK + which)


@triton.jit
def _mix(x):
    """As `mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def perturb_kernel(
    logits_ptr,  # fp32 [rows, stride]
    peaks_ptr,  # fp64 [rows, blocks]: from `peaks_kernel`
    words_ptr,  # int32 [rows, 2]: low and high word of each row's key
    temperatures_ptr,  # fp64 [rows]
    ids_ptr,  # int32 [vocab]: the token of each column, by which noise is keyed; None: the column itself
    best_ptr,  # fp64 [rows, blocks]: the largest perturbed score of each block
    which_ptr,  # int32 [rows, blocks]
    stride,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0), tl.program_id(1)
    others = tl.arange(0, BLOCKS)
    peak = tl.max(tl.load(peaks_ptr + row * blocks + others, mask=others < blocks, other=float("-inf")), axis=0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab, other=float("-inf"))
    temperature = tl.load(temperatures_ptr + row)
    score = logit.to(tl.float64)
    if temperature > 0:
        low = tl.load(words_ptr + row * 2).to(tl.uint32, bitcast=True)
        high = tl.load(words_ptr + row * 2 + 1).to(tl.uint32, bitcast=True)
        if ids_ptr is not None:
            token = tl.load(ids_ptr + token, mask=token < vocab, other=0)
        word = _mix(_mix((token.to(tl.uint32) * 0x9E3779B9) ^ low) + high)
        k = (word ^ 0x80000000).to(tl.float64)  # the signed word plus 2^31
        score = (score - peak) / temperature - tl.log(-tl.log((k + 0.5) * 2.3283064365386963e-10))
    best, which = tl.max(score, axis=0, return_indices=True)
    tl.store(best_ptr + row * blocks + block, best)
    tl.store(which_ptr + row * blocks + block, block * BLOCK + which)


@triton.jit
def pick_kernel(
    best_ptr,  # fp64 [rows, blocks]
    which_ptr,  # int32 [rows, blocks]
    ids_ptr,  # int32: the token of each column; None: the column itself
    chosen_ptr,  # int32, row r at r * stride
    stride,
    blocks,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    which = tl.load(which_ptr + row * blocks + block, mask=block < blocks, other=1 << 30)
    top = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == top, which, 1 << 30), axis=0)
    if ids_ptr is not None:
        chosen = tl.load(ids_ptr + chosen)
    tl.store(chosen_ptr + row * stride, chosen)
