"""Rotary position tables."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.architecture import Rope


def rotation_table(rope: Rope, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim/2] in fp32, from angles in fp64."""
    frequencies = torch.tensor(rope.inv_freq, dtype=torch.float64)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return (angles.cos() * rope.scale).float().to(device), (angles.sin() * rope.scale).float().to(device)
