"""Weights as the decoders use them: projections that are applied together lie together.

Filled one checkpoint tensor at a time, so loading never holds more than the weights and one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.architecture import Architecture, Rope
from outrider.models.memory import lazy_zeros, trim_malloc
from outrider.models.native.formats import requantise
from outrider.models.precision import BLOCK, blocks, quantise, quantise_channels
from outrider.models.rotary import paired
from outrider.models.stored import Fp8, Stored

AnyTensor = Tensor | Stored | Fp8
"""What a checkpoint's tensor comes as."""
StoredRows = dict[int, Stored]
"""The rows of a matrix that stay as a file has them, by the first of each piece. The others are numbers."""


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """One MLP of a layer, its parts as in `LayerWeights`."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    gate_up_scales: Tensor | None
    down_scales: Tensor | None
    stored_gate_up: StoredRows
    stored_down: StoredRows


@dataclass(slots=True)
class LayerWeights:
    """One layer. Linear weights are [out, in] in the dtype asked for; norms and biases are fp32, and so are scales,
    [out, blocks] of an int8 one (`quantise`), [out] of an fp8 one (`quantise_channels`). With a router, gate_up and
    down are [experts, out, in]."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    """Empty where the family has no norms before attention and MLP."""
    mlp_norm: Tensor
    attention_norm_bias: Tensor | None = None
    """Then the norm is LayerNorm."""
    mlp_norm_bias: Tensor | None = None
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
    router: Tensor | None = None
    """[experts, hidden] in fp32: it is small and decides much."""
    stored: dict[str, StoredRows] = field(default_factory=dict)
    """By the matrix; of an expert by its number, too: gate_up.3."""

    def each_mlp(self) -> Iterator[MLPWeights]:
        """The one there is, or every expert."""
        if self.router is None:
            yield MLPWeights(
                self.gate_up,
                self.down,
                self.gate_up_bias,
                self.down_bias,
                self.gate_up_scales,
                self.down_scales,
                self.stored.get("gate_up", {}),
                self.stored.get("down", {}),
            )
        for i in range(0 if self.router is None else len(self.router)):
            yield MLPWeights(
                self.gate_up[i],
                self.down[i],
                None,
                None,
                None if self.gate_up_scales is None else self.gate_up_scales[i],
                None if self.down_scales is None else self.down_scales[i],
                self.stored.get(f"gate_up.{i}", {}),
                self.stored.get(f"down.{i}", {}),
            )


L = TypeVar("L")


@dataclass(slots=True)
class DecoderWeights(Generic[L]):
    """All weights, layers in the form `L` a decoder wants."""

    embedding: Tensor
    """[vocab, hidden]"""
    head: Tensor
    """[vocab, hidden]; the embedding itself where the two are tied and of one format."""
    norm: Tensor
    layers: list[L]
    norm_bias: Tensor | None = None
    embedding_scales: Tensor | None = None
    head_scales: Tensor | None = None
    stored_embedding: StoredRows = field(default_factory=dict)
    stored_head: StoredRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint tensor goes: itself, or quantised; and where it is noted if it stays in the file."""

    values: Tensor
    scales: Tensor | None = None
    stored: StoredRows | None = None
    """None: it cannot."""
    first: int = 0
    order: Tensor | None = None
    """Of its rows; None: as they come."""
    also: _Place | None = None
    """Where it goes as well."""

    def fill(self, tensor: AnyTensor) -> None:
        if self.also is not None:
            self.also.fill(tensor)
        if self.order is not None:
            tensor = tensor[self.order]
        if isinstance(tensor, Fp8):
            if self.scales is not None and self.values.dtype == tensor.values.dtype:
                self.values.copy_(tensor.values)
                self.scales.copy_(tensor.scales)
                return
            tensor = tensor.wide()
        if isinstance(tensor, Stored):
            if self.stored is None:
                self.values.copy_(tensor.numbers())
            else:
                self.stored[self.first] = tensor
        elif self.scales is None:
            self.values.copy_(tensor)
        elif self.scales.dim() == 1:
            quantise_channels(tensor, self.values, self.scales)
        else:
            quantise(tensor, self.values, self.scales)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Room for a matrix whose rows may come from several checkpoint tensors."""

    values: Tensor
    scales: Tensor | None
    stored: StoredRows = field(default_factory=dict)

    def expert(self, number: int) -> _Matrix:
        return _Matrix(self.values[number], None if self.scales is None else self.scales[number])

    def parts(self, sizes: list[int]) -> list[_Place]:
        scales = [None] * len(sizes) if self.scales is None else torch.split(self.scales, sizes)
        values, firsts = torch.split(self.values, sizes), [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            _Place(value, scale, self.stored, first) for value, scale, first in zip(values, scales, firsts, strict=True)
        ]


def write(stored: StoredRows, values: Tensor, scales: Tensor | None) -> None:
    """Rows that stayed in the file, as numbers or quantised, to their places in a matrix."""
    for first, rows in stored.items():
        part = slice(first, first + len(rows))
        if scales is None:
            values[part].copy_(rows.numbers())
        else:
            requantise(rows, values[part], scales[part], BLOCK)
    stored.clear()


def load_weights(
    architecture: Architecture,
    tensors: Iterable[tuple[str, AnyTensor]],
    dtype: torch.dtype,
    device: torch.device,
    finish: Callable[[LayerWeights], L],
    *,
    embedding: torch.dtype | None = None,
    head: torch.dtype | None = None,
) -> DecoderWeights[L]:
    """Gather checkpoint tensors under their Hugging Face names; a missing or misshapen one is a `ModelError`.

    Matrices become `dtype`, the embedding and the output layer `embedding` and `head` where given; int8 and fp8 mean
    quantised as they come.
    `finish` turns a layer into the decoder's form as soon as it is complete, so that a decoder that repacks its weights
    never holds them twice.
    """
    weights: DecoderWeights[L]
    weights, layers, places = _allocate(architecture, dtype, device, embedding, head)
    missing = set(places)
    left = Counter(map(_layer_of, places))
    finished: list[L | None] = [None] * len(layers)
    for name, tensor in _unfused(architecture, tensors):
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
        number = _layer_of(name)
        left[number] -= 1
        if number is not None and not left[number]:
            finished[number] = finish(layers.pop(number))
            trim_malloc()
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ModelError(f"the checkpoint lacks {len(missing)} tensors ({some}, …); is the download complete?")
    weights.layers = [layer for layer in finished if layer is not None]
    return weights


def _layer_of(name: str) -> int | None:
    kind, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if kind == "layers" else None


def _unfused(a: Architecture, tensors: Iterable[tuple[str, AnyTensor]]) -> Iterator[tuple[str, AnyTensor]]:
    """Names without what stands before a decoder's own; what a checkpoint has in one tensor, each by itself."""
    for name, tensor in tensors:
        name = name.removeprefix("model.language_model.").removeprefix("model.").removeprefix("language_model.")
        for theirs, ours in _MIXTRAL.items():
            name = name.replace(theirs, ours)
        yield from _parts(a, name, tensor)


