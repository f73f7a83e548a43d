"""A head grown with its target: the same drafts at the cost of a big model's head; see `twin.py`.

The target's states are zero beyond the source's width, and so the head's own must be: fc, o_proj and down_proj have no
weights there. Norms, heads and neurons as in a twin. The draft vocabulary is padded with ids beyond the source's
vocabulary, whose logits are computed and never chosen (`twin_model.CutVocabulary` cuts the same ids off the target's).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from outrider.bench.head_shapes import HeadAxis, head_axes, head_shape, head_sizes
from outrider.bench.shapes import normal
from outrider.bench.twin import TwinShape, twin_architecture
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import SCALES, Scaled, target_ids

DRAFT_VOCAB = 32_000
"""What heads of big models usually have; fewer where the twin's vocabulary has no room for the padding."""


def grown_head(
    checkpoint: HeadCheckpoint, shape: TwinShape, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> HeadCheckpoint:
    """The head of the cost twin of `checkpoint`'s target; made on `device` in `dtype`, norms in fp32."""
    source = checkpoint.config
    twin = _grown_config(source, shape)
    scale = math.sqrt(source.hidden / twin.hidden)
    tensors: dict[str, Tensor] = {}
    for name, axes in head_axes(twin).items():
        given = Scaled(checkpoint.tensors[name], checkpoint.tensors.get(name.removesuffix(".weight") + SCALES))
        out = _filler(name, axes, source, twin, scale, device, dtype, seed)
        values = given.wide(torch.float32).to(device)
        values = (values * scale if len(axes) == 1 else values).to(out.dtype)
        # Axes taken apart (heads into groups), every part of the source's is the first of the twin's.
        places = [n for axis in axes for n in head_sizes(source, axis)]
        room = out.view([n for axis in axes for n in head_sizes(twin, axis)])
        room[tuple(slice(n) for n in places)] = values.reshape(places)
        tensors[name] = out
    padding = torch.arange(twin.draft_vocab - source.draft_vocab) + source.target_vocab
    tensors["d2t"] = torch.cat([target_ids(checkpoint.tensors["d2t"]), padding]) - torch.arange(twin.draft_vocab)
    return HeadCheckpoint(twin, tensors, checkpoint.about)


def _grown_config(source: HeadConfig, shape: TwinShape) -> HeadConfig:
    spare = shape.vocab_size - source.target_vocab
    draft_vocab = min(max(source.draft_vocab, DRAFT_VOCAB), source.draft_vocab + spare)
    own = replace(shape, layers=len(source.architecture.layers), vocab_size=draft_vocab)
    return replace(
        source,
        architecture=twin_architecture(source.architecture, own),
        target_hidden=shape.hidden,
        target_vocab=shape.vocab_size,
        target_layers=shape.layers,
    )


def _filler(
    name: str,
    axes: tuple[HeadAxis, ...],
    source: HeadConfig,
    twin: HeadConfig,
    scale: float,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> Tensor:
    """Random numbers, but zeros wherever a number would reach a state beyond the source's width."""
    size = head_shape(twin, axes)
    if len(axes) == 1:
        return normal(f"head.{name}", size, device, torch.float32, seed, mean=scale, std=0.1 * scale)
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return torch.zeros(size, device=device, dtype=dtype)
    out = normal(f"head.{name}", size, device, dtype, seed)
    if name == "fc.weight":
        out[source.hidden :] = 0
    return out
