"""Files that are not what they seem, through the whole program: one clear sentence, a non-zero exit, no traceback.

Options and prompts are tested in test_cli.py, downloads, full disks and broken caches in test_pull.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.models.checkpoints.checkpoint import Checkpoint


def refused(*arguments: str) -> str:
    """Run `outrider generate` with them; returns the one sentence it must answer with."""
    done = subprocess.run(
        [sys.executable, "-c", "from outrider.cli.main import main; main()", "generate", "Hi", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(sentences) == 1, done.stderr
    return sentences[0]


@pytest.mark.parametrize("kept", [0, 100, 5_000_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 60_000))])
def test_truncated_gguf(default_checkpoint: Checkpoint, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.gguf"
    with (default_checkpoint.path / "model.gguf").open("rb") as whole:
        cut.write_bytes(whole.read(kept))
    assert "cut.gguf" in refused("--model", str(cut))


def test_file_of_noise(tmp_path: Path) -> None:
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(bytes(range(256)) * 100)
    assert "noise.gguf" in refused("--model", str(noise))


@pytest.fixture
def folder(truncated_model_dir: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(truncated_model_dir, copy)
    return copy


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "safetensors" in refused("--model", str(folder))


def test_truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])
    assert "model.safetensors" in refused("--model", str(folder))


def test_weights_of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 21}))
    assert "lacks" in refused("--model", str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 1000}))
    assert "shape" in refused("--model", str(folder))


def test_draft_model_with_another_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.__getitem__)[5000:5002]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    sentence = refused("--drafter", f"model:{folder}")
    assert "vocabulary differs" in sentence
    assert "2 have other ids" in sentence
