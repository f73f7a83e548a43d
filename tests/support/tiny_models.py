"""Random models of every family, small enough to run by the thousand: as transformers has them, and in our decoders."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.core.model import LanguageModel
from outrider.models.architecture import Architecture
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import FP32, Precision
from outrider.models.torch_decoder import TorchDecoder

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}

MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.22,
    "logits_scaling": 6.0,
}

PADDING = {"pad_token_id": 0}
"""Where the family's own lies beyond so small a vocabulary."""

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-bias": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama3-rope": {"model_type": "llama", "rope_parameters": LLAMA3},
    "mistral-window": {"model_type": "mistral", "sliding_window": 7},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3"},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "qwen3-moe": {"model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "qwen3-moe-normalised": {
        "model_type": "qwen3_moe",
        "num_experts": 40,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
    },
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 6, "query_pre_attn_scalar": 24, **CAPS},
    "gemma2-uncapped": {"model_type": "gemma2", "sliding_window": 6, **dict.fromkeys(CAPS)},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 6, "query_pre_attn_scalar": 24},
    "gemma3-capped": {"model_type": "gemma3_text", "sliding_window": 6, "final_logit_softcapping": 2.0},
    "phi3": {"model_type": "phi3", "sliding_window": 7, **PADDING},
    "phi3-partial": {"model_type": "phi3", "partial_rotary_factor": 0.75, **PADDING},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5, **PADDING},
    "smollm3-marked": {"model_type": "smollm3", "no_rope_layers": [0, 1, 0], **PADDING},
    "olmo2": {"model_type": "olmo2"},
    "granite": {"model_type": "granite", **MULTIPLIERS},
    "stablelm": {"model_type": "stablelm", "num_attention_heads": 3, "num_key_value_heads": 1},
    "stablelm-bias": {
        "model_type": "stablelm",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.5,
    },
}


def reference(name: str) -> Any:
    torch.manual_seed(0)
    options = dict(ARCHITECTURES[name])
    config = AutoConfig.for_model(options.pop("model_type"), **{**SMALL, **options})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make every term matter
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def architecture(**changes: Any) -> Architecture:
    return Architecture.from_config(reference("llama").config.to_dict() | changes)


def decoder_of(
    model: Any, kind: str, precision: Precision = FP32, kernels: str | None = None, threads: int = 1
) -> LanguageModel:
    """`threads`: one, unless they are what is tested: they wait for each other busily, and tests run side by side."""
    architecture = Architecture.from_config(model.config.to_dict())
    tensors = ((name, tensor.to(precision.source)) for name, tensor in model.state_dict().items())
    size = {"max_batch": 3, "max_context": 128}
    if kind == "native":
        return NativeDecoder.load(architecture, tensors, precision, threads=threads, kernels=kernels, **size)
    bitwise = kind == "torch-bitwise"
    return TorchDecoder.load(architecture, tensors, precision.compute, torch.device("cpu"), bitwise=bitwise, **size)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def gpt2() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", vocab_size=97, n_positions=128, n_embd=48, n_layer=3, n_head=3)
    return AutoModelForCausalLM.from_config(config).float().eval()


def target_of(model: Any, kind: str) -> NativeDecoder | TorchDecoder:
    architecture, tensors = Architecture.from_config(model.config.to_dict()), model.state_dict().items()
    size: dict[str, Any] = {"max_batch": 8, "max_context": 128}
    if kind == "native":
        return NativeDecoder.load(architecture, tensors, FP32, threads=1, **size)
    return TorchDecoder.load(architecture, tensors, torch.float32, torch.device("cpu"), bitwise=True, **size)
