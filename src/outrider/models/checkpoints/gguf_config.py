"""From GGUF metadata to what a Hugging Face `config.json` and `generation_config.json` would have said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from outrider.errors import ModelError
from outrider.models.checkpoints.gguf_file import GGUFFile

# GGUF architecture → (model_type, class name transformers knows it by). Mistral and Mixtral are written as llama.
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM"),
    "olmo2": ("olmo2", "Olmo2ForCausalLM"),
    "granite": ("granite", "GraniteForCausalLM"),
    "stablelm": ("stablelm", "StableLmForCausalLM"),
}

_PARTIAL_ROTARY = frozenset({"phi3", "stablelm"})
"""Architectures that may turn a part of a head only."""

_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

_CONTROL_TOKEN = 3
_TURN_ENDS = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>"})
"""Control tokens after which a text is over, whichever of them the file calls its eos."""

_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Every Llama 3.x with scaled rotary frequencies uses these; the file only holds the resulting factors."""


def architecture(file: GGUFFile) -> str:
    """The GGUF architecture; an unknown one is a `ModelError` that names it."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise ModelError(
            f"{file.path} has the architecture {name!r}, which Outrider cannot read from GGUF; "
            f"known are {', '.join(_ARCHITECTURES)}. Use the model's Hugging Face folder instead."
        )
    return name


def model_config(file: GGUFFile) -> dict[str, Any]:
    """The `config.json` of the model in the file."""
    keys = _Keys(file, architecture(file))
    model_type, class_name = _ARCHITECTURES[keys.arch]
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    key_heads = keys.integer("attention.head_count_kv", heads)
    layers = keys.integer("block_count")
    projection, its_heads = ("attn_qkv", heads + 2 * key_heads) if keys.arch == "phi3" else ("attn_q", heads)
    try:
        vocabulary = file.tensors["token_embd.weight"].shape[0]
        head_dim = file.tensors[f"blk.0.{projection}.weight"].shape[0] // its_heads
    except KeyError as error:
        raise ModelError(f"{file.path} has no tensor {error}; it does not hold a whole language model.") from error
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "gelu_pytorch_tanh" if keys.arch.startswith("gemma") else "silu",
    }
    if keys.arch == "stablelm":
        config["layer_norm_eps"] = keys.number("attention.layer_norm_epsilon")
    else:
        config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    turned = keys.integer("rope.dimension_count", head_dim)
    if keys.arch in _PARTIAL_ROTARY:
        config["partial_rotary_factor"] = turned / head_dim
    elif turned != head_dim:
        raise ModelError(f"{file.path} turns {turned} of {head_dim} numbers of a head by position; Outrider turns all.")
    if scaling := _rope_scaling(keys, head_dim, config["rope_theta"]):
        config["rope_scaling"] = scaling
    for option, parts in biases(keys.arch).items():
        config[option] = any(f"blk.{i}.{part}.bias" in file.tensors for i in range(layers) for part in parts)
    _add_family_options(config, keys)
    for name in ("bos", "eos"):
        if (token := file.metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name}_token_id"] = int(token)
    return config


def biases(arch: str) -> Mapping[str, Sequence[str]]:
    """Config options that give an architecture biases, and the GGUF tensors each of them gives one to.

    Qwen2 has no such option: its queries, keys and values always have biases and nothing else does. Phi 3 has none.
    """
    inputs = ("attn_q", "attn_k", "attn_v")
    options = {"attention_bias": (*inputs, "attn_output")}
    match arch:
        case "llama" | "smollm3" | "granite":
            return {**options, "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down")}
        case "stablelm":
            return {"use_qkv_bias": inputs}
        case "qwen2" | "phi3":
            return {}
    return options


def generation_config(file: GGUFFile) -> dict[str, Any]:
    """How the file's author wants it decoded: what ends a text, and sampling defaults where it gives any."""
    metadata = file.metadata
    config: dict[str, Any] = {}
    if (bos := metadata.get("tokenizer.ggml.bos_token_id")) is not None:
        config["bos_token_id"] = int(bos)
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    pairs = zip(metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", []), strict=False)
    ends += [i for i, (text, kind) in enumerate(pairs) if kind == _CONTROL_TOKEN and text in _TURN_ENDS]
    if unique := list(dict.fromkeys(int(end) for end in ends if end is not None)):
        config["eos_token_id"] = unique
    sampling = {ours: _shortest(metadata[theirs]) for theirs, ours in _SAMPLING.items() if theirs in metadata}
    if sampling:
        config |= {"do_sample": sampling.get("temperature", 1.0) > 0, **sampling}
    return config


class _Keys:
    """Typed access to the metadata of one architecture; what is missing or misshapen is named."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.arch}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]  # one entry per layer, all alike
        if value is None:
            value = default
        if not isinstance(value, int) or value < 0:
            raise self._bad(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        if not isinstance(value, int | float):
            raise self._bad(key, value)
        return float(_shortest(value))

    def _bad(self, key: str, value: Any) -> ModelError:
        problem = "is missing" if value is None else f"is {value!r}, which Outrider cannot use"
        return ModelError(f"{self.file.path}: the metadata {self.arch}.{key} {problem}.")


def _shortest(value: float) -> float:
    """The shortest decimal of an fp32: 9.999999747e-06 was written as 1e-05."""
    if isinstance(value, int):
        return value
    return float(str(np.float32(value)))


def _rope_scaling(keys: _Keys, head_dim: int, theta: float) -> dict[str, Any] | None:
    if "rope_freqs.weight" in keys.file.tensors:
        return _llama3_scaling(keys, head_dim, theta)
    if "rope_factors_long.weight" in keys.file.tensors:
        raise ModelError(
            f"{keys.file.path} stretches its rotary frequencies with the length of the text (longrope), which Outrider "
            "cannot read from GGUF. Use the model's Hugging Face folder instead."
        )
    # A factor alone means linear, and once had another name: so llama.cpp reads it.
    kind = keys.get("rope.scaling.type") or "linear"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    if kind == "none" or factor in (0.0, 1.0):
        return None
    scaling: dict[str, Any] = {"rope_type": str(kind), "factor": factor}
    if (original := keys.get("rope.scaling.original_context_length")) is not None:
        scaling["original_max_position_embeddings"] = int(original)
    for theirs, ours in _YARN.items():
        if keys.get(theirs) is not None:
            scaling[ours] = keys.number(theirs)
    return scaling


def _llama3_scaling(keys: _Keys, head_dim: int, theta: float) -> dict[str, Any]:
    """Recover Llama 3's rotary scaling from the divisors the file holds, and check that it is that."""
    divisors = keys.file.read("rope_freqs.weight", torch.float32).double()
    factor = float(divisors.max())
    low, high = _LLAMA3_ROPE["low_freq_factor"], _LLAMA3_ROPE["high_freq_factor"]
    turns = [
        _LLAMA3_ROPE["original_max_position_embeddings"] * theta ** (-2 * j / head_dim) / (2 * math.pi)
        for j in range(head_dim // 2)
    ]
    smooth = [min(1.0, max(0.0, (t - low) / (high - low))) for t in turns]
    expected = torch.tensor([1 / ((1 - s) / factor + s) for s in smooth], dtype=torch.float64)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-3):
        raise ModelError(f"{keys.file.path} scales its rotary frequencies in a way Outrider does not know.")
    return {"rope_type": "llama3", "factor": _shortest(factor), **_LLAMA3_ROPE}


def _add_family_options(config: dict[str, Any], keys: _Keys) -> None:
    window = keys.integer("attention.sliding_window", 0)
    layers = config["num_hidden_layers"]
    if keys.integer("expert_count", 0):
        _add_experts(config, keys)
    match keys.arch:
        case "llama" if config["model_type"] == "mixtral":
            config["sliding_window"] = window or None
        case "llama" if window:
            config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
        case "gemma" | "gemma2" | "gemma3":
            config["hidden_activation"] = config.pop("hidden_act")
    match keys.arch:
        case "gemma2":
            config |= _gemma_queries(config, 46) | {
                "sliding_window": window or 4096,
                "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
                "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
                "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
            }
        case "gemma3":
            config |= _gemma_queries(config, 62) | {
                "sliding_window": window or config["max_position_embeddings"],
                "layer_types": _layer_types(keys, layers, window),
                "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
                "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
            }
        case "phi3":
            config["sliding_window"] = window or None
        case "smollm3":  # the file does not say; llama.cpp takes every fourth
            config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(layers)]
        case "olmo2" if window:
            raise ModelError(f"{keys.file.path} is an OLMo 3, whose layers slide; Outrider cannot read it from GGUF.")
        case "granite":
            config |= {
                "embedding_multiplier": keys.number("embedding_scale", 0.0) or 1.0,
                "residual_multiplier": keys.number("residual_scale", 0.0) or 1.0,
                "attention_multiplier": keys.number("attention.scale", 0.0) or config["head_dim"] ** -0.5,
                "logits_scaling": keys.number("logit_scale", 0.0) or 1.0,
            }
        case "stablelm":
            # llama.cpp goes by the tensor, too: its converter writes use_parallel_residual where nobody said so.
            config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in keys.file.tensors
            if "blk.0.attn_q_norm.weight" in keys.file.tensors:
                raise ModelError(
                    f"{keys.file.path} normalises queries and keys, which Outrider does not do in StableLM."
                )


