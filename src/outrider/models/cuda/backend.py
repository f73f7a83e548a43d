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
from outrider.models.checkpoints.catalog import cache_root
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.checkpoints.disk import COSTS
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights
from outrider.models.precision import BF16, FP8, FP16

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


HEAD_IN_FP8 = torch.int8
"""What the output layer of a model in fp8 is rounded to: as few bytes as e4m3 and nearer, which counts most there
(docs/log/gpu-kernels.md). A model that was published in fp8 keeps the output layer it came with."""


WORTH_ROUNDING = 2**26
"""Bytes of a head's matrices from which on a pass of few rows takes as long as reading them."""


class CudaBackend(DecoderBackend):
    known = USUAL | {"residual_scale", "logit_scale"}
    default_context = None  # a cache in blocks sets nothing aside for contexts that nobody has

    def unsuited_reason(self, architecture: Architecture, place: Placement) -> str | None:
        if place.device.type != "cuda" or find_spec("triton") is None:
            return "it needs a GPU and Triton"
        if place.precision not in (BF16, FP16, FP8):
            return f"it does not compute in {place.precision.name}"
        if torch.cuda.get_device_capability(place.device) < (8, 0):
            return "this GPU is older than it knows"
        return unsuited_shape(architecture, 64 if place.precision is FP8 else 32)

    def load_decoder(
        self, checkpoint: Checkpoint, architecture: Architecture, place: Placement, size: Size
    ) -> LanguageModel:
        from outrider.models.cuda.decoder import CudaDecoder
        from outrider.models.cuda.memory import CacheMemory

        precision = place.precision
        published = checkpoint.fp8() if precision is FP8 else None
        return CudaDecoder.load(
            architecture,
            checkpoint.tensors(precision.source) if published is None else published,
            place.dtype,
            place.device,
            matrices=precision.weights,
            memory=CacheMemory.on(place.device, place.gpu_memory, place.max_context),
            head=HEAD_IN_FP8 if precision is FP8 and published is None else None,
            tilings=cache_root() / COSTS,
            **size._asdict(),
        )

    def runs(self, model: LanguageModel) -> bool:
        return _is_decoder(model)

    def load_head(self, head: HeadCheckpoint, target: LanguageModel) -> DraftHead:
        assert _is_decoder(target)
        head = head.for_target(target.architecture)
        if against := unsuited_shape(head.config.architecture):
            raise DrafterError(f"the GPU kernels cannot compute this head: {against}; use another drafter")
        target.keep_hidden_layers(head.config.aux_hidden_layers)
        weights = HeadWeights.of(head.config, head.tensors, target.device, target.dtype)
        return target.head(head.config, weights, _eighth(head.config, weights))


def _eighth(config: HeadConfig, weights: HeadWeights) -> HeadWeights | None:
    """The same in 8 bits, where passes of few rows then take less time: whatever is drafted is verified."""
    if weights.matrix_bytes < WORTH_ROUNDING or unsuited_shape(config.architecture, 64) or config.feature_width % 64:
        return None
    from outrider.models.cuda.eighth_head import in_eighth

    return in_eighth(config, weights)


def unsuited_shape(a: Architecture, step: int = 32) -> str | None:
    """Why the kernels cannot compute layers of this shape, in words; None where they can. `step`: what widths must be
    multiples of."""
    if a.head_dim not in (16, 32, 64, 128, 256) or a.heads // a.kv_heads > 16:
        return f"{a.heads} heads of {a.head_dim} over {a.kv_heads} do not suit it"
    if any(width % step for width in (a.hidden, a.mlp, a.q_width)):
        return f"widths of {a.hidden}, {a.mlp} and {a.q_width} do not suit it"
    return None


def _is_decoder(model: LanguageModel) -> TypeGuard[CudaDecoder]:
    """Asking does not import Triton."""
    module = sys.modules.get("outrider.models.cuda.decoder")
    return module is not None and isinstance(model, module.CudaDecoder)
