"""Turns a GGUF file into a folder that loads quickly: bf16 weights, config and tokenizer as Hugging Face's.

The GGUF file stays beside them, because only it has the exact fp32 weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from outrider.models.checkpoints.gguf_config import generation_config, model_config
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer, special_tokens
from outrider.models.checkpoints.gguf_weights import GGUFWeights
from outrider.models.checkpoints.manifest import write_manifest
from outrider.models.checkpoints.progress import Advance, Progress
from outrider.models.checkpoints.safetensors_file import write_bf16

GGUF_NAME = "model.gguf"
WEIGHTS_NAME = "model.safetensors"


def convert_folder(folder: Path, gguf_sha256: str, progress: Progress) -> None:
    """Complete a folder that holds `model.gguf`; the manifest comes last and makes it a model."""
    file = GGUFFile.open(folder / GGUF_NAME)
    config = model_config(file)
    weights = GGUFWeights(file, config)
    hashes = {GGUF_NAME: gguf_sha256}
    metadata = file.metadata
    texts = {
        "config.json": _json({**config, "dtype": "bfloat16"}),
        "generation_config.json": _json(generation_config(file)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": config["max_position_embeddings"],
                **special_tokens(metadata),
                **({"chat_template": t} if (t := metadata.get("tokenizer.chat_template")) else {}),
            }
        ),
        "tokenizer.json": build_tokenizer(metadata).to_str(),
    }
    for name, text in texts.items():
        with hashed_file(folder / name, hashes) as write:
            write(text.encode("utf-8"))
    with (
        progress.task("Converting the weights", weights.parameters) as advance,
        hashed_file(folder / WEIGHTS_NAME, hashes) as write,
    ):
        write_bf16(write, weights.shapes, _counted(weights, advance))
    write_manifest(folder, hashes)


class HashedWriter:
    """Writes to a file and remembers the sha256 of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def __call__(self, data: bytes | memoryview) -> None:
        self.digest.update(data)
        self._file.write(data)


@contextmanager
def hashed_file(path: Path, hashes: dict[str, str]) -> Iterator[HashedWriter]:
    """A new file; once it is written and safely on the disk its sha256 stands in `hashes` under its name."""
    with path.open("wb") as file:
        writer = HashedWriter(file)
        yield writer
        file.flush()
        os.fsync(file.fileno())
    hashes[path.name] = writer.digest.hexdigest()


def _counted(weights: GGUFWeights, advance: Advance) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights.tensors(torch.bfloat16):
        yield name, tensor
        advance(tensor.numel())


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
