"""Number formats a model can run in: what its matrices are stored as, and what it computes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.models.native.formats import quantised


@dataclass(frozen=True, slots=True)
class Precision:
    """`compute` is the dtype of activations and cache. `weights` is that of the matrices, embeddings included; int8
    means a scale for every `BLOCK` weights of an output channel, and inputs rounded to int8 too (native/gemm_int8.h);
    fp8 (e4m3) a scale for every output channel, inputs and what is looked up left in `compute` (cuda/backend.py).
    Such a model is a target of its own: exactness is relative to it. Norms, biases and sums are fp32 everywhere."""

    name: str
    compute: torch.dtype
    weights: torch.dtype
    stored: bool = False
    """Matrices that a file quantised stay so in memory; inputs are rounded to int8 (native/stored.h). What it has as
    numbers is multiplied as such."""

    @property
    def quantised(self) -> bool:
        return self.weights != self.compute

    @property
    def source(self) -> torch.dtype:
        """What a checkpoint should be read as: a quantised weight is rounded once, from the exact number."""
        return torch.float32 if self.quantised else self.weights


FP32 = Precision("fp32", torch.float32, torch.float32)
BF16 = Precision("bf16", torch.bfloat16, torch.bfloat16)
FP16 = Precision("fp16", torch.float16, torch.float16)
INT8 = Precision("int8", torch.bfloat16, torch.int8)
FP8 = Precision("fp8", torch.bfloat16, torch.float8_e4m3fn)
NATIVE = Precision("native", torch.bfloat16, torch.float32, stored=True)

PRECISIONS: Mapping[str, Precision] = {precision.name: precision for precision in (BF16, FP16, FP32, INT8, FP8, NATIVE)}


BLOCK = 128
"""Neighbouring weights of an output channel that share a scale (`BLOCK` of native/gemm_int8.h)."""


def blocks(inputs: int) -> int:
    return -(-inputs // BLOCK)


def quantise(weight: Tensor, values: Tensor, scales: Tensor) -> None:
    """weight [out, in] ≈ values * scales[out, blocks], symmetric: the largest of a block is at most ±127. Scales
    are fp32 that are whole in bf16, which is how they are stored."""
    if quantised(weight, values, scales, BLOCK):
        return
    for part, into, scale in zip(*(torch.split(t, _ROWS) for t in (weight, values, scales)), strict=True):
        missing = -part.shape[1] % BLOCK
        wide = pad(part, (0, missing)) if missing else part
        wide = wide.reshape(len(part), -1, BLOCK)
        bits = (wide.abs().amax(dim=2) / 127.0).float().view(torch.int32)
        scale.copy_(((bits + 0xFFFF) & ~0xFFFF).view(torch.float32))  # rounded up, so that no value passes 127
        scale.masked_fill_(scale == 0, 1.0)  # of zeros alone
        into.copy_(torch.round(wide / scale[:, :, None]).flatten(1)[:, : part.shape[1]])


def quantise_channels(weight: Tensor, values: Tensor, scales: Tensor) -> None:
    """weight [out, in] ≈ values * scales[out], int8 or fp8, symmetric: the largest of a channel is the largest there is
    (of int8 ±127). Computed where `values` lie."""
    most = 127.0 if values.dtype == torch.int8 else torch.finfo(values.dtype).max
    for part, into, scale in zip(*(torch.split(t, _ROWS) for t in (weight, values, scales)), strict=True):
        wide = part.to(into.device, torch.float32)
        scale.copy_(wide.abs().amax(dim=1) / most)
        scale.masked_fill_(scale == 0, 1.0)  # of zeros alone
        exact = wide / scale[:, None]
        into.copy_(exact.round_() if into.dtype == torch.int8 else exact)


def dequantised(values: Tensor, scales: Tensor) -> Tensor:
    """fp32 [out, in] of int8 or fp8 values and a scale per channel or per block of one."""
    if scales.dim() == 1:
        return values.float() * scales[:, None]
    return values.float() * scales.repeat_interleave(BLOCK, dim=1)[:, : values.shape[1]]


_ROWS = 1024
"""Rows quantised at once, so that no second copy of a large matrix is made."""
