"""The decoder in PyTorch as a backend: every device and dtype, for want of a faster one."""

from __future__ import annotations

from outrider.core.model import DraftHead, LanguageModel
from outrider.models.architecture import USUAL, Architecture
from outrider.models.backend import DecoderBackend, Placement, Size
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.torch_head import TorchHead, as_module
from outrider.models.head.weights import target_ids
from outrider.models.torch_decoder import TorchDecoder


class TorchBackend(DecoderBackend):
    known = USUAL | {
        *("sandwich_norms", "no_pre_norms", "qk_norm_wide", "layer_norm", "residual_scale", "logit_scale", "logit_cap"),
        *("attention_cap", "experts", "experts_used", "experts_normalised"),
    }

    def unsuited_reason(self, architecture: Architecture, place: Placement) -> str | None:
        return f"it does not compute in {place.precision.name}" if place.precision.quantised else None

    def load_decoder(
        self, checkpoint: Checkpoint, architecture: Architecture, place: Placement, size: Size
    ) -> LanguageModel:
        tensors = checkpoint.tensors(place.precision.source)
        bitwise = bool(place.bitwise)
        return TorchDecoder.load(architecture, tensors, place.dtype, place.device, bitwise=bitwise, **size._asdict())

    def runs(self, model: LanguageModel) -> bool:
        return isinstance(model, TorchDecoder)

    def load_head(self, head: HeadCheckpoint, target: LanguageModel) -> DraftHead:
        assert isinstance(target, TorchDecoder)
        head = head.for_target(target.architecture)
        target.keep_hidden_layers(head.config.aux_hidden_layers)
        return TorchHead(
            as_module(head).to(target.device, target.dtype),
            target_ids(head.tensors["d2t"]).to(target.device),
            target.embed,
            max_batch=target.max_batch,
            max_context=target.max_context,
        )
