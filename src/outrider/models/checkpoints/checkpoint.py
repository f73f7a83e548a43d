"""A model as it lies on disk, whatever its form: configuration, weights, tokenizer, defaults for decoding."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from outrider.errors import ModelError, shown
from outrider.models.checkpoints import catalog, hub
from outrider.models.checkpoints.ahead import read_ahead
from outrider.models.checkpoints.convert import GGUF_NAME
from outrider.models.checkpoints.disk import HUB_ID
from outrider.models.checkpoints.gguf_config import generation_config, model_config
from outrider.models.checkpoints.gguf_file import GGUFFile, is_later_part
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer, special_tokens
from outrider.models.checkpoints.gguf_weights import GGUFWeights
from outrider.models.checkpoints.hf_folder import folder_tokenizer, read_json
from outrider.models.checkpoints.manifest import is_complete
from outrider.models.checkpoints.progress import Progress
from outrider.models.checkpoints.safetensors_folder import SafetensorsFolder
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.models.stored import Fp8, Stored

T = TypeVar("T", torch.Tensor, torch.Tensor | Stored, torch.Tensor | Fp8)


class WeightSource(Protocol):
    """Weights under their Hugging Face names, read one at a time."""

    @property
    def parameters(self) -> int: ...
    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]: ...
    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | Stored]]:
        """As `tensors`; of matrices that files have in this very format, some may stay there until they are wanted."""
        ...

    def stored(self) -> Iterator[tuple[str, torch.Tensor | Stored]] | None:
        """Matrices as the file quantised them, all else in fp32. None: none of them is quantised."""
        ...

    def fp8(self) -> Iterator[tuple[str, torch.Tensor | Fp8]] | None:
        """Matrices that a folder has in fp8 as they are, all else in fp32. None: it has none."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """`config` and `generation_config` read like Hugging Face's files, also for a GGUF file."""

    name: str
    """What the user asked for."""
    path: Path
    """A folder or a GGUF file."""
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer: Tokenizer
    weights: WeightSource
    progress: Progress

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, converted to `dtype`; needs memory for two of them or 64 MiB beyond those kept."""
        return self._shown(self.weights.tensors(dtype))

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | Stored]]:
        """As `WeightSource.unread`."""
        return self._shown(self.weights.unread(dtype))

    def stored(self) -> Iterator[tuple[str, torch.Tensor | Stored]] | None:
        """As `WeightSource.stored`."""
        found = self.weights.stored()
        return None if found is None else self._shown(found)

    def fp8(self) -> Iterator[tuple[str, torch.Tensor | Fp8]] | None:
        """As `WeightSource.fp8`."""
        found = self.weights.fp8()
        return None if found is None else self._shown(found)

    def _shown(self, tensors: Iterator[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        with self.progress.task(f"Loading {self.name}", self.weights.parameters) as advance:
            for name, tensor in read_ahead(tensors):
                yield name, tensor
                advance(tensor.numel())


def open_checkpoint(model: str, progress: Progress) -> Checkpoint:
    """Find a model by catalogue name, folder, GGUF file or hub id, in this order; weights are read later."""
    if model in catalog.CATALOG:
        found = _open_folder(model, hub.installed(model, progress), progress)
        return replace(found, generation_config={**catalog.find(model).generation, **found.generation_config})
    path = Path(model)
    try:
        path = path.expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # too long for a path, not ours to look at, no such user
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"the model {shown(model)} cannot be looked up: {reason}") from error
    if is_folder:
        return _open_folder(model, path, progress)
    if is_file:
        return _open_gguf(model, path, progress)
    repository, _, revision = model.partition("@")
    if HUB_ID.fullmatch(repository) and path.suffix != ".gguf" and ("@" not in model or revision):
        return _open_folder(model, hub.snapshot(repository, revision or None), progress)
    close = difflib.get_close_matches(model, catalog.CATALOG, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known by name are {', '.join(catalog.CATALOG)}."
    raise ModelError(f"no model {shown(model)}: it is no known name, folder, GGUF file or hub id (org/name); {hint}")


def _open_gguf(name: str, path: Path, progress: Progress) -> Checkpoint:
    if path.suffix == ".safetensors":
        raise ModelError(f"{path} is a weight file only; give the folder it lies in, with its config and tokenizer.")
    file = GGUFFile.open(path)
    try:
        config, generation = model_config(file), generation_config(file)
        tokenizer = Tokenizer(
            build_tokenizer(file.metadata),
            special_tokens=special_tokens(file.metadata),
            chat_template=file.metadata.get("tokenizer.chat_template") or None,
            tool_template=file.metadata.get("tokenizer.chat_template.tool_use") or None,
            eos_token_ids=generation.get("eos_token_id", ()),
        )
        weights = GGUFWeights(file.without_vocabulary(), config)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ModelError(f"the metadata of {path} does not make sense ({error}); fetch it again.") from error
    return Checkpoint(name, path, config, generation, tokenizer, weights, progress)


def _open_folder(name: str, path: Path, progress: Progress) -> Checkpoint:
    if not (path / "config.json").is_file():
        files = sorted(file for file in path.glob("*.gguf") if not is_later_part(file))
        if len(files) == 1:
            return _open_gguf(name, files[0], progress)
        if files:
            raise ModelError(f"{path} holds several GGUF files; name one: {', '.join(file.name for file in files)}.")
        raise ModelError(f"{path} has no config.json, so it is not a model folder.")
    config = read_json(path / "config.json")
    generation = read_json(path / "generation_config.json", optional=True)
    tokenizer = folder_tokenizer(path, config, generation)
    weights: WeightSource = SafetensorsFolder(path, config)
    if is_complete(path) and (path / GGUF_NAME).is_file():
        weights = _Converted(weights, path / GGUF_NAME, config)
    return Checkpoint(name, path, config, generation, tokenizer, weights, progress)


@dataclass(frozen=True)
class _Converted:
    """A folder Outrider made: bf16 weights ready to use, every other dtype from the exact originals."""

    bf16: WeightSource
    gguf: Path
    config: dict[str, Any]

    @property
    def parameters(self) -> int:
        return self.bf16.parameters

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        if dtype == torch.bfloat16:
            return self.bf16.tensors(dtype)
        return self._original().tensors(dtype)

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | Stored]]:
        return (self.bf16 if dtype == torch.bfloat16 else self._original()).unread(dtype)

    def stored(self) -> Iterator[tuple[str, torch.Tensor | Stored]] | None:
        return self._original().stored()

    def fp8(self) -> None:
        """A GGUF file has no such."""

    def _original(self) -> GGUFWeights:
        return GGUFWeights(GGUFFile.open(self.gguf, vocabulary=False), self.config)
