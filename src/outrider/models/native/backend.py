"""The compiled decoder as a backend: the only one that multiplies with quantised weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outrider.core.model import DraftHead, LanguageModel
from outrider.errors import DrafterError, InvalidRequest
from outrider.models.architecture import USUAL, Architecture
from outrider.models.backend import DecoderBackend, PlaceHead, Placement, Size
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.weights import HeadWeights
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead, PackedHead
from outrider.models.native.stack import unsupported_reason
from outrider.models.precision import INT8, Precision
from outrider.models.stored import Stored


class NativeBackend(DecoderBackend):
    known = USUAL | {
        *("sandwich_norms", "no_pre_norms", "qk_norm_wide", "layer_norm", "residual_scale", "logit_scale", "logit_cap"),
        *("attention_cap", "experts", "experts_used", "experts_normalised"),
    }

    def unsuited_reason(self, architecture: Architecture, place: Placement) -> str | None:
        return "this is a GPU" if place.device.type != "cpu" else unsupported_reason(architecture, place.precision)

    def load_decoder(
        self, checkpoint: Checkpoint, architecture: Architecture, place: Placement, size: Size
    ) -> LanguageModel:
        return NativeDecoder.load(
            architecture,
            _weights(checkpoint, place.precision),
            place.precision,
            max_batch=size.max_batch,
            max_context=size.max_context,
            threads=place.threads,
        )

    def runs(self, model: LanguageModel) -> bool:
        return isinstance(model, NativeDecoder)

    def load_head(self, head: HeadCheckpoint, target: LanguageModel) -> DraftHead:
        assert isinstance(target, NativeDecoder)
        head.for_target(target.architecture)  # before all the work
        return self.prepared_head(head)(target)

    def prepared_head(self, head: HeadCheckpoint) -> PlaceHead:
        if against := unsupported_reason(head.config.architecture, INT8):
            raise DrafterError(f"the compiled decoder cannot run this head: {against}; use another drafter")
        weights = PackedHead.of(HeadWeights.of(head.config, head.tensors, torch.device("cpu"), None))

        def place(target: LanguageModel) -> DraftHead:
            assert isinstance(target, NativeDecoder)
            return NativeHead(head.config.for_target(target.architecture), weights, target)

        return place


def _weights(checkpoint: Checkpoint, precision: Precision) -> Iterator[tuple[str, Tensor | Stored]]:
    if precision is INT8:  # from a file's blocks without the numbers between
        return checkpoint.stored() or checkpoint.tensors(precision.source)
    if not precision.stored:
        return checkpoint.unread(precision.source)
    if (stored := checkpoint.stored()) is None:
        raise InvalidRequest(
            f"dtype: {precision.name} leaves the weights as a GGUF file quantised them, and those of {checkpoint.name} "
            "are not quantised; use bf16 or fp32"
        )
    return stored
