"""Weights as the decoders use them: projections that are applied together lie together.

Filled one checkpoint tensor at a time, so loading never holds more than the weights and one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.architecture import Architecture
from outrider.models.memory import give_back, lazy_zeros
from outrider.models.precision import blocks, quantise
from outrider.models.stored import Stored

StoredRows = dict[int, Stored]
"""The rows of a matrix that stay as a file has them, by the first of each piece. The others are numbers."""


@dataclass(slots=True)
class LayerWeights:
    """One layer. Linear weights are [out, in] in the dtype asked for; norms and biases are fp32,
    and so are scales, [out, blocks] of an int8 one (`quantise`)."""

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
    qkv_scales: Tensor | None = None
    o_scales: Tensor | None = None
    gate_up_scales: Tensor | None = None
    down_scales: Tensor | None = None
    stored: dict[str, StoredRows] = field(default_factory=dict)
    """By the matrix."""


L = TypeVar("L")


@dataclass(slots=True)
class DecoderWeights(Generic[L]):
    """All weights, layers in the form `L` a decoder wants."""

    embedding: Tensor
    """[vocab, hidden]"""
    head: Tensor
    """[vocab, hidden]; the embedding itself where the two are tied."""
    norm: Tensor
    layers: list[L]
    embedding_scales: Tensor | None = None
    head_scales: Tensor | None = None
    stored_embedding: StoredRows = field(default_factory=dict)
    stored_head: StoredRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint tensor goes: itself, or quantised; and where it is noted if it stays in the file."""

    values: Tensor
    scales: Tensor | None = None
    stored: StoredRows = field(default_factory=dict)
    first: int = 0

    def fill(self, tensor: Tensor | Stored) -> None:
        if isinstance(tensor, Stored):
            self.stored[self.first] = tensor
        elif self.scales is None:
            self.values.copy_(tensor)
        else:
            quantise(tensor, self.values, self.scales)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Room for a matrix whose rows may come from several checkpoint tensors."""

    values: Tensor
    scales: Tensor | None
    stored: StoredRows = field(default_factory=dict)

    def parts(self, sizes: list[int]) -> list[_Place]:
        scales = [None] * len(sizes) if self.scales is None else torch.split(self.scales, sizes)
        values, firsts = torch.split(self.values, sizes), [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            _Place(value, scale, self.stored, first) for value, scale, first in zip(values, scales, firsts, strict=True)
        ]


def load_weights(
    architecture: Architecture,
    tensors: Iterable[tuple[str, Tensor | Stored]],
    dtype: torch.dtype,
    device: torch.device,
    finish: Callable[[LayerWeights], L],
) -> DecoderWeights[L]:
    """Gather checkpoint tensors under their Hugging Face names; a missing or misshapen one is a `ModelError`.

    Matrices become `dtype`; int8 means quantised as they come.
    `finish` turns a layer into the decoder's form as soon as it is complete, so that a decoder that repacks its weights
    never holds them twice.
    """
    weights: DecoderWeights[L]
    weights, layers, places = _allocate(architecture, dtype, device)
    missing = set(places)
    finished: list[L | None] = [None] * len(layers)
    for name, tensor in tensors:
        name = name.removeprefix("model.language_model.").removeprefix("model.").removeprefix("language_model.")
        place = places.pop(name, None)
        if place is None:
            if name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq"):
                continue
            raise ModelError(f"the checkpoint holds {name!r}, which a {architecture.family} model does not have")
        if (wanted := place.values.shape) != tensor.shape:
            raise ModelError(
                f"the checkpoint's {name!r} has shape {list(tensor.shape)}, config.json asks for {list(wanted)}"
            )
        place.fill(tensor)
        if architecture.norm_offset and "norm" in name:
            place.values.add_(architecture.norm_offset)
        missing.discard(name)
        del place  # a view that would keep the layer's memory
        prefix, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        if prefix == "layers" and not any(other.startswith(f"layers.{number}.") for other in missing):
            finished[int(number)] = finish(layers.pop(int(number)))
            give_back()
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ModelError(f"the checkpoint lacks {len(missing)} tensors ({some}, …); is the download complete?")
    weights.layers = [layer for layer in finished if layer is not None]
    return weights


def _allocate(
    a: Architecture, dtype: torch.dtype, device: torch.device
) -> tuple[DecoderWeights[L], dict[int, LayerWeights], dict[str, _Place]]:
    """Empty weights, empty layers, and the place of every checkpoint tensor in them (fused ones as views)."""
    layers: dict[int, LayerWeights] = {}
    places: dict[str, _Place] = {}

    def vector(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    def matrix(rows: int, columns: int) -> _Matrix:
        values = lazy_zeros((rows, columns), dtype, device)
        scales = torch.empty(rows, blocks(columns), device=device) if dtype == torch.int8 else None
        return _Matrix(values, scales)

    embedding = matrix(a.vocab_size, a.hidden)
    head = embedding if a.tied else matrix(a.vocab_size, a.hidden)
    weights: DecoderWeights[L] = DecoderWeights(
        embedding.values,
        head.values,
        vector(a.hidden),
        [],
        embedding.scales,
        head.scales,
        embedding.stored,
        head.stored,
    )
    (places["embed_tokens.weight"],) = embedding.parts([a.vocab_size])
    places["norm.weight"] = _Place(weights.norm)
    if not a.tied:
        (places["lm_head.weight"],) = head.parts([a.vocab_size])
    for i in range(len(a.layers)):
        qkv, o = matrix(a.q_width + 2 * a.kv_width, a.hidden), matrix(a.hidden, a.q_width)
        gate_up, down = matrix(2 * a.mlp, a.hidden), matrix(a.hidden, a.mlp)
        layer = LayerWeights(
            qkv=qkv.values,
            o=o.values,
            gate_up=gate_up.values,
            down=down.values,
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
            qkv_scales=qkv.scales,
            o_scales=o.scales,
            gate_up_scales=gate_up.scales,
            down_scales=down.scales,
            stored={"qkv": qkv.stored, "o": o.stored, "gate_up": gate_up.stored, "down": down.stored},
        )
        layers[i] = layer
        q, k, v = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
        fused: list[tuple[tuple[str, ...], _Matrix, Tensor | None, list[int]]] = [
            ((q, k, v), qkv, layer.qkv_bias, [a.q_width, a.kv_width, a.kv_width]),
            (("self_attn.o_proj",), o, layer.o_bias, [a.hidden]),
            (("mlp.gate_proj", "mlp.up_proj"), gate_up, layer.gate_up_bias, [a.mlp, a.mlp]),
            (("mlp.down_proj",), down, layer.down_bias, [a.hidden]),
        ]
        for names, weight, bias, sizes in fused:
            for name, place in zip(names, weight.parts(sizes), strict=True):
                places[f"layers.{i}.{name}.weight"] = place
            if bias is not None:
                for name, part in zip(names, torch.split(bias, sizes), strict=True):
                    places[f"layers.{i}.{name}.bias"] = _Place(part)
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
                places[f"layers.{i}.{name}.weight"] = _Place(norm)
    return weights, layers, places
