"""What every backend says: what it cannot run, and how what it can is loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from outrider.core.model import DraftHead, LanguageModel
from outrider.models.architecture import Architecture, UnsupportedArchitecture
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.precision import Precision

PlaceHead = Callable[[LanguageModel], DraftHead]

DEFAULT_CONTEXT = 8192
"""Longest context a cache slot is made for unless asked otherwise."""
GPU_MEMORY = 0.9
"""Of a whole GPU."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model runs. `bitwise` None: on wherever it is nearly free."""

    device: torch.device
    precision: Precision
    bitwise: bool | None
    threads: int
    max_batch: int
    max_context: int | None
    auto: bool = False
    """Nobody asked for the precision, so the model may change it (`settled`)."""
    gpu_memory: float = GPU_MEMORY
    """The part of a whole GPU that a model may take there, cache included."""

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.precision.compute


class Backend(ABC):
    """One way to run models."""

    places_heads: bool = False
    """Whether a head can be loaded beside its models."""

    @abstractmethod
    def unsupported_reason(self, config: Mapping[str, Any], place: Placement) -> str | None:
        """Why it does not run a model of this `config.json` there, in words; None where it does."""

    @abstractmethod
    def load(self, checkpoint: Checkpoint, place: Placement) -> LanguageModel:
        """For whom there is no `unsupported_reason`."""

    @abstractmethod
    def runs(self, model: LanguageModel) -> bool:
        """Whether this is a model that it has loaded."""

    def load_head(self, head: HeadCheckpoint, target: LanguageModel) -> DraftHead:
        """Beside one of its models, reading it from now on; `DrafterError` where the two do not fit."""
        raise NotImplementedError

    def prepared_head(self, head: HeadCheckpoint) -> PlaceHead:
        """What is left to do of that once there is a target; all else is done now."""
        return partial(self.load_head, head)


class Size(NamedTuple):
    """Of a cache."""

    max_batch: int
    max_context: int


class DecoderBackend(Backend):
    """A decoder of ours: it is told what to compute by an `Architecture`."""

    places_heads = True
    default_context: int | None = DEFAULT_CONTEXT
    """The longest unless asked otherwise; None: the model's own."""
    known: frozenset[str]
    """Options of an architecture that it computes; it declines the others, whatever they are."""

    def unsupported_reason(self, config: Mapping[str, Any], place: Placement) -> str | None:
        try:
            architecture = Architecture.from_config(config)
        except UnsupportedArchitecture as reason:
            return str(reason)
        if unknown := architecture.lacking(self.known):
            return f"it does not do {unknown}"
        return self.unsuited_reason(architecture, place)

    @abstractmethod
    def unsuited_reason(self, architecture: Architecture, place: Placement) -> str | None:
        """The same of an architecture whose options it computes."""

    def load(self, checkpoint: Checkpoint, place: Placement) -> LanguageModel:
        architecture = Architecture.from_config(checkpoint.config)
        context = min(architecture.max_context, place.max_context or self.default_context or architecture.max_context)
        return self.load_decoder(checkpoint, architecture, place, Size(place.max_batch, context))

    @abstractmethod
    def load_decoder(
        self, checkpoint: Checkpoint, architecture: Architecture, place: Placement, size: Size
    ) -> LanguageModel: ...
