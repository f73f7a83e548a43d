"""Rotary position tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.models.architecture import Llama3Scaling, Rope


def rotation_table(rope: Rope, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [length, dim/2]; what does not turn has the angle 0, so that no decoder need know of it.

    In fp32 throughout, angles included, because that is how models are trained and run elsewhere: the rounding of the
    angle grows with the position and is part of what transformers computes.
    """
    exponents = torch.arange(0, rope.turned, 2, dtype=torch.int64).float() / rope.turned
    frequencies = 1.0 / rope.theta**exponents
    if rope.llama3 is None:
        frequencies = frequencies / rope.factor
    else:
        frequencies = _stretched(frequencies, rope.factor, rope.llama3)
    frequencies = pad(frequencies, (0, rope.still // 2))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos().to(device), angles.sin().to(device)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., heads, dim] turned by each row's position, in fp32; pairs are (j, j + dim/2)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def paired(rope: Rope) -> Tensor:
    """[dim]: the order of a head's numbers in which pairs that turn together lie dim/2 apart, as in a head that turns
    whole. Checkpoints have them turned/2 apart and what does not turn behind them. Queries and keys in the same order
    give the same scores."""
    turning, still = torch.arange(rope.turned).chunk(2), torch.arange(rope.turned, rope.dim).chunk(2)
    return torch.cat([part for half in zip(turning, still, strict=True) for part in half])


def _stretched(frequencies: Tensor, factor: float, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original_context * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