_MIXTRAL = {".block_sparse_moe.": ".mlp.", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}


def _parts(a: Architecture, name: str, tensor: AnyTensor) -> Iterator[tuple[str, AnyTensor]]:
    together = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), [a.q_width, a.q_width + a.kv_width]),
        "gate_up_proj": (("gate_proj", "up_proj"), [a.mlp]),
    }
    parent, _, part = name.removesuffix(".weight").rpartition(".")
    if len(tensor.shape) == 3:  # of all experts
        for number, own in enumerate(tensor):
            yield from _parts(a, f"{parent}.{number}.{part}.weight", own)
    elif part in together:
        names, cuts = together[part]
        pieces: Sequence[AnyTensor] = tensor.tensor_split(cuts)
        for piece, rows in zip(names, pieces, strict=True):
            yield f"{parent}.{piece}.weight", rows
    else:
        yield name, tensor


def _allocate(
    a: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    looked_up: torch.dtype | None = None,
    multiplied: torch.dtype | None = None,
) -> tuple[DecoderWeights[L], dict[int, LayerWeights], dict[str, _Place]]:
    """Empty weights, empty layers, and the place of every checkpoint tensor in them (fused ones as views)."""
    layers: dict[int, LayerWeights] = {}
    places: dict[str, _Place] = {}

    def vector(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    def matrix(rows: int, columns: int, experts: int = 0, form: torch.dtype = dtype) -> _Matrix:
        shape = (*((experts,) if experts else ()), rows)
        per_row = (blocks(columns),) if dtype == torch.int8 else ()
        quantised = form in (torch.int8, torch.float8_e4m3fn)
        scales = torch.empty(*shape, *per_row, device=device) if quantised else None
        return _Matrix(lazy_zeros((*shape, columns), form, device, full=True), scales)

    embedding = matrix(a.vocab_size, a.hidden, form=looked_up or dtype)
    shared = a.tied and (looked_up or dtype) == (multiplied or dtype)
    head = embedding if shared else matrix(a.vocab_size, a.hidden, form=multiplied or dtype)
    weights: DecoderWeights[L] = DecoderWeights(
        embedding.values,
        head.values,
        vector(a.hidden),
        [],
        vector(a.hidden) if a.layer_norm else None,
        embedding.scales,
        head.scales,
        embedding.stored,
        head.stored,
    )
    (looked_up_at,), (multiplied_at,) = embedding.parts([a.vocab_size]), head.parts([a.vocab_size])
    places["embed_tokens.weight"] = looked_up_at if shared or not a.tied else replace(looked_up_at, also=multiplied_at)
    places["norm.weight"] = _Place(weights.norm)
    if weights.norm_bias is not None:
        places["norm.bias"] = _Place(weights.norm_bias)
    if not a.tied:
        places["lm_head.weight"] = multiplied_at
    for i in range(len(a.layers)):
        qkv, o = matrix(a.q_width + 2 * a.kv_width, a.hidden), matrix(a.hidden, a.q_width)
        gate_up, down = matrix(2 * a.mlp, a.hidden, a.experts), matrix(a.hidden, a.mlp, a.experts)
        layer = LayerWeights(
            qkv=qkv.values,
            o=o.values,
            gate_up=gate_up.values,
            down=down.values,
            attention_norm=vector(0 if a.no_pre_norms else a.hidden),
            mlp_norm=vector(0 if a.no_pre_norms else a.hidden),
            attention_norm_bias=vector(a.hidden) if a.layer_norm else None,
            mlp_norm_bias=vector(a.hidden) if a.layer_norm else None,
            q_norm=vector(a.q_width if a.qk_norm_wide else a.head_dim) if a.qk_norm else None,
            k_norm=vector(a.kv_width if a.qk_norm_wide else a.head_dim) if a.qk_norm else None,
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
            router=torch.empty(a.experts, a.hidden, device=device) if a.experts else None,
            stored={"qkv": qkv.stored, "o": o.stored},
        )
        layers[i] = layer
        q, k, v = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
        fused: list[tuple[tuple[str, ...], _Matrix, Tensor | None, list[int]]] = [
            ((q, k, v), qkv, layer.qkv_bias, [a.q_width, a.kv_width, a.kv_width]),
            (("self_attn.o_proj",), o, layer.o_bias, [a.hidden]),
        ]
        for at, number, its_gate_up, its_down in _mlps(a.experts, gate_up, down):
            gate_and_up = f"{at}.gate_proj", f"{at}.up_proj"
            layer.stored |= {f"gate_up{number}": its_gate_up.stored, f"down{number}": its_down.stored}
            fused.append((gate_and_up, its_gate_up, layer.gate_up_bias, [a.mlp, a.mlp]))
            fused.append(((f"{at}.down_proj",), its_down, layer.down_bias, [a.hidden]))
        if layer.router is not None:
            places[f"layers.{i}.mlp.gate.weight"] = _Place(layer.router)
        rope = a.ropes[a.layers[i].rope]
        orders = {q: _turning(rope, a.heads), k: _turning(rope, a.kv_heads)}
        for names, weight, bias, sizes in fused:
            for name, place in zip(names, weight.parts(sizes), strict=True):
                places[f"layers.{i}.{name}.weight"] = replace(place, order=orders.get(name))
            if bias is not None:
                for name, part in zip(names, torch.split(bias, sizes), strict=True):
                    places[f"layers.{i}.{name}.bias"] = _Place(part, order=orders.get(name))
        mlp_norm = "pre_feedforward_layernorm" if a.sandwich_norms else "post_attention_layernorm"
        norms = {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
        if not a.no_pre_norms:
            norms["input_layernorm.weight"], norms[f"{mlp_norm}.weight"] = layer.attention_norm, layer.mlp_norm
        if a.layer_norm:
            norms["input_layernorm.bias"], norms[f"{mlp_norm}.bias"] = layer.attention_norm_bias, layer.mlp_norm_bias
        if a.sandwich_norms:
            norms["post_attention_layernorm.weight"] = layer.attention_out_norm
            norms["post_feedforward_layernorm.weight"] = layer.mlp_out_norm
        for name, norm in norms.items():
            if norm is not None:
                places[f"layers.{i}.{name}"] = _Place(norm)
    return weights, layers, places


def _mlps(experts: int, gate_up: _Matrix, down: _Matrix) -> Iterator[tuple[str, str, _Matrix, _Matrix]]:
    """Every MLP of a layer under its name, and what it adds to those of its matrices."""
    if not experts:
        yield "mlp", "", gate_up, down
    for number in range(experts):
        yield f"mlp.experts.{number}", f".{number}", gate_up.expert(number), down.expert(number)


def _turning(rope: Rope, heads: int) -> Tensor | None:
    """The order of the rows of so many heads in which decoders turn them; None: as checkpoints have them."""
    if rope.still in (0, rope.dim):
        return None
    return (torch.arange(heads)[:, None] * rope.dim + paired(rope)).flatten()