def _add_experts(config: dict[str, Any], keys: _Keys) -> None:
    if keys.arch not in ("llama", "qwen3moe"):
        raise ModelError(f"{keys.file.path} is a mixture of experts, which Outrider cannot read as {keys.arch}.")
    if config.get("rope_scaling", {}).get("rope_type") == "yarn":  # transformers would want other names for experts
        raise ModelError(f"{keys.file.path} has experts and YaRN, which Outrider cannot read together from GGUF.")
    config |= {
        "num_local_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
    }
    if keys.arch == "llama":
        config |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    else:
        config |= {"moe_intermediate_size": keys.integer("expert_feed_forward_length"), "norm_topk_prob": True}


def _gemma_queries(config: Mapping[str, Any], biggest: int) -> dict[str, Any]:
    """Only the 27B, known by the number of its layers, scales queries by its hidden size per head; files do not say."""
    big = config["num_hidden_layers"] == biggest
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if big else config["head_dim"]
    }


def _layer_types(keys: _Keys, layers: int, window: int) -> list[str]:
    """Gemma 3 looks at everything in every sixth layer, or as the file says; without a window in all of them."""
    period = keys.integer("attention.sliding_window_pattern", 6)
    return ["sliding_attention" if window and period and (i + 1) % period else "full_attention" for i in range(layers)]
