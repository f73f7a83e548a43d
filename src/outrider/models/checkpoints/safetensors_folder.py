"""The weights of a Hugging Face model folder: one safetensors file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.models.checkpoints.safetensors_file import SafetensorsFile

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class SafetensorsFolder:
    """Opens every shard's header, so that a missing or truncated shard is known before any weight is read."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path = path
        self._quantised = (config.get("quantization_config") or {}).get("quant_method")
        # Some tied models store the head as well; the embedding is what counts.
        skipped = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
        shards = [SafetensorsFile.open(path / name) for name in shard_names(path)]
        self._tensors = [(name, shard) for shard in shards for name in shard.entries if name not in skipped]

    @property
    def parameters(self) -> int:
        return sum(shard.numel(name) for name, shard in self._tensors)

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        if self._quantised:
            raise ModelError(
                f"{self._path} is quantised with {self._quantised}, which Outrider cannot read; "
                "use the unquantised model or a GGUF file."
            )
        for name, shard in self._tensors:
            yield name, shard.read(name, dtype)

    def stored(self) -> None:
        """Nothing here is quantised."""


def shard_names(path: Path) -> list[str]:
    """The safetensors files that make up the model."""
    if (path / SINGLE).is_file():
        return [SINGLE]
    if not (path / INDEX).is_file():
        if list(path.glob("*.bin")) or list(path.glob("*.pth")):
            raise ModelError(f"{path} holds PyTorch pickles only; save the model with safe_serialization=True first.")
        raise ModelError(f"{path} has neither {SINGLE} nor {INDEX}; is the download complete?")
    try:
        weight_map = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path / INDEX} cannot be read ({error}); fetch it again.") from error
    if missing := [name for name in names if not (path / name).is_file()]:
        raise ModelError(f"{path} lacks {', '.join(missing)}; is the download complete?")
    return names
