"""Heads that do not fit or are damaged, through the command itself: one clear sentence, exit code 2, no text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command
from safetensors.torch import load_file, save_file
from tiny_gguf import BPE_TOKENS, bpe_metadata, write_hf_model
from tiny_head import config_of, random_head
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.head.checkpoint import VOCABULARY, HeadCheckpoint

CONFIG: dict[str, Any] = {
    "vocab_size": len(BPE_TOKENS), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


def tiny(folder: Path, **changes: Any) -> Path:
    """A target that runs in no time."""
    torch.manual_seed(0)
    path = folder / "tiny.gguf"
    model = LlamaForCausalLM(LlamaConfig(**{**CONFIG, **changes}))
    write_hf_model(path, model, bpe_metadata(), **{"rope.freq_base": 1e4})
    return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def whole(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that fits it."""
    folder = tmp_path_factory.mktemp("whole")
    checkpoint = open_checkpoint(str(target), SilentProgress())
    head = random_head(config_of(Architecture.from_config(checkpoint.config), draft_vocab=40))
    about = {"target": "tiny.gguf", VOCABULARY: checkpoint.tokenizer.fingerprint()}
    HeadCheckpoint(head.config, head.tensors, about).write(folder)
    return folder


@pytest.fixture
def head(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "head"))


def generate(model: Path, drafter: str) -> int:
    given = ("--model", str(model), "--drafter", drafter, "--device", "cpu", "--max-tokens", "4")
    return command("generate", "he", *given)


def refused(capsys: pytest.CaptureFixture[str], model: Path, drafter: str) -> str:
    """The one sentence."""
    capsys.readouterr()
    assert generate(model, drafter) == 2
    said = capsys.readouterr()
    assert said.out == ""
    _, sentence = said.err.split("error: ")  # before it, at most the progress bar of transformers
    assert sentence.count("\n") == 1
    return sentence


def test_the_whole_one_is_taken(target: Path, head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or the tests below would show nothing."""
    assert generate(target, f"head:{head}") == 0
    assert capsys.readouterr().out.strip()


def no_config(head: Path) -> None:
    (head / "config.json").unlink()


def broken_config(head: Path) -> None:
    (head / "config.json").write_text((head / "config.json").read_text()[:-40])


def another_config(head: Path) -> None:
    (head / "config.json").write_text(json.dumps(CONFIG))


def config_of_nothing(head: Path) -> None:
    (head / "config.json").write_text("[]")


def no_weights(head: Path) -> None:
    (head / "model.safetensors").unlink()


def truncated(head: Path) -> None:
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def almost_empty(head: Path) -> None:
    (head / "model.safetensors").write_bytes(b"123")


def noise(head: Path) -> None:
    (head / "model.safetensors").write_bytes(bytes(range(256)) * 100)


def tensors_changed(head: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(head / "model.safetensors")
    change(tensors)
    save_file(tensors, head / "model.safetensors")


def a_tensor_missing(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors.pop("layers.0.self_attn.q_proj.weight"))


def no_d2t(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors.pop("d2t"))


def misshapen(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors.update({"fc.weight": torch.zeros(64, 128)}))


def scales_missing(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors.update({"fc.weight": torch.zeros(64, 192, dtype=torch.int8)}))


def ids_beyond_the_vocabulary(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors["d2t"].__setitem__(-1, 10**6))


def ids_twice(head: Path) -> None:
    tensors_changed(head, lambda tensors: tensors["d2t"].__setitem__(1, int(tensors["d2t"][0]) - 1))


def config_changed(head: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((head / "config.json").read_text())
    change(config)
    (head / "config.json").write_text(json.dumps(config))


def another_vocabulary(head: Path) -> None:
    config_changed(head, lambda config: config["outrider"].update({VOCABULARY: "0" * 64}))


def falling_taps(head: Path) -> None:
    config_changed(head, lambda config: config.update(eagle_aux_hidden_state_layer_ids=[3, 1, 0]))


def another_family(head: Path) -> None:
    config_changed(head, lambda config: config["transformer_layer_config"].update(model_type="qwen3"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_config, "no head in"),
        (shutil.rmtree, "no head in"),
        (broken_config, "is not valid JSON"),
        (another_config, "holds no EAGLE-3 head"),
        (config_of_nothing, "holds no EAGLE-3 head"),
        (no_weights, "cannot read"),
        (truncated, "fetch it again"),
        (almost_empty, "fetch it again"),
        (noise, "fetch it again"),
        (a_tensor_missing, "lacks the tensor 'layers.0.self_attn.q_proj.weight'"),
        (no_d2t, "lacks the tensor 'd2t'"),
        (misshapen, "has 'fc.weight' of shape [64, 128]"),
        (scales_missing, "lacks the tensor 'fc.scales'"),
        (ids_beyond_the_vocabulary, "outside the target's vocabulary"),
        (ids_twice, "twice to one token"),
        (another_vocabulary, "another vocabulary"),
        (falling_taps, "do not rise"),
        (another_family, "qwen3"),
    ],
)
def test_damaged_heads(
    target: Path, head: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    damage(head)
    assert said in refused(capsys, target, f"head:{head}")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"num_hidden_layers": 4}, "a depth of 3 layers, this one has 4"),
        ({"hidden_size": 96}, "hidden states 64 wide, this one has 96"),
    ],
)
def test_heads_for_another_target(
    head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], said: str
) -> None:
    (tmp_path / "other").mkdir()
    sentence = refused(capsys, tiny(tmp_path / "other", **other), f"head:{head}")
    assert said in sentence
    assert "outrider train" in sentence


def test_a_head_for_another_size_of_vocabulary(target: Path, head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_changed(head, lambda config: config["transformer_layer_config"].update(vocab_size=5000))
    assert f"a vocabulary 5000 tokens large, this one has {len(BPE_TOKENS)}" in refused(capsys, target, f"head:{head}")


def test_no_head_comes_with_a_model_of_one_s_own(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, target, "head")
    assert "no head for" in sentence
    assert "outrider train" in sentence


def test_a_target_without_states(
    head: Path, default_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A family that only transformers runs."""
    model = tmp_path / "gpt2"
    config = GPT2Config(
        vocab_size=49152, n_positions=32, n_embd=16, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=2
    )
    GPT2LMHeadModel(config).save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model_dir / name, model)
    config_changed(head, lambda config: config["outrider"].pop(VOCABULARY))
    assert "hidden states, which HFModel does not give" in refused(capsys, model, f"head:{head}")
