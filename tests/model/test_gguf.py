"""GGUF files: the container, every number format, and models of each architecture against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from tiny_gguf import blocks, bpe_metadata, spm_metadata, write_gguf, write_hf_model

from outrider.errors import ModelError
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.gguf_file import SUPPORTED_TYPES, GGUFFile
from outrider.models.checkpoints.progress import SilentProgress

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}


@pytest.mark.parametrize("type_name", SUPPORTED_TYPES)
def test_each_number_format_reads_as_gguf_defines_it(type_name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[type_name]
    rows, width = 1030, 512  # over 2**19 elements, so the reader takes more than one chunk
    path = tmp_path / "x.gguf"
    content: dict[str, Any] = {"odd": np.ones(3, np.float32), "big": (blocks(type_name, rows, width), kind)}
    write_gguf(path, "llama", {"a": 1}, content)

    stored = next(tensor for tensor in GGUFReader(path).tensors if tensor.name == "big")
    expected = torch.from_numpy(dequantize(stored.data, kind).reshape(rows, width).copy())
    assert expected.isfinite().all()
    assert expected.std() > 1e-3
    file = GGUFFile.open(path)
    assert torch.equal(file.read("big", torch.float32), expected)
    assert torch.equal(file.read("big", torch.bfloat16), expected.bfloat16())
    assert torch.equal(file.read("big", torch.float16, shift=-1.0), (expected - 1).half())
    assert torch.equal(file.read("odd", torch.float32), torch.ones(3))


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    metadata = {
        "s": "Grüße",
        "i": 7,
        "f": 0.5,
        "b": True,
        "strings": ["a", "ü"],
        "ints": [1, -2],
        "floats": [0.25],
    }
    write_gguf(path, "llama", metadata, {"t": np.zeros((2, 4), np.float32)})
    file = GGUFFile.open(path)
    assert {key: file.metadata[key] for key in metadata} == metadata
    assert file.tensors["t"].shape == (2, 4)


def test_unsupported_number_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    raw = np.zeros((1, 54), np.uint8)
    write_gguf(path, "llama", {}, {"t": (raw, GGMLQuantizationType.TQ1_0)})
    with pytest.raises(ModelError, match="t is stored as TQ1_0"):
        GGUFFile.open(path)


def small_model(family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **options})
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("family", "options", "extra"),
    [
        ("llama", {}, {}),
        ("llama", {"attention_bias": True, "tie_word_embeddings": True}, {}),
        ("llama", {"rope_theta": 5e5, "rms_norm_eps": 1e-5}, {"rope.freq_base": 5e5}),
        ("mistral", {"sliding_window": 32}, {"attention.sliding_window": 32}),
        ("qwen2", {}, {"rope.freq_base": 10_000.0}),
        ("qwen3", {"head_dim": 32}, {}),
        ("gemma", {"head_dim": 32}, {}),
        (
            "gemma3_text",
            {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 32},
            {"attention.sliding_window": 8, "rope.freq_base": 1e6},
        ),
    ],
)
def test_each_architecture_survives_the_trip(
    family: str, options: dict[str, Any], extra: dict[str, Any], tmp_path: Path
) -> None:
    """A transformers model, written as llama.cpp would and read back by us, gives the same logits."""
    model = small_model(family, **options)
    if family not in ("llama", "mistral"):  # weights that differ from what the family starts with
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.data.normal_(0.1, 0.3)
    path = tmp_path / "model.gguf"
    write_hf_model(path, model, bpe_metadata(), **extra)
    again = rebuilt(open_checkpoint(str(path), SilentProgress()))
    ids = torch.randint(0, 300, (1, 40))
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)


def rebuilt(checkpoint: Checkpoint) -> Any:
    """A transformers model from nothing but what the checkpoint says."""
    config = transformers.AutoConfig.for_model(**checkpoint.config)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    state = dict(checkpoint.tensors(torch.float32))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    assert bool(missing) == checkpoint.config["tie_word_embeddings"]
    return model


def test_scaled_rotary_frequencies_are_recovered(tmp_path: Path) -> None:
    model = small_model("llama", rope_parameters=LLAMA3, head_dim=64)
    path = tmp_path / "model.gguf"
    plain = 500_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    divisors = (plain / model.model.rotary_emb.inv_freq.double()).float()
    write_hf_model(path, model, bpe_metadata(), **{"rope.freq_base": 5e5})
    with_factors = tmp_path / "factors.gguf"
    reader = GGUFFile.open(path)
    tensors = {name: reader.read(name, torch.float32).numpy() for name in reader.tensors}
    metadata = {key: value for key, value in reader.metadata.items() if key != "general.architecture"}
    write_gguf(with_factors, "llama", metadata, {**tensors, "rope_freqs.weight": divisors.numpy()})

    checkpoint = open_checkpoint(str(with_factors), SilentProgress())
    assert checkpoint.config["rope_scaling"]["factor"] == 32.0
    assert torch.allclose(rebuilt(checkpoint).model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)

    write_gguf(with_factors, "llama", metadata, {**tensors, "rope_freqs.weight": divisors.numpy()[::-1].copy()})
    with pytest.raises(ModelError, match="rotary"):
        open_checkpoint(str(with_factors), SilentProgress())


@pytest.mark.slow  # what comes of them is compared in tests/model/test_reference.py
def test_default_model_has_the_weights_transformers_reads(default_checkpoint: Checkpoint) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**default_checkpoint.config)
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(str(default_checkpoint.path / "model.gguf"), return_tensors=True, model_to_load=model)
    expected = theirs["tensors"]
    count = 0
    for name, tensor in default_checkpoint.tensors(torch.float32):
        assert torch.equal(tensor, expected[name]), name
        count += 1
    assert count == len(expected) == 272
    for name, tensor in default_checkpoint.tensors(torch.bfloat16):
        assert torch.equal(tensor, expected[name].bfloat16()), name


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_hf_model(path, small_model("llama", num_hidden_layers=1), bpe_metadata())
    return path.read_bytes()


def test_truncated_file_is_one_clear_error_wherever_it_ends(whole_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    size = len(whole_file)
    header = size - sum(tensor.nbytes for tensor in _open_bytes(whole_file, path).tensors.values())
    points = [0, 3, 4, 8, 20, 24, 30, *range(31, header, 97), header + 1, size // 2, size - 1]
    for point in points:
        path.write_bytes(whole_file[:point])
        with pytest.raises(ModelError) as caught:
            open_checkpoint(str(path), SilentProgress())
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def _open_bytes(content: bytes, path: Path) -> GGUFFile:
    path.write_bytes(content)
    return GGUFFile.open(path)


def test_damaged_header_never_escapes_as_another_error(whole_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        content = bytearray(whole_file)
        for _ in range(rng.choice([1, 1, 3])):
            content[rng.randrange(min(len(content), 1 << 14))] = rng.randrange(256)
        path.write_bytes(content)
        try:
            open_checkpoint(str(path), SilentProgress())
        except ModelError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"split.count": 3}, "keep the name it was given"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.pre": "poro-chat"}, "'poro-chat'"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.merges": None}, "no merges"),
    ],
)
def test_what_a_file_lacks_is_named(change: dict[str, Any], message: str, whole_file: bytes, tmp_path: Path) -> None:
    source = _open_bytes(whole_file, tmp_path / "source.gguf")
    metadata = {**source.metadata, **change}
    arch = metadata.pop("general.architecture")
    path = tmp_path / "changed.gguf"
    tensors = {name: source.read(name, torch.float32).numpy() for name in source.tensors}
    write_gguf(path, arch, {key: value for key, value in metadata.items() if value is not None}, tensors)
    with pytest.raises(ModelError, match=message):
        open_checkpoint(str(path), SilentProgress())


@pytest.fixture
def parts(whole_file: bytes, tmp_path: Path) -> list[Path]:
    """The file as llama-gguf-split cuts it: all metadata in the first part, tensors in turn."""
    source = _open_bytes(whole_file, tmp_path / "whole.bin")
    names = list(source.tensors)
    paths = [tmp_path / f"tiny-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for number, path in enumerate(paths):
        metadata = {
            key: value for key, value in source.metadata.items() if key != "general.architecture" and not number
        }
        metadata |= {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        tensors = {name: source.read(name, torch.float32).numpy() for name in names[number::3]}
        write_gguf(path, source.metadata["general.architecture"], metadata, tensors)
    return paths


def test_a_model_in_parts_is_read_from_all_of_them(parts: list[Path], tmp_path: Path) -> None:
    whole = open_checkpoint(str(tmp_path / "whole.bin"), SilentProgress())
    expected = dict(whole.tensors(torch.float32))
    for given in (parts[0], tmp_path):  # also as the only model of a folder
        checkpoint = open_checkpoint(str(given), SilentProgress())
        assert checkpoint.config == whole.config
        found = dict(checkpoint.tensors(torch.float32))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_is_wrong_with_parts_is_named(parts: list[Path], tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            open_checkpoint(str(path), SilentProgress())

    refused(parts[1], "not the first part of its model; name that one, tiny-00001-of-00003.gguf")
    parts[2].rename(tmp_path / "elsewhere.gguf")
    refused(parts[0], r"missing beside it: tiny-00003-of-00003\.gguf")
    parts[2].write_bytes(parts[1].read_bytes())
    refused(parts[0], "tiny-00003-of-00003.gguf is not part 3 of 3")
    tensors = {"token_embd.weight": np.zeros((4, 4), np.float32)}
    write_gguf(parts[2], "llama", {"split.no": 2, "split.count": 3}, tensors)
    refused(parts[0], "holds token_embd.weight, which another part holds, too")
    write_gguf(parts[2], "llama", {"split.no": 2, "split.count": 3}, {"t": np.zeros((4, 4), np.float32)})
    refused(parts[0], "hold .* tensors, not")


def test_unknown_tensor_is_named(whole_file: bytes, tmp_path: Path) -> None:
    source = _open_bytes(whole_file, tmp_path / "source.gguf")
    tensors = {name: source.read(name, torch.float32).numpy() for name in source.tensors}
    metadata = {key: value for key, value in source.metadata.items() if key != "general.architecture"}
    path = tmp_path / "changed.gguf"
    write_gguf(path, "llama", metadata, {**tensors, "blk.0.ssm_in.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_in\.weight"):
        open_checkpoint(str(path), SilentProgress())


def test_generation_defaults_come_from_the_metadata(tmp_path: Path) -> None:
    metadata = {**spm_metadata(), "tokenizer.ggml.eot_token_id": 1, "general.sampling.temp": 0.7}
    metadata["tokenizer.chat_template"] = "{{ messages[0]['content'] }}"
    path = tmp_path / "model.gguf"
    write_hf_model(path, small_model("llama"), metadata)
    checkpoint = open_checkpoint(str(path), SilentProgress())
    assert checkpoint.generation_config == {
        "bos_token_id": 1,
        "eos_token_id": [2, 1],
        "do_sample": True,
        "temperature": 0.7,
    }
    assert checkpoint.tokenizer.eos_token_ids == (2, 1)
    assert checkpoint.tokenizer.chat_template == metadata["tokenizer.chat_template"]
