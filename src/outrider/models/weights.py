"""Weights as the decoders use them: projections that are applied together lie together.

Filled one checkpoint tensor at a time, so loading never holds more than the weights and one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.architecture import Architecture


@dataclass(slots=True)
class LayerWeights:
    """One layer. Linear weights are [out, in] in the model's dtype; norms and biases stay in fp32."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(slots=True)
class DecoderWeights:
    embedding: Tensor
    """[vocab, hidden]"""
    head: Tensor
    """[vocab, hidden]; the embedding itself where the two are tied."""
    norm: Tensor
    layers: list[LayerWeights] = field(default_factory=list)


def load_weights(
    architecture: Architecture, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Gather checkpoint tensors under their Hugging Face names; a missing or misshapen one is a `ModelError`."""
    weights, places = _allocate(architecture, dtype, device)
    missing = set(places)
    for name, tensor in tensors:
        name = name.removeprefix("model.language_model.").removeprefix("model.").removeprefix("language_model.")
        place = places.get(name)
        if place is None:
            if name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq"):
                continue
            raise ModelError(f"the checkpoint holds {name!r}, which a {architecture.family} model does not have")
        if place.shape != tensor.shape:
            raise ModelError(
                f"the checkpoint's {name!r} has shape {list(tensor.shape)}, config.json asks for {list(place.shape)}"
            )
        place.copy_(tensor)
        if architecture.norm_offset and "norm" in name:
            place.add_(architecture.norm_offset)
        missing.discard(name)
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ModelError(f"the checkpoint lacks {len(missing)} tensors ({some}, …); is the download complete?")
    return weights


def _allocate(a: Architecture, dtype: torch.dtype, device: torch.device) -> tuple[DecoderWeights, dict[str, Tensor]]:
    """Empty weights, and the place of every checkpoint tensor in them (fused ones as views)."""
    places: dict[str, Tensor] = {}

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def vector(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    embedding = matrix(a.vocab_size, a.hidden)
    head = embedding if a.tied else matrix(a.vocab_size, a.hidden)
    weights = DecoderWeights(embedding, head, vector(a.hidden))
    places["embed_tokens.weight"] = embedding
    places["norm.weight"] = weights.norm
    if not a.tied:
        places["lm_head.weight"] = head
    for i in range(len(a.layers)):
        layer = LayerWeights(
            qkv=matrix(a.q_width + 2 * a.kv_width, a.hidden),
            o=matrix(a.hidden, a.q_width),
            gate_up=matrix(2 * a.mlp, a.hidden),
            down=matrix(a.hidden, a.mlp),
            attention_norm=vector(a.hidden),
            mlp_norm=vector(a.hidden),
            q_norm=vector(a.head_dim) if a.qk_norm else None,
            k_norm=vector(a.head_dim) if a.qk_norm else None,
            attention_out_norm=vector(a.hidden) if a.sandwich_norms else None,
            mlp_out_norm=vector(a.hidden) if a.sandwich_norms else None,
            qkv_bias=vector(a.q_width + 2 * a.kv_width) if a.qkv_bias else None,
            o_bias=vector(a.hidden) if a.output_bias else None,
            gate_up_bias=vector(2 * a.mlp) if a.mlp_bias else None,
            down_bias=vector(a.hidden) if a.mlp_bias else None,
        )
        weights.layers.append(layer)
        q, k, v = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
        fused: list[tuple[tuple[str, ...], Tensor, Tensor | None, list[int]]] = [
            ((q, k, v), layer.qkv, layer.qkv_bias, [a.q_width, a.kv_width, a.kv_width]),
            (("self_attn.o_proj",), layer.o, layer.o_bias, [a.hidden]),
            (("mlp.gate_proj", "mlp.up_proj"), layer.gate_up, layer.gate_up_bias, [a.mlp, a.mlp]),
            (("mlp.down_proj",), layer.down, layer.down_bias, [a.hidden]),
        ]
        for names, weight, bias, sizes in fused:
            for name, part in zip(names, torch.split(weight, sizes), strict=True):
                places[f"layers.{i}.{name}.weight"] = part
            if bias is not None:
                for name, part in zip(names, torch.split(bias, sizes), strict=True):
                    places[f"layers.{i}.{name}.bias"] = part
        mlp_norm = "pre_feedforward_layernorm" if a.sandwich_norms else "post_attention_layernorm"
        norms = {
            "input_layernorm": layer.attention_norm,
            mlp_norm: layer.mlp_norm,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
        }
        if a.sandwich_norms:
            norms["post_attention_layernorm"] = layer.attention_out_norm
            norms["post_feedforward_layernorm"] = layer.mlp_out_norm
        for name, norm in norms.items():
            if norm is not None:
                places[f"layers.{i}.{name}.weight"] = norm
    return weights, places
