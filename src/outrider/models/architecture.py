"""What a decoder needs to know about an architecture, read from a Hugging Face `config.json`.

One description drives every decoder; there is no model file per family. A family that needs something this page cannot
say is not described wrongly: `Architecture.from_config` raises `UnsupportedArchitecture` and the loader falls back to
transformers' own implementation (`models/hf.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import ModelError

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class UnsupportedArchitecture(ModelError):
    """A config the fast decoder cannot express."""


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1 stretches only the slow frequencies, with a smooth passage between the two regimes."""

    low_freq_factor: float
    high_freq_factor: float
    original_context: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: frequencies theta^(-2j/dim), divided by `factor` (all, or as `llama3` says)."""

    theta: float
    dim: int
    factor: float = 1.0
    llama3: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What may differ from layer to layer: the rotary table, and how far back attention looks (0: everything)."""

    rope: int
    window: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """A pre-norm decoder with grouped-query attention and a gated MLP, and the options its families differ in."""

    family: str
    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    max_context: int
    layers: tuple[LayerShape, ...]
    ropes: tuple[Rope, ...]
    tied: bool
    activation: Activation = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    """Gemma stores RMSNorm weights minus one; added once, at load."""
    sandwich_norms: bool = False
    """Gemma 3 also normalises what attention and MLP give back."""
    embed_scale: float = 1.0
    attention_scale: float = 0.0

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Architecture:
        family = str(config.get("model_type", "")).lower()
        options = _FAMILIES.get(family)
        if options is None:
            raise UnsupportedArchitecture(f"the fast decoder does not know the architecture {family!r}")
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or hidden // heads)
        activation = str(config.get("hidden_activation") or config.get("hidden_act") or "silu")
        if activation == "gelu" and family.startswith("gemma"):
            activation = "gelu_pytorch_tanh"  # what the family has always computed, whatever its first configs said
        if activation not in _ACTIVATIONS:
            raise UnsupportedArchitecture(f"the fast decoder does not know the activation {activation!r}")
        for key in ("final_logit_softcapping", "attn_logit_softcapping"):
            if config.get(key):
                raise UnsupportedArchitecture(f"the fast decoder does not do {key}")
        bias = "attention_bias" in options and bool(config.get("attention_bias", False))
        ropes, layers = _layers(family, config, head_dim)
        scalar = config.get("query_pre_attn_scalar")
        return Architecture(
            family=family,
            vocab_size=int(config["vocab_size"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            mlp=int(config["intermediate_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_context=int(config.get("max_position_embeddings", 2048)),
            layers=layers,
            ropes=ropes,
            tied=bool(config.get("tie_word_embeddings", family.startswith("gemma"))),
            activation=_ACTIVATIONS[activation],
            qkv_bias=bias or "qkv_bias" in options,
            output_bias=bias,
            mlp_bias="mlp_bias" in options and bool(config.get("mlp_bias", False)),
            qk_norm="qk_norm" in options,
            norm_offset=1.0 if "norm_offset" in options else 0.0,
            sandwich_norms="sandwich_norms" in options,
            embed_scale=math.sqrt(hidden) if "embed_scale" in options else 1.0,
            attention_scale=1.0 / math.sqrt(float(scalar) if scalar else head_dim),
        )


# What each family always has, and under `attention_bias` and `mlp_bias` whether it reads these keys of its config:
# transformers' Qwen2 has biases on queries, keys and values and on nothing else, whatever its config says.
_FAMILIES: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"attention_bias", "mlp_bias"}),
    "mistral": frozenset(),
    "qwen2": frozenset({"qkv_bias"}),
    "qwen3": frozenset({"attention_bias", "qk_norm"}),
    "gemma": frozenset({"attention_bias", "norm_offset", "embed_scale"}),
    "gemma3_text": frozenset({"attention_bias", "norm_offset", "embed_scale", "qk_norm", "sandwich_norms"}),
}


def _layers(family: str, config: Mapping[str, Any], head_dim: int) -> tuple[tuple[Rope, ...], tuple[LayerShape, ...]]:
    """Rotary tables and the per-layer choice among them, with the window where the layer slides."""
    count = int(config["num_hidden_layers"])
    window = int(config.get("sliding_window") or 0)
    if family.startswith("qwen") and not config.get("use_sliding_window", False):
        window = 0
    kinds = config.get("layer_types")
    if kinds is None and family == "gemma3_text":
        pattern = int(config.get("sliding_window_pattern") or 6)
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(count)]
    elif kinds is None and family.startswith("qwen"):
        first = int(config.get("max_window_layers", count))
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(count)]
    elif kinds is None or family == "mistral":
        kinds = ["sliding_attention" if window else "full_attention"] * count
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedArchitecture(f"the fast decoder does not do {', '.join(sorted(unknown))} layers")

    per_kind = _rope_parameters(config)
    ropes = tuple(_rope(parameters, config, head_dim) for parameters in per_kind.values())
    index = {kind: i for i, kind in enumerate(per_kind)}
    shapes = tuple(
        LayerShape(rope=index.get(kind, 0), window=window if kind == "sliding_attention" else 0) for kind in kinds
    )
    return ropes, shapes


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Rotary parameters by layer kind ("" where all layers share them), in both spellings transformers has used."""
    parameters = config.get("rope_parameters")
    if parameters and any(isinstance(value, Mapping) for value in parameters.values()):
        return {kind: value for kind, value in parameters.items() if isinstance(value, Mapping)}
    base = {"rope_theta": config.get("rope_theta", 10_000.0), **(config.get("rope_scaling") or {})}
    shared = {**base, **(parameters or {})}
    if (local := config.get("rope_local_base_freq")) is not None:
        return {"full_attention": shared, "sliding_attention": {"rope_theta": local}}
    return {"": shared}


def _rope(parameters: Mapping[str, Any], config: Mapping[str, Any], head_dim: int) -> Rope:
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if float(parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedArchitecture("the fast decoder does not do partial rotary embeddings")
    theta = float(parameters.get("rope_theta") or 10_000.0)
    if kind == "default":
        return Rope(theta, head_dim)
    if kind == "linear":
        return Rope(theta, head_dim, float(parameters["factor"]))
    if kind == "llama3":
        scaling = Llama3Scaling(
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            float(parameters["original_max_position_embeddings"]),
        )
        return Rope(theta, head_dim, float(parameters["factor"]), scaling)
    raise UnsupportedArchitecture(f"the fast decoder does not know the rotary scaling {kind!r}")
