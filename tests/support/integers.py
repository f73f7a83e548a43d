"""The rounding of inputs that native/gemm_int8.h defines, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.models.precision import BLOCK

OUTLIER, FINE = 20, 254


def lines(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [rows, depth] in blocks: coarse and fine values [rows, blocks, BLOCK], their scales [rows, blocks]."""
    split = pad(x, (0, -x.shape[1] % BLOCK)).view(len(x), -1, BLOCK)
    peaks = split.abs().amax(2)
    scales = peaks / 127
    scaled = torch.where(scales[:, :, None] > 0, split * (1 / scales)[:, :, None], 0.0)
    coarse = scaled.round()
    outliers = peaks > x.abs().mean(1, keepdim=True) * OUTLIER
    fine = torch.where(outliers[:, :, None], ((scaled - coarse) * FINE).round(), 0.0)
    return coarse, fine, scales, torch.where(outliers, scales / FINE, 0.0)


def narrowed(x: Tensor) -> Tensor:
    """What the kernels multiply instead of x [..., depth]."""
    flat = x.reshape(-1, x.shape[-1])
    coarse, fine, scales, fine_scales = lines(flat)
    whole = coarse * scales[:, :, None] + fine * fine_scales[:, :, None]
    return whole.flatten(1)[:, : flat.shape[1]].reshape(x.shape)
