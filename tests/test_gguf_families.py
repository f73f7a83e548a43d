"""Models of every family as llama.cpp's converter writes them: our decoders give transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_gguf import bpe_metadata, write_gguf, write_hf_model

from outrider.errors import ModelError
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.hf import HFModel
from outrider.models.load import load_model, placement
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import FP32
from outrider.models.torch_decoder import TorchDecoder
from outrider.types import LanguageModel, Rows

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
ROPE = "rope.freq_base"
WINDOW = "attention.sliding_window"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
GEMMA3 = {"num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (transformers' model type, its options, what the file says beyond the shape)
    "llama": ("llama", {}, {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama-3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 64}, {ROPE: 5e5}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-linear-unnamed": ("llama", {"rope_parameters": LINEAR}, {"rope.scaling.factor": 4.0}),
    "llama-linear-old": ("llama", {"rope_parameters": LINEAR}, {"rope.scale_linear": 4.0}),
    "llama-unscaled": ("llama", {}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "llama-without-lengths": ("llama", {}, {"attention.key_length": None, "attention.value_length": None}),
    "llama-heads-by-layer": ("llama", {}, {"attention.head_count": [4, 4, 4], "attention.head_count_kv": [2, 2, 2]}),
    "llama-all-heads-keep-keys": ("llama", {"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
    "mistral-window": ("mistral", {"sliding_window": 8}, {WINDOW: 8}),
    "mistral-no-window": ("mistral", {"sliding_window": None}, {}),
    "qwen2": ("qwen2", {"rope_theta": 1e6}, {ROPE: 1e6}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", {"head_dim": 32}, {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}, {}),
    "gemma": ("gemma", {"head_dim": 32}, {}),
    "gemma3": ("gemma3_text", GEMMA3, {WINDOW: 8, ROPE: 1e6}),
    "gemma3-pattern": (
        "gemma3_text",
        {**GEMMA3, "layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]},
        {WINDOW: 8, ROPE: 1e6, f"{WINDOW}_pattern": 2},
    ),
    "gemma3-stretched": (
        "gemma3_text",
        {
            **GEMMA3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {WINDOW: 8, ROPE: 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
}


def reference(family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make every term matter
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def decoder(path: Path, kind: str) -> LanguageModel:
    checkpoint = open_checkpoint(str(path), SilentProgress())
    architecture = Architecture.from_config(checkpoint.config)
    tensors, size = checkpoint.tensors(torch.float32), {"max_batch": 1, "max_context": 64}
    if kind == "native":
        return NativeDecoder.load(architecture, tensors, FP32, threads=1, **size)
    return TorchDecoder.load(architecture, tensors, torch.float32, torch.device("cpu"), bitwise=False, **size)


def check_logits(ours: LanguageModel, model: Any, length: int = 40) -> None:
    ids = torch.randint(0, 300, (1, length))
    with torch.inference_mode():
        theirs = model(ids).logits[0]
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours.forward([Rows.chain(ours.open(), ids[0].tolist())]), theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("name", FAMILIES)
def test_family_gives_transformers_logits(name: str, kind: str, tmp_path: Path) -> None:
    family, options, extra = FAMILIES[name]
    model = reference(family, **options)
    path = tmp_path / "model.gguf"
    write_hf_model(path, model, bpe_metadata(), **extra)
    check_logits(decoder(path, kind), model)


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_biases_a_file_leaves_out_are_zero(kind: str, tmp_path: Path) -> None:
    """Hugging Face's Llama has attention biases everywhere or nowhere; a file may lack those of the output."""
    model = reference("llama", attention_bias=True, mlp_bias=True)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.bias)
        torch.nn.init.zeros_(layer.mlp.up_proj.bias)
    whole, path = tmp_path / "whole.gguf", tmp_path / "model.gguf"
    write_hf_model(whole, model, bpe_metadata())
    rewrite(whole, path, lambda name: not name.endswith(("attn_output.bias", "ffn_up.bias")))
    check_logits(decoder(path, kind), model)


def test_gemma3_without_a_window_sees_everything(tmp_path: Path) -> None:
    model = reference("gemma3_text", **{**GEMMA3, "layer_types": ["full_attention"] * 7})
    path = tmp_path / "model.gguf"
    write_hf_model(path, model, bpe_metadata(), **{ROPE: 1e6})
    check_logits(decoder(path, "torch"), model)


def test_part_of_a_head_turned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_hf_model(path, reference("qwen2"), bpe_metadata(), **{"rope.dimension_count": 8})
    with pytest.raises(ModelError, match="turns 8 of 16 numbers"):
        open_checkpoint(str(path), SilentProgress())


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 32}
CAPPED = {**GEMMA3, "final_logit_softcapping": 2.0}


@pytest.mark.parametrize(
    ("family", "options", "extra"),
    [
        (
            "qwen2",
            {"rope_parameters": YARN},
            {f"rope.scaling.{key}": value for key, value in {"type": "yarn", "factor": 4.0}.items()}
            | {ROPE: 1e6, "rope.scaling.original_context_length": 32},
        ),
        ("gemma3_text", CAPPED, {WINDOW: 8, ROPE: 1e6, "final_logit_softcapping": 2.0}),
    ],
)
def test_what_our_decoders_do_not_do_runs_in_transformers(
    family: str, options: dict[str, Any], extra: dict[str, Any], tmp_path: Path
) -> None:
    model = reference(family, **options)
    path = tmp_path / "model.gguf"
    write_hf_model(path, model, bpe_metadata(), **extra)
    place = placement(device="cpu", dtype="fp32", bitwise=None, threads=None, max_batch=1, max_context=None)
    ours = load_model(open_checkpoint(str(path), SilentProgress()), place)
    assert isinstance(ours, HFModel)
    check_logits(ours, model, length=60)


def rewrite(source: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """The file with those tensors only."""
    file = GGUFFile.open(source)
    metadata = {key: value for key, value in file.metadata.items() if key != "general.architecture"}
    tensors = {name: file.read(name, torch.float32).numpy() for name in file.tensors if keep(name)}
    write_gguf(target, file.metadata["general.architecture"], metadata, tensors)
