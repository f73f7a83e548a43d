"""A cost twin where a model is expected: as a checkpoint to load, and as a model with the source's vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outrider.bench.shapes import tensor_axes, tensor_shape
from outrider.bench.twin import TwinShape, twin_architecture, twin_tensors
from outrider.bench.twin_head import grown_head
from outrider.core.model import CachedNetwork, DraftHead, LanguageModel, Rows
from outrider.core.step import Recording, Stepper
from outrider.models.architecture import Architecture
from outrider.models.backend import Placement
from outrider.models.checkpoints.checkpoint import Checkpoint, WeightSource
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import place_head
from outrider.models.load import load_model


def load_twin(checkpoint: Checkpoint, shape: TwinShape, place: Placement, seed: int = 0) -> CutVocabulary:
    """The checkpoint's cost twin, running; its tokenizer is the checkpoint's. Reports must call it a twin."""
    model = load_model(twin_checkpoint(checkpoint, shape, place.device, seed), place)
    return CutVocabulary(model, int(checkpoint.config["vocab_size"]))


def load_twin_head(
    checkpoint: HeadCheckpoint, shape: TwinShape, twin: CutVocabulary, place: Placement, seed: int = 0
) -> DraftHead:
    """The head of the twin's source, grown like it and placed beside it."""
    return place_head(grown_head(checkpoint, shape, place.device, place.dtype, seed), twin.model)


def twin_checkpoint(checkpoint: Checkpoint, shape: TwinShape, device: torch.device, seed: int = 0) -> Checkpoint:
    """What `load_model` loads as the twin: a grown configuration, and weights grown on `device` as they are read."""
    source = Architecture.from_config(checkpoint.config)
    twin = twin_architecture(source, shape)
    config: dict[str, Any] = {
        **checkpoint.config,
        "vocab_size": twin.vocab_size,
        "hidden_size": twin.hidden,
        "intermediate_size": twin.mlp,
        "num_hidden_layers": len(twin.layers),
        "num_attention_heads": twin.heads,
        "num_key_value_heads": twin.kv_heads,
        "head_dim": twin.head_dim,
        "rms_norm_eps": twin.norm_eps,
        "tie_word_embeddings": False,
    }
    if kinds := config.get("layer_types"):
        config["layer_types"] = [*kinds, *[kinds[-1]] * (len(twin.layers) - len(source.layers))]
    weights = _TwinWeights(checkpoint.weights, source, shape, device, seed)
    return replace(checkpoint, name=f"twin of {checkpoint.name}", config=config, weights=weights)


@dataclass(frozen=True)
class _TwinWeights:
    source: WeightSource
    architecture: Architecture
    shape: TwinShape
    device: torch.device
    seed: int

    @property
    def parameters(self) -> int:
        twin = twin_architecture(self.architecture, self.shape)
        return sum(math.prod(tensor_shape(twin, axes)) for _, axes in tensor_axes(twin))

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        tensors = self.source.tensors(dtype)
        return twin_tensors(self.architecture, self.shape, tensors, self.device, dtype, self.seed)

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        return self.tensors(dtype)

    def fp8(self) -> None:
        """Nothing here is."""

    def stored(self) -> None:
        """Nothing here is quantised."""


class CutVocabulary(LanguageModel):
    """A model without its last tokens: their logits are computed, as a large vocabulary costs, and cut off.

    The cut is a view of the model's logits. Tokens from `vocab_size` on cannot be given, chosen or drafted.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.max_batch = model.max_batch
        self.supports_trees = model.supports_trees
        self.chunk = model.chunk
        self.gives_features = model.gives_features
        self.steps_on_device = model.steps_on_device

    @property
    def max_context(self) -> int:  # type: ignore[override]
        return self.model.max_context

    @property
    def cache_tokens(self) -> int:
        return self.model.cache_tokens

    def make_room(self, beside: Sequence[CachedNetwork] = ()) -> int:
        return self.model.make_room(beside)

    def holds(self, lengths: Sequence[int]) -> bool:
        return self.model.holds(lengths)

    def reserve(self, lengths: Mapping[int, int]) -> Mapping[int, int]:
        return self.model.reserve(lengths)

    def open(self) -> int:
        return self.model.open()

    def close(self, slot: int) -> None:
        self.model.close(slot)

    def length(self, slot: int) -> int:
        return self.model.length(slot)

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        logits = self.model.forward(batch)[:, : self.vocab_size]
        if self.gives_features:
            self.features = self.model.features
        return logits

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self.model.commit(slot, path)

    def rollback(self, slot: int, length: int) -> None:
        self.model.rollback(slot, length)

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        self.model.keep_hidden_layers(layers)

    def stepper(self, draft: CachedNetwork | None, vocab_size: int | None = None) -> Stepper | None:
        return self.model.stepper(draft, vocab_size or self.vocab_size)

    def advance(self, grown: Mapping[int, int]) -> None:
        self.model.advance(grown)

    @property
    def late(self) -> int:
        return self.model.late

    def tune(self, note: Callable[[str], None]) -> Iterator[None]:
        return self.model.tune(note)

    def recordings(self) -> Iterator[Recording]:
        return self.model.recordings()
