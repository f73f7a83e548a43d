"""The decoder for GPUs as a backend. Triton, which is not everywhere, is imported only where it runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeGuard

import torch

from outrider.core.model import DraftHead, LanguageModel
from outrider.errors import DrafterError
from outrider.models.architecture import USUAL, Architecture
from outrider.models.backend import DecoderBackend, Placement, Size
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.weights import HeadWeights

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


class CudaBackend(DecoderBackend):
    known = USUAL | {"residual_scale", "logit_scale"}

    def unsuited_reason(self, architecture: Architecture, place: Placement) -> str | None:
        if place.device.type != "cuda" or find_spec("triton") is None:
            return "it needs a GPU and Triton"
        if place.precision.quantised or place.dtype not in (torch.bfloat16, torch.float16):
            return f"it does not compute in {place.precision.name}"
        if torch.cuda.get_device_capability(place.device) < (8, 0):
            return "this GPU is older than it knows"
        return unsuited_shape(architecture)

    def load_decoder(
        self, checkpoint: Checkpoint, architecture: Architecture, place: Placement, size: Size
    ) -> LanguageModel:
        from outrider.models.cuda.decoder import CudaDecoder

        tensors = checkpoint.tensors(place.precision.source)
        return CudaDecoder.load(architecture, tensors, place.dtype, place.device, **size._asdict())

    def runs(self, model: LanguageModel) -> bool:
        return _is_decoder(model)

    def load_head(self, head: HeadCheckpoint, target: LanguageModel) -> DraftHead:
        assert _is_decoder(target)
        head = head.for_target(target.architecture)
        if against := unsuited_shape(head.config.architecture):
            raise DrafterError(f"the GPU kernels cannot compute this head: {against}; use another drafter")
        target.keep_hidden_layers(head.config.aux_hidden_layers)
        weights = HeadWeights.of(head.config, head.tensors, target.device, target.dtype)
        return target.head(head.config, weights)


def unsuited_shape(a: Architecture) -> str | None:
    """Why the kernels cannot compute layers of this shape, in words; None where they can."""
    if a.head_dim not in (16, 32, 64, 128, 256) or a.heads // a.kv_heads > 16:
        return f"{a.heads} heads of {a.head_dim} over {a.kv_heads} do not suit it"
    if any(width % 32 for width in (a.hidden, a.mlp, a.q_width)):
        return f"widths of {a.hidden}, {a.mlp} and {a.q_width} do not suit it"
    return None


def _is_decoder(model: LanguageModel) -> TypeGuard[CudaDecoder]:
    """Asking does not import Triton."""
    module = sys.modules.get("outrider.models.cuda.decoder")
    return module is not None and isinstance(model, module.CudaDecoder)
