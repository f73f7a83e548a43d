"""Folders published in fp8, as vLLM's tools write them: what is read, what it stands for, and what is declined."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_gguf import BPE_TOKENS, bpe_metadata

from outrider import LLM, SamplingParams
from outrider.errors import InvalidRequest, ModelError
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import placement
from outrider.models.precision import quantise_channels
from outrider.models.stored import Fp8
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights

FP8, CPU = torch.float8_e4m3fn, torch.device("cpu")
PER_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def compressed(per: str, **inputs: Any) -> dict[str, Any]:
    """As llm-compressor writes it: FP8_DYNAMIC is per channel and token."""
    weights = {"num_bits": 8, "type": "float", "strategy": per, "dynamic": False, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {**PER_TOKEN, **inputs}}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


PUBLISHED = {
    "channel": compressed("channel"),
    "tensor": compressed("tensor"),
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
}


def folder(path: Path, scheme: dict[str, Any], family: str = "llama", shards: bool = False, **options: Any) -> Path:
    """A small model with every matrix of its layers in fp8; a scale per channel, or one for all."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family, vocab_size=len(BPE_TOKENS), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, eos_token_id=0, **options,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(path)
    build_tokenizer(bpe_metadata("gpt-2")).save(str(path / "tokenizer.json"))
    tensors = load_file(path / "model.safetensors")
    scales = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        values, scale = torch.empty(weight.shape, dtype=FP8), torch.empty(len(weight))
        quantise_channels(weight, values, scale)
        if scheme is not PUBLISHED["channel"]:
            scale = scale.max()
            values = (weight / scale).to(FP8)
        tensors[name] = values
        scales[name.removesuffix(".weight") + ".weight_scale"] = scale[:, None].bfloat16() if scale.dim() else scale
    if shards:
        save_file(tensors, path / "a.safetensors")
        save_file(scales, path / "b.safetensors")
        (path / "model.safetensors").unlink()
        where = dict.fromkeys(tensors, "a.safetensors") | dict.fromkeys(scales, "b.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        save_file(tensors | scales, path / "model.safetensors")
    change(path, scheme)
    return path


def change(path: Path, scheme: dict[str, Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": scheme}))


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(str(path), SilentProgress())


def exact(path: Path) -> dict[str, torch.Tensor]:
    """What the files stand for, read by the package."""
    files: dict[str, torch.Tensor] = {}
    for file in path.glob("*.safetensors"):
        files |= load_file(file)
    found = {}
    for name, tensor in files.items():
        scale = files.get(name.removesuffix(".weight") + ".weight_scale")
        if not name.endswith("_scale"):
            found[name] = tensor.float() if scale is None else tensor.float() * scale.float().reshape(-1, 1)
    return found


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("scheme", PUBLISHED)
def test_every_dtype_reads_what_the_folder_stands_for(scheme: str, shards: bool, tmp_path: Path) -> None:
    checkpoint = opened(folder(tmp_path, PUBLISHED[scheme], shards=shards))
    expected = exact(tmp_path)
    tensors = dict(checkpoint.tensors(torch.float32))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert checkpoint.weights.stored() is None
    published = checkpoint.fp8()
    assert published is not None
    found = dict(published)
    matrices = {name for name, tensor in found.items() if isinstance(tensor, Fp8)}
    assert matrices == {name for name in expected if name.endswith("_proj.weight")}
    assert all(torch.equal(tensor.wide(), expected[name]) for name, tensor in found.items() if isinstance(tensor, Fp8))


def loaded(checkpoint: Checkpoint, tensors: Any) -> DecoderWeights[LayerWeights]:
    architecture = Architecture.from_config(checkpoint.config)
    return load_weights(
        architecture, tensors, FP8, CPU, lambda layer: layer, embedding=torch.bfloat16, head=torch.bfloat16
    )


@pytest.mark.parametrize(
    ("family", "options"),
    [("llama", {}), ("phi3", {"partial_rotary_factor": 0.5, "pad_token_id": 0})],
    ids=["llama", "fused, rows in another order"],
)
@pytest.mark.parametrize("scheme", ["channel", "tensor"])
def test_published_weights_are_loaded_as_they_are(scheme: str, family: str, options: Any, tmp_path: Path) -> None:
    """The same numbers in the same places as those of a folder that was not quantised, and no second rounding."""
    checkpoint = opened(folder(tmp_path, PUBLISHED[scheme], family, **options))
    architecture = Architecture.from_config(checkpoint.config)
    whole = load_weights(architecture, checkpoint.tensors(torch.float32), torch.float32, CPU, lambda layer: layer)
    weights = loaded(checkpoint, checkpoint.fp8())
    again = loaded(checkpoint, checkpoint.tensors(torch.float32))
    for found, expected in zip(weights.layers, whole.layers, strict=True):
        for name in ("qkv", "o", "gate_up", "down"):
            values, scales = getattr(found, name), getattr(found, f"{name}_scales")
            assert values.dtype == FP8
            assert torch.equal(values.float() * scales[:, None], getattr(expected, name))
    rounded_twice = again.layers[0].down.float() * again.layers[0].down_scales[:, None]  # type: ignore[index]
    assert torch.equal(rounded_twice, whole.layers[0].down) == (scheme == "channel"), "no test"
    assert torch.equal(weights.head.float(), whole.head)  # bf16, as it came


def without_scale(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]
    save_file(tensors, path / "model.safetensors")


def scales_of_blocks(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(4)
    save_file(tensors, path / "model.safetensors")


def no_number(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"].view(torch.uint8)[3, 4] = 0x7F
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (without_scale, r"no 'model.layers.1.mlp.up_proj.weight_scale'"),
        (scales_of_blocks, r"4 scales for 'model.layers.0.mlp.up_proj.weight'.*one for each row"),
        (no_number, r"'model.layers.0.mlp.up_proj.weight' that are no numbers"),
    ],
)
def test_harmed_folders_are_told(harm: Any, message: str, tmp_path: Path) -> None:
    folder(tmp_path, PUBLISHED["channel"])
    list(opened(tmp_path).fp8() or [])
    harm(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        list(opened(tmp_path).fp8() or [])
    assert "\n" not in str(caught.value)


def of_integers() -> dict[str, Any]:
    scheme = copy.deepcopy(compressed("channel"))
    scheme["config_groups"]["group_0"]["weights"] |= {"type": "int", "num_bits": 4}
    return scheme


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (compressed("tensor", strategy="tensor", dynamic=False), "one scale for all activations"),
        (compressed("channel", strategy="tensor"), "one scale for all activations"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "one scale for all activations"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "a scale per block of weights"),
        (compressed("group"), "a scale per group of weights"),
        ({**compressed("channel"), "kv_cache_scheme": PER_TOKEN}, "a cache of 8 bits"),
        (of_integers(), "as int of 4 bits"),
        ({"quant_method": "compressed-tensors"}, "with compressed-tensors,"),
        ({"bits": 4}, "in a way it does not name"),
    ],
)
def test_what_cannot_be_computed_alike_for_every_row_is_declined(
    scheme: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder(tmp_path, PUBLISHED["channel"])
    change(tmp_path, scheme)
    checkpoint = opened(tmp_path)
    assert checkpoint.fp8() is None
    with pytest.raises(ModelError, match=message) as caught:
        list(checkpoint.tensors(torch.bfloat16))
    assert str(caught.value).endswith("use the unquantised model or a GGUF file.")


def test_the_cpu_widens_them_and_names_its_own_format(tmp_path: Path) -> None:
    path = str(folder(tmp_path, PUBLISHED["channel"]))
    llm = LLM(path, device="cpu", drafter="none", max_context=64)
    assert llm.place.precision.name in ("bf16", "fp32")
    assert len(llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4
    with pytest.raises(InvalidRequest, match=r"^dtype: fp8 is for GPUs; use int8 on the CPU") as caught:
        placement(device="cpu", dtype="fp8", bitwise=None, threads=None, max_batch=1, max_context=None)
    assert "\n" not in str(caught.value)
