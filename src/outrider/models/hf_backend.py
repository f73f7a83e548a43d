"""transformers as a backend: whatever it knows, where no decoder of ours does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.core.model import LanguageModel
from outrider.models.backend import Backend, Placement
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.hf import HFModel


class HFBackend(Backend):
    def unsupported_reason(self, config: Mapping[str, Any], place: Placement) -> str | None:
        if place.precision.quantised:
            return f"transformers does not compute in {place.precision.name}"
        return "transformers' own decoder cannot promise it" if place.bitwise else None

    def load(self, checkpoint: Checkpoint, place: Placement) -> LanguageModel:
        return HFModel.load(
            checkpoint, place.dtype, place.device, max_batch=place.max_batch, max_context=place.max_context
        )

    def runs(self, model: LanguageModel) -> bool:
        return isinstance(model, HFModel)
