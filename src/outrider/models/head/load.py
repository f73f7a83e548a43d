"""From a head on disk to a `DraftHead` beside its target."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.errors import DrafterError
from outrider.models import cuda
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.module import HeadModule
from outrider.models.head.torch_head import TorchHead
from outrider.models.head.weights import SCALES, HeadWeights, Scaled, target_ids
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.models.native.stack import obstacle
from outrider.models.precision import INT8
from outrider.models.torch_decoder import TorchDecoder
from outrider.types import DraftHead, LanguageModel


def load_head(folder: Path, target: LanguageModel) -> DraftHead:
    """The head in `folder`, reading `target` from now on; `DrafterError` where the two do not fit."""
    return place_head(HeadCheckpoint.read(folder), target)


def can_read(target: LanguageModel) -> bool:
    """Whether a head can be placed beside this kind of target at all."""
    return isinstance(target, TorchDecoder | NativeDecoder) or cuda.is_decoder(target)


def place_head(checkpoint: HeadCheckpoint, target: LanguageModel) -> DraftHead:
    if isinstance(target, TorchDecoder):
        checkpoint.config.check_target(target.architecture)
        target.tap(checkpoint.config.taps)
        return _torch_head(checkpoint, target)
    if isinstance(target, NativeDecoder):
        checkpoint.config.check_target(target.architecture)
        if against := obstacle(checkpoint.config.architecture, INT8):
            raise DrafterError(f"the compiled decoder cannot run this head: {against}; use another drafter")
        weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, target.device, None)
        return NativeHead(checkpoint.config, weights, target)
    if cuda.is_decoder(target):
        checkpoint.config.check_target(target.architecture)
        if not cuda.expressible(checkpoint.config.architecture):
            raise DrafterError("the GPU kernels cannot compute this head's layers; use another drafter")
        target.tap(checkpoint.config.taps)
        weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, target.device, target.dtype)
        return target.head(checkpoint.config, weights)
    raise DrafterError(
        f"a head reads the target's hidden states, which {type(target).__name__} does not give; "
        "use another drafter (suffix needs nothing from the model)"
    )


def _torch_head(checkpoint: HeadCheckpoint, target: TorchDecoder) -> TorchHead:
    return TorchHead(
        as_module(checkpoint).to(target.device, target.dtype),
        target_ids(checkpoint.tensors["d2t"]).to(target.device),
        target.embed,
        max_batch=target.max_batch,
        max_context=target.max_context,
    )


def as_module(checkpoint: HeadCheckpoint) -> HeadModule:
    """In fp32."""
    with torch.device("meta"):
        module = HeadModule(checkpoint.config)
    tensors = {
        name: Scaled(tensor, checkpoint.tensors.get(name.removesuffix(".weight") + SCALES)).wide(torch.float32)
        for name, tensor in checkpoint.tensors.items()
        if name.endswith(".weight")
    }
    module.load_state_dict(tensors, assign=True)
    return module
