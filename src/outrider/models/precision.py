"""Number formats a model can run in: what its matrices are stored as, and what it computes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Precision:
    """`compute` is the dtype of activations and cache. `weights` is that of the matrices, embeddings included; int8
    means one scale per output channel, and such a model is a target of its own: exactness is relative to it. Norms,
    biases, scales and sums are fp32 in every format."""

    name: str
    compute: torch.dtype
    weights: torch.dtype

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

PRECISIONS: Mapping[str, Precision] = {precision.name: precision for precision in (BF16, FP16, FP32, INT8)}


def quantise(weight: Tensor, values: Tensor, scales: Tensor) -> None:
    """weight [out, in] ≈ values * scales[:, None], symmetric: the largest of a row becomes ±127."""
    torch.div(weight.abs().amax(dim=1), 127.0, out=scales)
    scales.masked_fill_(scales == 0, 1.0)  # a row of zeros
    parts = (torch.split(tensor, _ROWS) for tensor in (weight, values, scales))
    for part, into, scale in zip(*parts, strict=True):
        into.copy_(torch.round(part / scale[:, None]).clamp_(-127, 127))


_ROWS = 1024
"""Rows quantised at once, so that no second copy of a large matrix is made."""
