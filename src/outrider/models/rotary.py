"""Rotary position tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.models.architecture import Llama3Scaling, Rope


def rotation_table(rope: Rope, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [length, dim/2].

    In fp32 throughout, angles included, because that is how models are trained and run elsewhere: the rounding of the
    angle grows with the position and is part of what transformers computes.
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.llama3 is None:
        frequencies = frequencies / rope.factor
    else:
        frequencies = _stretched(frequencies, rope.factor, rope.llama3)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos().to(device), angles.sin().to(device)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., heads, dim] turned by each row's position, in fp32; pairs are (j, j + dim/2)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _stretched(frequencies: Tensor, factor: float, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original_context * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
