"""What a decoder needs to know about an architecture, read from a Hugging Face `config.json`.

One description drives every decoder; there is no model file per family. A family that needs something this page cannot
say is not described wrongly: `Architecture.from_config` raises `UnsupportedArchitecture` and the loader falls back to
transformers' own implementation (`models/hf.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from outrider.core.features import features_of
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
    """Rotary positions: frequencies theta^(-2j/turned), divided by `factor` (all, or as `llama3` says)."""

    COMMON: ClassVar = frozenset({"theta", "dim"})

    theta: float
    dim: int
    """Numbers of a head."""
    factor: float = 1.0
    llama3: Llama3Scaling | None = None
    still: int = 0
    """Numbers at the end of a head that do not turn: all of them in a layer that knows no positions."""

    @property
    def turned(self) -> int:
        return self.dim - self.still


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What may differ from layer to layer: the rotary table, and how far back attention looks (0: everything)."""

    COMMON: ClassVar = frozenset({"rope"})

    rope: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention and a gated MLP, and the options its families differ in. An option's
    default is its neutral value: nothing is computed for it."""

    COMMON: ClassVar = frozenset(
        {"family", "vocab_size", "hidden", "heads", "kv_heads", "head_dim", "mlp", "norm_eps", "max_context", "tied"}
    ) | {"layers", "ropes"}
    """Fields that are no options: every decoder computes by them."""

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
    """Gemma 2 and 3 also normalise what attention and MLP give back."""
    no_pre_norms: bool = False
    """OLMo 2 normalises nothing but that."""
    qk_norm_wide: bool = False
    """A query or key norm is over all heads together, not over each."""
    layer_norm: bool = False
    """LayerNorm with a bias, not RMSNorm."""
    embed_scale: float = 1.0
    attention_scale: float = 0.0
    residual_scale: float = 1.0
    """Of what attention and MLP add."""
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    """Logits are cap * tanh(logit / cap); 0: as they are. So are attention's scores."""
    attention_cap: float = 0.0
    experts: int = 0
    """MLPs of a layer, of which a router chooses `experts_used` for each row; 0: one MLP and no router."""
    experts_used: int = 0
    experts_normalised: bool = False
    """The shares of those chosen add up to 1."""

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def features(self) -> frozenset[str]:
        """Names of the options it has, those of its layers and rotary tables too."""
        layers = {f"layers.{name}" for layer in set(self.layers) for name in features_of(layer, layer.COMMON)}
        ropes = {f"ropes.{name}" for rope in self.ropes for name in features_of(rope, rope.COMMON)}
        return features_of(self, self.COMMON) | layers | ropes

    def lacking(self, known: frozenset[str]) -> str | None:
        """What whoever computes these features alone does not compute of this, in words; None: it does all."""
        return ", ".join(sorted(self.features - known)) or None

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Architecture:
        family = str(config.get("model_type", "")).lower()
        options = _FAMILIES.get(family)
        if options is None:
            raise UnsupportedArchitecture(f"the fast decoder does not know the architecture {family!r}")
        config = {**_DEFAULTS.get(family, {}), **config}
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or hidden // heads)
        activation = str(config.get("hidden_activation") or config.get("hidden_act") or "silu")
        if activation == "gelu" and family.startswith("gemma"):
            activation = "gelu_pytorch_tanh"  # what the family has always computed, whatever its first configs said
        if activation not in _ACTIVATIONS:
            raise UnsupportedArchitecture(f"the fast decoder does not know the activation {activation!r}")
        if int(config.get("decoder_sparse_step") or 1) != 1:
            raise UnsupportedArchitecture("the fast decoder does not do experts in some layers only")
        for key, option in _DECLINED.items():
            if config.get(key) and option not in options:
                raise UnsupportedArchitecture(f"the fast decoder does not do {key} in {family} models")
        bias = "attention_bias" in options and bool(config.get("attention_bias", False))
        ropes, layers = _layers(family, config, head_dim)
        scalar = config.get("query_pre_attn_scalar")
        experts = int(config.get("num_experts") or config["num_local_experts"]) if "experts" in options else 0

        def multiplier(key: str, otherwise: float = 1.0) -> float:
            return float(config.get(key, 1.0)) if "multipliers" in options else otherwise

        return Architecture(
            family=family,
            vocab_size=int(config["vocab_size"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            mlp=int(config["moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"]),
            norm_eps=float(config.get("layer_norm_eps" if "layer_norm" in options else "rms_norm_eps", 1e-6)),
            max_context=int(config.get("max_position_embeddings", 2048)),
            layers=layers,
            ropes=ropes,
            tied=bool(config.get("tie_word_embeddings", False)),
            activation=_ACTIVATIONS[activation],
            qkv_bias=bias or "qkv_bias" in options or ("use_qkv_bias" in options and bool(config.get("use_qkv_bias"))),
            output_bias=bias,
            mlp_bias="mlp_bias" in options and bool(config.get("mlp_bias", False)),
            qk_norm="qk_norm" in options,
            norm_offset=1.0 if "norm_offset" in options else 0.0,
            sandwich_norms="sandwich_norms" in options,
            no_pre_norms="no_pre_norms" in options,
            qk_norm_wide="qk_norm_wide" in options,
            layer_norm="layer_norm" in options,
            embed_scale=math.sqrt(hidden) if "embed_scale" in options else multiplier("embedding_multiplier"),
            attention_scale=multiplier("attention_multiplier", 1.0 / math.sqrt(float(scalar) if scalar else head_dim)),
            residual_scale=multiplier("residual_multiplier"),
            logit_scale=1.0 / multiplier("logits_scaling"),
            logit_cap=float(config.get("final_logit_softcapping") or 0.0),
            attention_cap=float(config.get("attn_logit_softcapping") or 0.0),
            experts=experts,
            experts_used=int(config["num_experts_per_tok"]) if experts else 0,
            experts_normalised=bool(experts and ("experts_normalised" in options or config.get("norm_topk_prob"))),
        )


LLAMA = frozenset({"attention_scale", "ropes.factor", "ropes.llama3"})
"""Options that a plain Llama has."""

USUAL = LLAMA | {
    *("activation", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "norm_offset", "embed_scale"),
    *("layers.window", "ropes.still"),
}
"""Options that each of our decoders computes."""

_GEMMA = frozenset({"attention_bias", "norm_offset", "embed_scale"})

# What each family always has, and which keys of its config it reads (`attention_bias`, `mlp_bias`, `use_qkv_bias`, …):
# transformers' Qwen2 has biases on queries, keys and values and on nothing else, whatever its config says.
_FAMILIES: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"attention_bias", "mlp_bias"}),
    "mistral": frozenset(),
    "qwen2": frozenset({"qkv_bias"}),
    "mixtral": frozenset({"experts", "experts_normalised"}),
    "qwen3": frozenset({"attention_bias", "qk_norm"}),
    "qwen3_moe": frozenset({"attention_bias", "qk_norm", "experts"}),
    "gemma": _GEMMA,
    "gemma2": _GEMMA | {"sandwich_norms", "logit_cap", "attention_cap"},
    "gemma3_text": _GEMMA | {"qk_norm", "sandwich_norms", "logit_cap"},
    "phi3": frozenset({"partial_rotary"}),
    "smollm3": frozenset({"attention_bias", "mlp_bias"}),
    "olmo2": frozenset({"attention_bias", "qk_norm", "qk_norm_wide", "sandwich_norms", "no_pre_norms"}),
    "granite": frozenset({"attention_bias", "mlp_bias", "multipliers"}),
    "stablelm": frozenset({"use_qkv_bias", "layer_norm", "partial_rotary"}),
}

