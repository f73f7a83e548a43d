"""Models of every family as llama.cpp's converter writes them, and as transformers does: our decoders give
transformers' logits, and the same text with drafts as without."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_gguf import bpe_metadata, gguf_arch, write_gguf, write_hf_model

from outrider import LLM, SamplingParams
from outrider.core.model import LanguageModel, Rows
from outrider.errors import ModelError
from outrider.models.architecture import Architecture, UnsupportedArchitecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.cuda.backend import CudaBackend, unsuited_shape
from outrider.models.hf import HFModel
from outrider.models.load import load_model, placement
from outrider.models.native.backend import NativeBackend
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.stack import unsupported_reason
from outrider.models.precision import FP32
from outrider.models.torch_decoder import TorchDecoder

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
ROPE2M = {"rope_parameters": {"rope_type": "default", "rope_theta": 2e6}}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
GEMMA2 = {"sliding_window": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
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
    "qwen3-moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 48},
    ),
    "mixtral": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6},
        {ROPE: 1e6, "expert_count": 4, "expert_used_count": 2},
    ),
    "mixtral-window": (
        "mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "rope_theta": 1e6, "sliding_window": 8},
        {ROPE: 1e6, WINDOW: 8, "expert_count": 3, "expert_used_count": 1},
    ),
    "gemma": ("gemma", {"head_dim": 32}, {}),
    "gemma2": (
        "gemma2",
        {**GEMMA2, "query_pre_attn_scalar": 16},
        {WINDOW: 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "gemma2-27b": (  # known by its 46 layers; heads are narrower than hidden / heads
        "gemma2",
        {**GEMMA2, "num_hidden_layers": 46, "query_pre_attn_scalar": 8, "num_attention_heads": 8},
        {WINDOW: 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "gemma3": ("gemma3_text", GEMMA3, {WINDOW: 8, ROPE: 1e6}),
    "gemma3-capped": (
        "gemma3_text",
        {**GEMMA3, "final_logit_softcapping": 2.0},
        {WINDOW: 8, ROPE: 1e6, "final_logit_softcapping": 2.0},
    ),
    "phi3": ("phi3", {"sliding_window": 8, "pad_token_id": 0}, {WINDOW: 8, "rope.dimension_count": 16}),
    "phi3-whole": ("phi3", {"pad_token_id": 0}, {WINDOW: 0, "rope.dimension_count": 16}),
    "phi3-partial": ("phi3", {"partial_rotary_factor": 0.75, "pad_token_id": 0}, {"rope.dimension_count": 12}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "pad_token_id": 0, **ROPE2M}, {ROPE: 2e6}),
    "olmo2": ("olmo2", {}, {}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.5,
        },
        {"embedding_scale": 12.0, "attention.scale": 0.1, "residual_scale": 0.22, "logit_scale": 1.5},
    ),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.25}, {"rope.dimension_count": 4}),
    "stablelm-2": (
        "stablelm",
        {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
        {"rope.dimension_count": 8, "use_parallel_residual": True},  # of no consequence: the tensors decide
    ),
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
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}  # which also run in fp64
    model = transformers.AutoModelForCausalLM.from_config(config, **eager).float().eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make every term matter
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def decoder(path: Path, kind: str) -> LanguageModel:
    checkpoint = open_checkpoint(str(path), SilentProgress())
    architecture = Architecture.from_config(checkpoint.config)
    tensors = checkpoint.tensors(torch.float32)
    size: dict[str, Any] = {"max_batch": 1, "max_context": 64}
    if kind == "native":
        return NativeDecoder.load(architecture, tensors, FP32, threads=1, **size)
    return TorchDecoder.load(architecture, tensors, torch.float32, torch.device("cpu"), bitwise=False, **size)


def check_logits(ours: LanguageModel, model: Any, length: int = 40) -> None:
    """As close to the same model in fp64 as transformers' own fp32 is, by any processor's rounding."""
    ids = torch.randint(0, 300, (1, length))
    with torch.inference_mode():
        theirs, exact = model(ids).logits[0], deepcopy(model).double()(ids).logits[0]
    assert exact.std() > 0.1
    slot = ours.open()
    found = ours.forward([Rows.chain(slot, ids[0].tolist())])
    own, usual = (found - exact).abs().max(), (theirs - exact).abs().max()
    assert own < min(1e-4, 3 * usual + 1e-6), f"{own:.1e} from fp64, transformers {usual:.1e}"
    ours.close(slot)


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


def first_of_each() -> dict[str, str]:
    """By model type, the name of the first of its variants."""
    return {family: name for name, (family, _, _) in reversed(FAMILIES.items())}


@pytest.mark.parametrize("name", sorted(first_of_each().values()))
def test_folder_gives_transformers_logits_and_drafts_change_nothing(name: str, tmp_path: Path) -> None:
    family, options, _ = FAMILIES[name]
    model = reference(family, **options)
    model.save_pretrained(tmp_path)
    build_tokenizer(bpe_metadata()).save(str(tmp_path / "tokenizer.json"))
    llm = LLM(str(tmp_path), drafter="suffix", draft_length=4, dtype="fp32", max_batch=2, threads=1)
    assert isinstance(llm.model, NativeDecoder)
    check_logits(llm.model, model)
    prompts = [[5, 6, 7, 8] * 6, [9, 10, 11] * 8]
    for temperature in (0.0, 0.3):
        params = SamplingParams(temperature=temperature, max_tokens=24, ignore_eos=True, seed=1)
        drafted, plain = (llm.generate(prompts, params, speculate=speculate) for speculate in (True, False))
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
        assert sum(one.drafted for one in drafted) > 0


def test_docs_name_every_family_and_what_runs_it() -> None:
    """The table in docs/models.md: model type, GGUF architecture, the compiled decoder, the GPU kernels."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| [^|`]+ \| `(\w+)` \| `(\w+)` \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    tested = []
    for family, name in first_of_each().items():
        config = transformers.AutoConfig.for_model(family, **{**SMALL, **FAMILIES[name][1]})
        a = Architecture.from_config(config.to_dict())
        backends = (NativeBackend, unsupported_reason(a, FP32)), (CudaBackend, unsuited_shape(a))
        runs = [a.lacking(backend.known) is None and shape is None for backend, shape in backends]
        tested.append((family, gguf_arch(family), *("yes" if it_does else "no" for it_does in runs)))
    assert sorted(documented) == sorted(tested)


