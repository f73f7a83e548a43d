"""A target of so few tokens that chance alone makes a random head right now and then, and such a head."""

from __future__ import annotations

from dataclasses import replace

import torch
from tiny_gpu import DEVICE
from tiny_gpu import TARGET as DEEPER

from outrider.bench.head_shapes import random_head
from outrider.bench.shapes import random_weights
from outrider.models.architecture import Architecture
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig

CPU = torch.device("cpu")

VOCAB = 12

TARGET = replace(DEEPER, vocab_size=VOCAB, layers=DEEPER.layers[:1])


def target_tensors(target: Architecture = TARGET) -> list[tuple[str, torch.Tensor]]:
    """Large enough for layers to matter."""
    weights = random_weights(target, CPU, torch.float32, seed=1)
    return [(name, (tensor * 8 if tensor.dim() > 1 else tensor).to(DEVICE)) for name, tensor in weights]


def loud_head(
    layers: int = 1, *, norm_before_residual: bool = False, padding: int = 0, target: Architecture = TARGET
) -> HeadCheckpoint:
    """Reads both states; drafts seven of the tokens, and as many `padding` ids that may not be chosen."""
    config = HeadConfig.beside(target, 7 + padding, layers, aux_hidden_layers=(0, 1))
    config = replace(config, norm_before_residual=norm_before_residual, target_vocab=VOCAB)
    made = random_head(config, CPU, torch.float32, seed=2)
    ids = torch.tensor([1, 2, 4, 5, 8, 9, 11])
    tensors = {name: t * 8 if t.dim() > 1 else t for name, t in made.tensors.items()}
    tensors["d2t"] = torch.cat([ids, VOCAB + torch.arange(padding)]) - torch.arange(7 + padding)
    return replace(made, tensors=tensors)
