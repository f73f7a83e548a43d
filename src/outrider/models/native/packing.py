"""Weights in the layout the matrix kernel streams: see gemm.h."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PANEL = 16
PAIR = 32
DEPTH = 32


def packed(weight: Tensor) -> Tensor:
    """[columns, depth] → panels of 16 columns: fp32 [panel, depth, 16], bf16 [panel, depth/2, 16, 2] as int32 pairs."""
    weight = pad(weight, (0, -weight.shape[1] % DEPTH, 0, -weight.shape[0] % PAIR))
    lanes = weight.contiguous().view(torch.int32 if weight.dtype == torch.bfloat16 else torch.float32)
    return lanes.view(-1, PANEL, lanes.shape[1]).transpose(1, 2).contiguous()


def interleaved(gate_up: Tensor) -> Tensor:
    """[gate; up] rows as alternating panels, so that a pair holds 16 gate columns and the matching 16 up columns."""
    halves = [pad(half, (0, 0) * (half.dim() - 1) + (0, -half.shape[0] % PANEL)) for half in gate_up.chunk(2)]
    panels = [half.view(-1, PANEL, *half.shape[1:]) for half in halves]
    return torch.stack(panels, dim=1).flatten(0, 2)


def padded_bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else pad(bias.float(), (0, -bias.shape[0] % PAIR)).contiguous()
