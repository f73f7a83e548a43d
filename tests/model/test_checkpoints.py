"""From what a user asks for to a checkpoint: names, Hugging Face folders, the hub, and what they lack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_gguf import BPE_TOKENS, bpe_metadata

from outrider.core.model import Rows
from outrider.errors import ModelError
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.checkpoints.safetensors_file import SafetensorsFile, write_bf16
from outrider.models.load import load_model, placement
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import library
from outrider.models.precision import BF16
from outrider.models.stored import Stored

START, END = 1, 0


def opened(path: Path | str) -> Checkpoint:
    return open_checkpoint(str(path), SilentProgress())


def make_folder(path: Path, shard_size: str = "1GB", **options: Any) -> Any:
    """A small transformers model saved as its users do; returns the model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(BPE_TOKENS), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, eos_token_id=END, **options,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(path, max_shard_size=shard_size)
    tokenizer = build_tokenizer(bpe_metadata("gpt-2"))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "bos_token": "<|start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>"},
        "chat_template": "{{ bos_token }}hi",
    }
    write(path / "tokenizer_config.json", settings)
    return model


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def change(path: Path, **changes: Any) -> None:
    write(path, {**json.loads(path.read_text()), **changes})


@pytest.mark.parametrize(("shard_size", "shards"), [("1GB", 1), ("20kB", 3)])
@pytest.mark.parametrize("tied", [False, True])
def test_folder_gives_the_models_own_weights(shard_size: str, shards: int, tied: bool, tmp_path: Path) -> None:
    model = make_folder(tmp_path, shard_size, tie_word_embeddings=tied)
    assert len(list(tmp_path.glob("*.safetensors"))) >= shards
    checkpoint = opened(tmp_path)
    expected = {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    for dtype in (torch.float32, torch.bfloat16):
        tensors = dict(checkpoint.tensors(dtype))
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name].to(dtype)) for name in expected)
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.config["tie_word_embeddings"] is tied


def in_bf16(path: Path, **options: Any) -> Path:
    """A folder that the kernels run, and where its weights lie."""
    make_folder(path, head_dim=16, **options)
    file = path / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    return file


@pytest.mark.parametrize("tied", [False, True])
def test_matrices_that_are_read_when_packed_are_those_that_are_read_at_once(tied: bool, tmp_path: Path) -> None:
    in_bf16(tmp_path, tie_word_embeddings=tied)
    source = opened(tmp_path).weights
    expected, found = dict(source.tensors(torch.bfloat16)), dict(source.unread(torch.bfloat16))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert isinstance(tensor, Stored) == (expected[name].dim() == 2)
        numbers = tensor.numbers() if isinstance(tensor, Stored) else tensor
        assert torch.equal(numbers, expected[name])
    assert not any(isinstance(tensor, Stored) for _, tensor in source.unread(torch.float32))


@pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_read_when_packed_computes_what_one_read_at_once_does(tied: bool, tmp_path: Path) -> None:
    in_bf16(tmp_path, tie_word_embeddings=tied)
    checkpoint, logits = opened(tmp_path), []
    architecture = Architecture.from_config(checkpoint.config)
    for tensors in (checkpoint.tensors(torch.bfloat16), checkpoint.unread(torch.bfloat16)):
        model = NativeDecoder.load(architecture, tensors, BF16, max_batch=1, max_context=64, threads=1)
        logits.append(model.forward([Rows.chain(model.open(), [1, 2, 3])]))
    assert torch.equal(*logits)


@pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
def test_a_weight_file_that_is_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    file, before = in_bf16(tmp_path), threading.active_count()
    checkpoint = opened(tmp_path)
    place = placement(device="cpu", dtype="bf16", bitwise=None, threads=1, max_batch=1, max_context=64)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"model\.safetensors became shorter while it was read"):
        load_model(checkpoint, place)
    assert threading.active_count() == before