# What transformers takes where a family's config.json says nothing, as far as it differs from what most take.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {
        "tie_word_embeddings": True,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "gemma3_text": {"tie_word_embeddings": True},
    "mixtral": {"rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "phi3": {"rms_norm_eps": 1e-5},
    "smollm3": {"tie_word_embeddings": True, "rope_theta": 2e6},
    "olmo2": {"rms_norm_eps": 1e-5},
    "stablelm": {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
}

# Keys that change what a model computes, and the option a family has that does so.
_DECLINED = {
    "final_logit_softcapping": "logit_cap",
    "attn_logit_softcapping": "attention_cap",
    "use_parallel_residual": "parallel_residual",
    "qk_layernorm": "qk_layernorm",
    "mlp_only_layers": "mlp_only_layers",
}


def _layers(family: str, config: Mapping[str, Any], head_dim: int) -> tuple[tuple[Rope, ...], tuple[LayerShape, ...]]:
    """Rotary tables and the per-layer choice among them, with the window where the layer slides."""
    count = int(config["num_hidden_layers"])
    window = int(config.get("sliding_window") or 0)
    if family.startswith(("qwen", "smollm")) and not config.get("use_sliding_window", False):
        window = 0
    kinds = config.get("layer_types")
    if kinds is None and family in _PATTERNS:
        pattern = int(config.get("sliding_window_pattern") or _PATTERNS[family])
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(count)]
    elif kinds is None and family.startswith("qwen"):
        first = int(config.get("max_window_layers", count))
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(count)]
    elif kinds is None and family == "smollm3" and window:
        raise UnsupportedArchitecture("the fast decoder does not know which layers of this smollm3 model slide")
    elif kinds is None or family in ("mistral", "mixtral"):
        kinds = ["sliding_attention" if window else "full_attention"] * count
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedArchitecture(f"the fast decoder does not do {', '.join(sorted(unknown))} layers")

    per_kind = _rope_parameters(config)
    ropes = tuple(_rope(parameters, config, head_dim) for parameters in per_kind.values())
    index = {kind: i for i, kind in enumerate(per_kind)}
    shapes = tuple(
        LayerShape(rope=index.get(kind, 0), window=window if kind == "sliding_attention" else 0) for kind in kinds
    )
    return _without_positions(config, ropes, shapes) if family == "smollm3" else (ropes, shapes)


_PATTERNS = {"gemma2": 2, "gemma3_text": 6}
"""Every so manieth layer sees everything."""


def _without_positions(
    config: Mapping[str, Any], ropes: tuple[Rope, ...], shapes: tuple[LayerShape, ...]
) -> tuple[tuple[Rope, ...], tuple[LayerShape, ...]]:
    """Layers that `no_rope_layers` marks with 0 turn nothing."""
    every = int(config.get("no_rope_layer_interval") or 4)
    turns = config.get("no_rope_layers") or [(i + 1) % every for i in range(len(shapes))]
    still = replace(ropes[0], still=ropes[0].dim)
    chosen = (shape if turn else replace(shape, rope=len(ropes)) for shape, turn in zip(shapes, turns, strict=True))
    return (*ropes, still), tuple(chosen)


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
    part = float(parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    family = str(config["model_type"]).lower()
    turned = int(head_dim * part + 1e-6)
    if part != 1.0 and ("partial_rotary" not in _FAMILIES[family] or kind != "default" or turned % 2):
        raise UnsupportedArchitecture(f"the fast decoder does not turn {part:g} of a head in this {family} model")
    theta = float(parameters.get("rope_theta") or 10_000.0)
    if kind == "default":
        return Rope(theta, head_dim, still=head_dim - turned)
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
