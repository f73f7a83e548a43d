"""The weights of a Hugging Face model folder: one safetensors file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.models.checkpoints.fp8_folder import in_fp8, unreadable
from outrider.models.checkpoints.safetensors_file import SafetensorsFile
from outrider.models.stored import Fp8, Stored

_SCALE = ".weight_scale"

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class SafetensorsFolder:
    """Opens every shard's header, so that a missing or truncated shard is known before any weight is read."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path = path
        self._against, self._in_fp8 = unreadable(config), in_fp8(config)
        # Some tied models store the head as well; the embedding is what counts.
        skipped = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
        shards = [SafetensorsFile.open(path / name) for name in shard_names(path)]
        self._tensors = {name: shard for shard in shards for name in shard.entries if name not in skipped}

    @property
    def parameters(self) -> int:
        return sum(shard.numel(name) for name, shard in self._tensors.items())

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._read(dtype):
            yield name, tensor.wide().to(dtype) if isinstance(tensor, Fp8) else tensor

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | Stored]]:
        """Matrices alone: what is smaller, or of several experts, is read as ever."""
        if self._against or self._in_fp8:
            yield from self.tensors(dtype)
            return
        for name, shard in self._tensors.items():
            yield name, shard.unread(name, dtype) or shard.read(name, dtype)

    def stored(self) -> None:
        """Nothing here is in blocks of few bits."""

    def fp8(self) -> Iterator[tuple[str, torch.Tensor | Fp8]] | None:
        return self._read(torch.float32) if self._in_fp8 else None

    def _read(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | Fp8]]:
        """Matrices that are in fp8 as they are, all else as `dtype`."""
        if self._against:
            raise ModelError(
                f"{self._path} is quantised {self._against}, which Outrider cannot read; "
                "use the unquantised model or a GGUF file."
            )
        for name, shard in self._tensors.items():
            if not self._in_fp8 or not shard.in_fp8(name):
                if not (self._in_fp8 and name.endswith(_SCALE)):
                    yield name, shard.read(name, dtype)
                continue
            scale = name.removesuffix(".weight") + _SCALE
            if scale not in self._tensors:
                raise ModelError(f"{self._path} has {name!r} in fp8, but no {scale!r}; is the download complete?")
            yield name, self._scaled(name, shard.read(name), self._tensors[scale].read(scale, torch.float32))

    def _scaled(self, name: str, values: torch.Tensor, scales: torch.Tensor) -> Fp8:
        if scales.numel() not in (1, len(values)) or values.dim() != 2:
            raise ModelError(
                f"{self._path} has {scales.numel()} scales for {name!r} of shape {list(values.shape)}; "
                "Outrider can read one for each row, or one for all."
            )
        if bool(values.float().isnan().any()):
            raise ModelError(f"{self._path} has weights in {name!r} that are no numbers; fetch it again.")
        return Fp8(values, scales.reshape(-1).expand(len(values)).contiguous())


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
