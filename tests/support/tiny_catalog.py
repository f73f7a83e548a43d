"""A catalogue with one small model in a wheel, for tests of fetching. Run as a script it pulls that model.

python tiny_catalog.py WHEEL SECONDS    sleeps that long at every step it reports, and prints the tasks
"""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny_gguf import bpe_metadata, write_hf_model

from outrider.models.checkpoints import catalog, hub
from outrider.models.checkpoints.catalog import CatalogModel, PinnedFile
from outrider.models.checkpoints.manifest import sha256

NAME = "tiny"


class RecordedProgress:
    """Remembers every step, and tells a test of it before it goes on."""

    def __init__(self, on_step: Callable[[str], object] = lambda description: None) -> None:
        self.on_step = on_step
        self.tasks: dict[str, tuple[int | None, list[int]]] = {}

    def note(self, message: str) -> None:
        print("note:", message, flush=True)

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Any]:
        steps: list[int] = []
        self.tasks[description] = (total, steps)
        print(description, flush=True)

        def advance(amount: int) -> None:
            steps.append(amount)
            self.on_step(description)

        yield advance


def make_wheel(folder: Path, padding: int = 0) -> Path:
    """A wheel with a small GGUF model, padded with noise to make it larger."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    gguf_path = folder / "tiny.gguf"
    write_hf_model(gguf_path, transformers.LlamaForCausalLM(config), bpe_metadata())
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    noise = np.random.default_rng(0).bytes(padding)
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_path, "tiny_model/tiny.gguf")
        archive.writestr("tiny_model/noise.bin", noise)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def catalogue(wheel: Path) -> dict[str, CatalogModel]:
    """Pins the wheel as it is."""
    gguf_path = wheel.with_name("tiny.gguf")
    model = CatalogModel(
        name=NAME,
        description="",
        license="",
        package="tiny-model",
        version="1.0",
        wheel=PinnedFile(wheel.name, wheel.stat().st_size, sha256(wheel)),
        gguf=PinnedFile("tiny_model/tiny.gguf", gguf_path.stat().st_size, sha256(gguf_path)),
        parameters=30_000,
    )
    return {NAME: model}


if __name__ == "__main__":
    archive = Path(sys.argv[1])
    catalog.CATALOG = catalogue(archive)

    def stand_still(description: str) -> None:
        if sys.argv[2] and description.startswith(sys.argv[2]):
            time.sleep(3600)

    print(hub.pull(NAME, archive, RecordedProgress(stand_still)))