@pytest.mark.parametrize(
    ("family", "options", "tensor", "message"),
    [
        ("phi3", {"pad_token_id": 0}, "rope_factors_long.weight", "longrope"),
        ("stablelm", {"partial_rotary_factor": 0.5}, "blk.0.attn_q_norm.weight", "normalises queries and keys"),
    ],
)
def test_what_a_family_may_have_that_we_do_not_read_is_named(
    family: str, options: dict[str, Any], tensor: str, message: str, tmp_path: Path
) -> None:
    whole, path = tmp_path / "whole.gguf", tmp_path / "model.gguf"
    write_hf_model(whole, reference(family, **options), bpe_metadata(), **{"rope.dimension_count": 8})
    rewrite(whole, path, lambda name: True, {tensor: torch.ones(8)})
    with pytest.raises(ModelError, match=message):
        open_checkpoint(str(path), SilentProgress())


def test_olmo3_is_refused(tmp_path: Path) -> None:
    """llama.cpp writes it as olmo2 with a window."""
    path = tmp_path / "model.gguf"
    write_hf_model(path, reference("olmo2"), bpe_metadata(), **{WINDOW: 8})
    with pytest.raises(ModelError, match="OLMo 3"):
        open_checkpoint(str(path), SilentProgress())


LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("phi3", {"rope_parameters": LONG}, "longrope"),
        ("llama", {"partial_rotary_factor": 0.5}, "0.5 of a head"),
        ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
        ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, "which layers"),
        ("qwen3_moe", {"num_experts": 4, "mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_moe", {"num_experts": 4, "decoder_sparse_step": 2}, "some layers only"),
        ("gpt2", {}, "'gpt2'"),
    ],
)
def test_what_no_decoder_of_ours_does_is_declined(family: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=message):
        Architecture.from_config({"model_type": family, **SMALL, **options})


def test_part_of_a_head_turned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_hf_model(path, reference("qwen2"), bpe_metadata(), **{"rope.dimension_count": 8})
    with pytest.raises(ModelError, match="turns 8 of 16 numbers"):
        open_checkpoint(str(path), SilentProgress())


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("family", "options", "extra"),
    [
        (
            "qwen2",
            {"rope_parameters": YARN},
            {f"rope.scaling.{key}": value for key, value in {"type": "yarn", "factor": 4.0}.items()}
            | {ROPE: 1e6, "rope.scaling.original_context_length": 32},
        ),
        (
            "stablelm",
            {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
            {"rope.dimension_count": 8, "use_parallel_residual": True},
        ),
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


def rewrite(
    source: Path, target: Path, keep: Callable[[str], bool], also: dict[str, torch.Tensor] | None = None
) -> None:
    """The file with those of its tensors only, and others."""
    file = GGUFFile.open(source)
    metadata = {key: value for key, value in file.metadata.items() if key != "general.architecture"}
    tensors = {name: file.read(name, torch.float32).numpy() for name in file.tensors if keep(name)}
    tensors |= {name: tensor.numpy() for name, tensor in (also or {}).items()}
    write_gguf(target, file.metadata["general.architecture"], metadata, tensors)
