"""Weights in the layout the matrix kernel streams: see gemm.h."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PANEL = 16
PAIR = 32
DEPTH = 32


def packed(weight: Tensor) -> Tensor:
    """[columns, depth] in the order the kernel reads: fp32 [pair, depth, 32], bf16 [pair, depth/32, panel, 16, 16] with
    two neighbouring inputs in one int32."""
    weight = pad(weight, (0, -weight.shape[1] % DEPTH, 0, -weight.shape[0] % PAIR)).contiguous()
    if weight.dtype == torch.float32:
        return weight.view(-1, PAIR, weight.shape[1]).transpose(1, 2).contiguous()
    lanes = weight.view(torch.int32).view(-1, PAIR // PANEL, PANEL, weight.shape[1] // DEPTH, DEPTH // 2)
    return lanes.permute(0, 3, 1, 4, 2).contiguous()


def interleaved(gate_up: Tensor) -> Tensor:
    """[gate; up] rows as alternating panels, so that a pair holds 16 gate columns and the matching 16 up columns."""
    halves = [pad(half, (0, 0) * (half.dim() - 1) + (0, -half.shape[0] % PANEL)) for half in gate_up.chunk(2)]
    panels = [half.view(-1, PANEL, *half.shape[1:]) for half in halves]
    return torch.stack(panels, dim=1).flatten(0, 2)


def padded_bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else pad(bias.float(), (0, -bias.shape[0] % PAIR)).contiguous()
