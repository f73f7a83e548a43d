"""Files that are not what they seem, through the whole program: one clear sentence, a non-zero exit, no traceback.

Options and prompts are tested in test_cli.py, and what a process of its own adds; downloads, full disks and broken
caches in test_pull.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command
from pace import cut_model

from outrider.models.checkpoints.checkpoint import Checkpoint

Refused = Callable[..., str]
LAYERS = 2


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs `outrider generate` with options; returns the one sentence it must answer with."""

    def run(*arguments: str) -> str:
        assert command("generate", "Hi", *arguments) != 0
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        sentences = [line for line in shown.err.splitlines() if line.startswith("error:")]
        assert len(sentences) == 1, shown.err
        return sentences[0]

    return run


@pytest.mark.parametrize("kept", [0, 100, 5_000_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 60_000))])
def test_truncated_gguf(default_checkpoint: Checkpoint, tmp_path: Path, kept: int, refused: Refused) -> None:
    cut = tmp_path / "cut.gguf"
    with (default_checkpoint.path / "model.gguf").open("rb") as whole:
        cut.write_bytes(whole.read(kept))
    assert "cut.gguf" in refused("--model", str(cut))


def test_file_of_noise(tmp_path: Path, refused: Refused) -> None:
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(bytes(range(256)) * 100)
    assert "noise.gguf" in refused("--model", str(noise))


@pytest.fixture(scope="module")
def small(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's first layers, and its tokenizer."""
    return cut_model(default_checkpoint, tmp_path_factory.mktemp("small"), LAYERS)


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(small, copy)
    return copy


def test_folder_without_weights(folder: Path, refused: Refused) -> None:
    (folder / "model.safetensors").unlink()
    assert "safetensors" in refused("--model", str(folder))


def test_truncated_weights(folder: Path, refused: Refused) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])
    assert "model.safetensors" in refused("--model", str(folder))


def test_weights_of_another_shape(folder: Path, refused: Refused) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS + 1}))
    assert "lacks" in refused("--model", str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 1000}))
    assert "shape" in refused("--model", str(folder))


def test_draft_model_with_another_vocabulary(folder: Path, refused: Refused) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.__getitem__)[5000:5002]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    sentence = refused("--drafter", f"model:{folder}")
    assert "vocabulary differs" in sentence
    assert "2 have other ids" in sentence
