"""A drafting head's tensors by their axes: random ones of any shape, for speed; see `shapes.py`."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from outrider.bench.shapes import LAYER, STD, Axis, normal, sizes
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig

HeadAxis = Axis | Literal["pair", "features"]
"""Beside a decoder's: the embedding next to the state, and the target's states one after the other."""


def head_axes(config: HeadConfig) -> dict[str, tuple[HeadAxis, ...]]:
    """Axes of every tensor of a head's checkpoint but `d2t`; vectors are the norms."""
    axes: dict[str, tuple[HeadAxis, ...]] = {"fc.weight": ("hidden", "features")}
    for i in range(len(config.architecture.layers)):
        for part, given in LAYER.items():
            wide = i == 0 and part.endswith(("q_proj", "k_proj", "v_proj"))
            axes[f"layers.{i}.{part}.weight"] = (given[0], "pair") if wide else given
    return axes | {
        "layers.0.hidden_norm.weight": ("hidden",),
        "norm.weight": ("hidden",),
        "lm_head.weight": ("vocab", "hidden"),
    }


def head_sizes(config: HeadConfig, axis: HeadAxis) -> tuple[int, ...]:
    match axis:
        case "pair":
            return (2, config.hidden)
        case "features":
            return (len(config.aux_hidden_layers), config.target_hidden)
        case _:
            return sizes(config.architecture, axis)


def head_shape(config: HeadConfig, axes: tuple[HeadAxis, ...]) -> tuple[int, ...]:
    return tuple(math.prod(head_sizes(config, axis)) for axis in axes)


def random_head(config: HeadConfig, device: torch.device, dtype: torch.dtype, seed: int) -> HeadCheckpoint:
    """A head of this shape that knows nothing: made on `device`, norms in fp32. It drafts the first tokens."""
    tensors: dict[str, Tensor] = {}
    for name, axes in head_axes(config).items():
        shape = head_shape(config, axes)
        if len(axes) == 1:
            tensors[name] = normal(f"head.{name}", shape, device, torch.float32, seed, mean=1.0)
        else:
            tensors[name] = normal(f"head.{name}", shape, device, dtype, seed, std=STD)
    tensors["d2t"] = torch.zeros(config.draft_vocab, dtype=torch.int64)
    return HeadCheckpoint(config, tensors, {})
