"""The real default model, for every test that wants one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs are then run by Python; read when they are imported

from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress


@pytest.fixture(scope="session")
def default_checkpoint() -> Checkpoint:
    """The default model, fetched on first use."""
    return open_checkpoint("smollm2-135m", SilentProgress())


@pytest.fixture(scope="session")
def default_model_dir(default_checkpoint: Checkpoint) -> Path:
    return default_checkpoint.path


@pytest.fixture(scope="session")
def truncated_model_dir(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real draft model that shares the tokenizer: the default model's first twenty layers."""
    keep = 20
    folder = tmp_path_factory.mktemp("truncated")
    config = {**default_checkpoint.config, "num_hidden_layers": keep}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(default_checkpoint.path / name, folder)
    tensors = {
        name: tensor
        for name, tensor in default_checkpoint.tensors(torch.bfloat16)
        if not (name.startswith("model.layers.") and int(name.split(".")[2]) >= keep)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