def test_a_stored_head_of_a_tied_model_is_left_out(tmp_path: Path) -> None:
    make_folder(tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert "lm_head.weight" not in dict(opened(tmp_path).tensors(torch.float32))


def test_folder_tokenizer_and_what_ends_a_text(tmp_path: Path) -> None:
    make_folder(tmp_path)
    write(tmp_path / "generation_config.json", {"eos_token_id": [5, 7], "temperature": 0.6, "do_sample": True})
    checkpoint = opened(tmp_path)
    assert checkpoint.generation_config["temperature"] == 0.6
    assert checkpoint.tokenizer.eos_token_ids == (5, 7, END)
    assert checkpoint.tokenizer.apply_chat_template([{"role": "user", "content": "x"}])[0] == START
    (tmp_path / "generation_config.json").unlink()
    assert opened(tmp_path).generation_config == {}
    assert opened(tmp_path).tokenizer.eos_token_ids == (END,)


@pytest.mark.parametrize("bos_in_file", [False, True])
@pytest.mark.parametrize("bos_in_settings", [None, False, True])
def test_bos_is_added_as_transformers_adds_it(bos_in_file: bool, bos_in_settings: bool | None, tmp_path: Path) -> None:
    make_folder(tmp_path)
    metadata = {**bpe_metadata("gpt-2"), "tokenizer.ggml.add_bos_token": bos_in_file}
    build_tokenizer(metadata).save(str(tmp_path / "tokenizer.json"))
    settings = {} if bos_in_settings is None else {"add_bos_token": bos_in_settings}
    change(tmp_path / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", **settings)
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    tokenizer = opened(tmp_path).tokenizer
    assert tokenizer.encode(" the<tool>x") == reference.encode(" the<tool>x")
    assert (tokenizer.encode("x")[0] == START) is bos_in_file


def test_tokens_the_settings_call_special_are(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change(tmp_path / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", pad_token="ell")
    tokenizer = opened(tmp_path).tokenizer
    assert tokenizer.decode(tokenizer.encode("hello")) == "ho"
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert tokenizer.encode("hello") == reference.encode("hello")


def test_tokens_named_only_in_the_settings_are_added(tmp_path: Path) -> None:
    make_folder(tmp_path)
    new = len(BPE_TOKENS)
    listed = {
        str(new): {"content": "<extra>", "special": True},
        "1": {"content": "<|start|>", "special": True},
    }
    change(tmp_path / "tokenizer_config.json", added_tokens_decoder=listed)
    assert opened(tmp_path).tokenizer.encode("<extra>") == [new]
    change(tmp_path / "tokenizer_config.json", added_tokens_decoder={str(new + 5): {"content": "<extra>"}})
    with pytest.raises(ModelError, match="<extra>"):
        opened(tmp_path)


def test_chat_template_in_each_of_its_places(tmp_path: Path) -> None:
    make_folder(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    change(settings, chat_template=[{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}])
    both = opened(tmp_path).tokenizer
    assert (both.chat_template, both.tool_template) == ("D", "T")
    said: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    result = {"role": "tool", "content": "y"}
    assert [both.render_chat(said), both.render_chat(said, tools=[]), both.render_chat([*said, result])] == list("DTT")
    (tmp_path / "chat_template.jinja").write_text("J")
    assert opened(tmp_path).tokenizer.chat_template == "J"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    assert opened(tmp_path).tokenizer.tool_template == "U"
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").unlink()
    change(settings, chat_template="D")
    assert opened(tmp_path).tokenizer.tool_template == "J", "the one there is"
    (tmp_path / "chat_template.jinja").unlink()
    change(settings, chat_template=None)
    with pytest.raises(ModelError, match="no chat template"):
        opened(tmp_path).tokenizer.apply_chat_template([{"role": "user", "content": "x"}])


def remove(*names: str) -> Any:
    return lambda path: [(path / name).unlink() for name in names]


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def only_pickles(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def only_slow(path: Path) -> None:
    (path / "tokenizer.json").rename(path / "tokenizer.model")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (remove("config.json"), "has no config.json"),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (remove("model.safetensors"), "neither model.safetensors nor"),
        (only_pickles, "PyTorch pickles only"),
        (only_slow, r"slow tokenizer \(tokenizer.model\).*save_pretrained"),
        (truncate, "model.safetensors is not a readable safetensors file"),
        (lambda path: (path / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda path: (path / "config.json").write_text("[]"), "JSON object"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello"), "not a readable"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "not a readable"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0[]"), "not a readable"),
    ],
)
def test_what_a_folder_lacks_is_said(harm: Any, message: str, tmp_path: Path) -> None:
    make_folder(tmp_path)
    opened(tmp_path)
    harm(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, "20kB")
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelError, match=victim.name):
        opened(tmp_path)


def test_quantised_folder_is_refused_when_its_weights_are_read(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change(tmp_path / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelError, match="quantised with gptq"):
        list(opened(tmp_path).tensors(torch.float32))


def test_safetensors_reader_agrees_with_the_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    torch.manual_seed(0)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    tensors = {str(kind): torch.randn(5, 3).to(kind) for kind in kinds} | {"scalar": torch.tensor(2.5)}
    save_file(tensors | {"ids": torch.arange(4)}, path)
    file = SafetensorsFile.open(path)
    for name, tensor in tensors.items():
        assert torch.equal(file.read(name, torch.float32), tensor.float())
    assert file.read("ids", torch.int64).tolist() == [0, 1, 2, 3]
    with pytest.raises(ModelError, match="ids as I64"):
        file.read("ids", torch.bfloat16)


def test_safetensors_writer_agrees_with_the_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "a": torch.randn(4, 6).bfloat16(),
        "b": torch.randn(3).bfloat16(),
        "c": torch.randn(6, 4).bfloat16().t(),
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    with path.open("wb") as file:
        write_bf16(file.write, shapes, tensors.items())
    loaded = load_file(path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with path.open("wb") as file, pytest.raises(ValueError, match="expected b"):
        write_bf16(file.write, {"b": (4,)}, [("b", tensors["b"])])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("smollm2-135", "did you mean smollm2-135m"),
        ("nonsense", "known by name are smollm2-135m"),
        ("./no/such/file.gguf", "no model './no/such/file.gguf'"),
        ("org/file.gguf", "no model"),
        ("", "no model|no config.json"),
        ("a/b/c", "no model"),
    ],
)
def test_unknown_model_is_one_clear_sentence(
    asked: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        opened(asked)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"12345678")
    (tmp_path / "readme.txt").write_text("hello, I am a text")
    with pytest.raises(ModelError, match="give the folder"):
        opened(tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="is no GGUF file"):
        opened(tmp_path / "readme.txt")
    with pytest.raises(ModelError, match="not a model folder"):
        opened(tmp_path)


def test_folder_of_gguf_files(tmp_path: Path, default_model_dir: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(default_model_dir / "model.gguf")
    assert opened(tmp_path).config["hidden_size"] == 576
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"a\.gguf, b\.gguf"):
        opened(tmp_path)


HUB_CHILD = """
import sys
from outrider.errors import ModelError
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
for name in sys.argv[1:]:
    try:
        print(open_checkpoint(name, SilentProgress()).config["model_type"])
    except ModelError as error:
        print("ModelError:", error)
"""


def run(script: str, *arguments: str, **environment: str) -> list[str]:
    """What a fresh Python prints."""
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_hub_id_comes_from_the_hub_cache_or_says_why_not(tmp_path: Path) -> None:
    """Offline, so that the real library runs without a network."""
    revision = "0" * 40
    repository = tmp_path / "models--someone--tiny"
    make_folder(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    settings = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    found, missing = run(HUB_CHILD, "someone/tiny", "someone/else", **settings)
    assert found == "llama"
    assert missing.startswith("ModelError: someone/else is not in the hub's cache")


LOAD_CHILD = """
import re, sys, time
import torch
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before, start = peak(), time.process_time()
checkpoint = open_checkpoint(sys.argv[1], SilentProgress())
tokens = checkpoint.tokenizer.encode("hello")
weights = dict(checkpoint.tensors(torch.bfloat16))
print(peak() - before)
print(sum(tensor.nbytes for tensor in weights.values()))
print(time.process_time() - start)
print(*sorted({"transformers", "huggingface_hub", "jinja2"} & set(sys.modules)))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_loading_the_default_model_is_lean(default_model_dir: Path) -> None:
    """Peak memory stays near the weights, and no heavy library is imported on the way."""
    peak, weights, seconds, imported = run(LOAD_CHILD, str(default_model_dir))
    assert int(weights) == 2 * 134_515_008
    assert int(peak) < 1.35 * int(weights)
    assert imported == ""
    assert float(seconds) < 5  # of a processor; 0.3


def test_default_model_opens_in_transformers_too(default_model_dir: Path, default_checkpoint: Checkpoint) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(str(default_model_dir))
    assert model.dtype == torch.bfloat16
    assert model.config.rope_parameters["rope_theta"] == 100_000.0
    state = model.state_dict()
    for name, tensor in default_checkpoint.tensors(torch.bfloat16):
        assert torch.equal(state[name], tensor), name


def test_folder_of_the_default_model_can_be_copied(default_model_dir: Path, tmp_path: Path) -> None:
    """Without its GGUF file it is an ordinary bf16 folder."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model_dir / name, tmp_path)
    (tmp_path / "model.safetensors").symlink_to(default_model_dir / "model.safetensors")
    name, tensor = next(opened(tmp_path).tensors(torch.float32))
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, dict(opened(default_model_dir).tensors(torch.bfloat16))[name].float())
