"""Writes small GGUF models for tests, with the `gguf` package's writer, as llama.cpp's converter would."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

CONTROL, USER_DEFINED, NORMAL, UNKNOWN, BYTE = 3, 4, 1, 2, 6

BYTE_ALPHABET = [
    chr(b) if 33 <= b < 127 or 161 <= b < 173 or b > 173 else chr(256 + i)
    for i, b in [(sum(not (33 <= x < 127 or 161 <= x < 173 or x > 173) for x in range(b)), b) for b in range(256)]
]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "l l", "Ġ h", "e ll"]
BPE_TOKENS = ["<|end|>", "<|start|>", *BYTE_ALPHABET, *(m.replace(" ", "") for m in MERGES), "<tool>"]
BPE_TYPES = [CONTROL, CONTROL, *[NORMAL] * (len(BPE_TOKENS) - 3), USER_DEFINED]

SPM_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{b:02X}>" for b in range(256)),
    *"▁abcdehlortw",
    *("▁a", "he", "ll", "▁w", "lo", "ello", "or", "rl", "▁wor", "hell", "▁h", "ld", "▁▁", "ab", "aab"),
]
SPM_TYPES = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(SPM_TOKENS) - 259)]
SPM_SCORES = [0.0] * 259 + [-1.0 * i for i in range(len(SPM_TOKENS) - 259)]


def bpe_metadata(pre: str | None = "smollm") -> dict[str, Any]:
    """A byte-level vocabulary, as the reader gives it."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": BPE_TOKENS,
        "tokenizer.ggml.token_type": BPE_TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return metadata if pre is None else {**metadata, "tokenizer.ggml.pre": pre}


def spm_metadata() -> dict[str, Any]:
    """A SentencePiece vocabulary, as the reader gives it."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM_TOKENS,
        "tokenizer.ggml.token_type": SPM_TYPES,
        "tokenizer.ggml.scores": SPM_SCORES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def blocks(
    type_name: str, rows: int, width: int, size: float = 1.0, seed: int = 0
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Valid encoded rows of about this size: quantised numbers, or for the types `gguf` only reads random codes under
    sane scales."""
    kind = GGMLQuantizationType[type_name]
    rng = np.random.default_rng(len(type_name) * rows + seed)
    if not type_name.endswith("_K") and not type_name.startswith("IQ"):
        numbers = rng.standard_normal((rows, width), dtype=np.float32) * np.float32(size)
        return np.ascontiguousarray(quantize(numbers, kind)).view(np.uint8).reshape(rows, -1)
    block, count = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * width // block, count), dtype=np.uint8)
    scales = (size * rng.uniform(1e-3, 1e-2, (len(raw), 2))).astype(np.float16).view(np.uint8)
    match type_name:
        case "Q3_K" | "Q6_K":
            raw[:, -2:] = scales[:, :2]
        case "Q2_K":
            raw[:, -4:] = scales
        case "IQ1_M":  # a scale in four pieces, of which the last has its exponent
            raw[:, -1] = raw[:, -1] & 0x0F | 0x20
        case "Q4_K" | "Q5_K":
            raw[:, :4] = scales
        case _:
            raw[:, :2] = scales[:, :2]
    return raw.reshape(rows, -1)


def write_gguf(
    path: Path,
    arch: str,
    metadata: dict[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], GGMLQuantizationType]],
) -> None:
    """`tensors`: numbers, or (encoded blocks [rows, bytes], type)."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, content in tensors.items():
        if isinstance(content, tuple):
            writer.add_tensor(name, content[0], raw_dtype=content[1])
        else:
            writer.add_tensor(name, content)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def gguf_arch(model_type: str) -> str:
    """What llama.cpp calls a model type of transformers."""
    others = {"gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
    return others.get(model_type, model_type)


def write_hf_model(path: Path, model: Any, metadata: dict[str, Any], **extra: Any) -> None:
    """A transformers model as a GGUF file of its architecture, in F32. `extra` adds to what the converter says of the
    shape; None leaves a key out."""
    config = model.config.to_dict()
    arch = gguf_arch(config["model_type"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    shape = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        **(
            {"attention.layer_norm_epsilon": config["layer_norm_eps"]}
            if arch == "stablelm"
            else {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"]}
        ),
        **extra,
    }
    names = converter_names(arch, config["num_hidden_layers"])
    tensors = {}
    for name, tensor in _one_by_one(model.state_dict()):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        tensors[names(name)] = _as_converter(name, tensor, arch, config).numpy()
    if (rope := config["rope_parameters"]).get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _rotary_divisors(rope, head_dim)
    named = {f"{arch}.{key}": value for key, value in shape.items() if value is not None}
    write_gguf(path, arch, {**named, **metadata}, tensors)


def _one_by_one(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """transformers has gate and up of all experts in one; the converter makes a tensor of each for all experts."""
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            at = name.removesuffix("gate_up_proj")
            yield from ((f"{at}gate_proj.weight", gate.contiguous()), (f"{at}up_proj.weight", up.contiguous()))
        else:
            yield (name if name.endswith((".weight", ".bias")) else f"{name}.weight"), tensor


def converter_names(arch: str, layers: int) -> Callable[[str], str]:
    """Hugging Face's tensor names to GGUF's, by the very table that llama.cpp's converter uses."""
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(known[arch], layers)

    def translate(name: str) -> str:
        found: str | None = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"llama.cpp's converter does not know {name} in {arch}"
        return found

    return translate


def _as_converter(name: str, tensor: torch.Tensor, arch: str, config: dict[str, Any]) -> torch.Tensor:
    """What llama.cpp's converter does to the numbers."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if arch in ("llama", "smollm3", "granite") and part in heads:
        halves = tensor.reshape(heads[part], 2, -1, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    return tensor


def _rotary_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """By how much Llama 3 divides each frequency: 1 for short waves, `factor` for long ones, a passage between."""
    context, low, high = (
        float(rope[key]) for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    divisors = []
    for j in range(0, head_dim, 2):
        turns = context * rope["rope_theta"] ** (-j / head_dim) / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)
