"""Sizes that follow the machine: what one CPU does in a second takes another a minute.

A test names the kinds of cases it covers, which never change, and asks here how many of each, or how deep a model, it
can afford. `--full` (`make test-all`) gives everything its full size.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import save_file

from outrider.models.checkpoints.checkpoint import Checkpoint

CUT_VOCABULARY = 4096
"""Tokens that a cut model keeps."""


@dataclass(frozen=True)
class Pace:
    full: bool

    def fit(self, once: Callable[[], object], seconds: float, *, least: int, most: int) -> int:
        """How often `once` runs in so many seconds here, within bounds; it is run twice to find out."""
        if self.full:
            return most
        once()
        started = perf_counter()
        once()
        return min(most, max(least, int(seconds / (perf_counter() - started))))


def cut_model(
    source: Checkpoint, folder: Path, layers: int, vocabulary: int | None = None, mlp: int | None = None
) -> Path:
    """The first layers, the first tokens, and the first neurons of each MLP, of a real model as one of its own in
    `folder`."""
    config = {**source.config, "num_hidden_layers": layers}
    config["intermediate_size"] = mlp = mlp or config["intermediate_size"]
    config["vocab_size"] = vocabulary = vocabulary or config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source.path / name, folder)
    rows = {"embed_tokens": vocabulary, "gate_proj": mlp, "up_proj": mlp}

    def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
        part = name.split(".")[-2]
        return tensor[:, :mlp].clone() if part == "down_proj" else tensor[: rows.get(part)].clone()

    tensors = {
        name: cut(name, tensor)
        for name, tensor in source.tensors(torch.bfloat16)
        if not (name.startswith("model.layers.") and int(name.split(".")[2]) >= layers)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
