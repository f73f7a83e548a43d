"""The coupled rule's choice on the device: argmax of (logit - max) / temperature + noise, in fp64, the lowest id on ties.

The same numbers as sampling/: integers of the noise exactly, its logarithms as the device's fp64 library gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


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
    """As `_mix` of sampling/noise.py, on unsigned words."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def perturb_kernel(
    logits_ptr,  # fp32 [rows, stride]
    peaks_ptr,  # fp64 [rows, blocks]: from `peaks_kernel`
    words_ptr,  # int32 [rows, 2]: low and high word of each row's key
    temperatures_ptr,  # fp64 [rows]
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
    tl.store(chosen_ptr + row * stride, tl.min(tl.where(best == top, which, 1 << 30), axis=0))


@dataclass(frozen=True, slots=True)
class Noise:
    """How each row is to be chosen: its key's words [rows, 2] int32 and its temperature [rows] fp64 (0: greedy)."""

    words: Tensor
    temperatures: Tensor

    @staticmethod
    def room(rows: int, device: torch.device) -> Noise:
        return Noise(
            torch.zeros(rows, 2, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.float64, device=device),
        )


class Chooser:
    """Choices among the first `vocab` columns of up to `rows` rows of logits."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._blocks = -(-vocab // BLOCK)
        self._best = torch.zeros(2, rows, self._blocks, dtype=torch.float64, device=device)
        self._which = torch.zeros(2, rows, self._blocks, dtype=torch.int32, device=device)

    def choose(self, logits: Tensor, rows: int, noise: Noise | None, chosen: Tensor) -> None:
        """Fill `chosen[:rows]` (int32, any stride). `noise` None: every row greedily."""
        grid = (rows, self._blocks)
        width = 1 << (self._blocks - 1).bit_length()
        stride = logits.stride(0)
        peaks_kernel[grid](logits, self._best[0], self._which[0], stride, self._vocab, BLOCK=BLOCK)
        best, which = self._best[0], self._which[0]
        if noise is not None:
            best, which = self._best[1], self._which[1]
            perturb_kernel[grid](
                logits,
                self._best[0],
                noise.words,
                noise.temperatures,
                best,
                which,
                stride,
                self._vocab,
                self._blocks,
                BLOCK=BLOCK,
                BLOCKS=width,
            )
        pick_kernel[(rows,)](best, which, chosen, chosen.stride(0), self._blocks, BLOCKS=width)
