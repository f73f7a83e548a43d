"""Heads for tiny targets: random ones for arithmetic, and one that is right often enough to be worth refusing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import tensor_shapes


def config_of(
    architecture: Architecture,
    *,
    draft_vocab: int,
    layers: int = 1,
    aux_hidden_layers: tuple[int, ...] = (0, 1, 3),
    norm: bool = False,
) -> HeadConfig:
    config = HeadConfig.beside(architecture, draft_vocab, layers, aux_hidden_layers)
    return HeadConfig(
        config.architecture,
        config.aux_hidden_layers,
        config.target_hidden,
        config.target_vocab,
        config.target_layers,
        norm,
    )


def offsets(ids: Tensor) -> Tensor:
    return ids - torch.arange(len(ids))


def random_head(config: HeadConfig, seed: int = 0, std: float = 0.2) -> HeadCheckpoint:
    """Every parameter random, norms included, so that every term matters."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) * std
        for name, shape in tensor_shapes(config).items()
        if name != "d2t"
    }
    ids = torch.randperm(config.target_vocab, generator=generator)[: config.draft_vocab].sort().values
    return HeadCheckpoint(config, {**tensors, "d2t": offsets(ids)}, {})


def sensible_head(source: Mapping[str, Tensor], architecture: Architecture, ids: Tensor) -> HeadCheckpoint:
    """A head made of the target's own tensors: it reads the state behind the last layer, adds what the target's last
    layer makes of it, and looks at the result with the target's own norm and vocabulary rows. It says again what the
    target said before, more or less: right where text repeats, and often enough where the target is unsure."""
    config = config_of(architecture, draft_vocab=len(ids), aux_hidden_layers=(0, len(architecture.layers)))
    hidden = architecture.hidden
    last = f"model.layers.{len(architecture.layers) - 1}."
    tensors = {
        "fc.weight": torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], dim=1),
        "norm.weight": source["model.norm.weight"],
        "lm_head.weight": source.get("lm_head.weight", source["model.embed_tokens.weight"])[ids],
        "layers.0.hidden_norm.weight": source[last + "input_layernorm.weight"],
        "d2t": offsets(ids),
    }
    for name in tensor_shapes(config):
        if name in tensors:
            continue
        weight = source[last + name.removeprefix("layers.0.")]
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            weight = torch.cat([weight / 2, weight / 2], dim=1)  # the embedding's half, the state's
        tensors[name] = weight
    return HeadCheckpoint(config, tensors, {})
