"""From a head on disk to a `DraftHead` beside its target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch

from outrider.core.model import DraftHead, LanguageModel
from outrider.errors import DrafterError
from outrider.models import cuda
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.models.head.checkpoint import VOCABULARY, HeadCheckpoint
from outrider.models.head.module import HeadModule
from outrider.models.head.torch_head import TorchHead
from outrider.models.head.weights import SCALES, HeadWeights, Scaled, target_ids, tensor_shapes
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.models.native.stack import unsupported_reason
from outrider.models.precision import INT8
from outrider.models.torch_decoder import TorchDecoder

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


def load_head(folder: Path, target: LanguageModel, tokenizer: Tokenizer | None = None) -> DraftHead:
    """The head in `folder`, reading `target` from now on; `DrafterError` where the two do not fit. `tokenizer`: the
    target's, which tells vocabularies of one size apart where the head says for which it was trained."""
    return place_head(read_head(folder, tokenizer), target)


def read_head(folder: Path, tokenizer: Tokenizer | None) -> HeadCheckpoint:
    """Checked against the vocabulary, not yet against the target's shape."""
    checkpoint = HeadCheckpoint.read(folder)
    made_for = checkpoint.about.get(VOCABULARY)
    if tokenizer is not None and made_for is not None and made_for != tokenizer.fingerprint():
        raise DrafterError(
            f"the head in {folder} was trained for a target with another vocabulary; "
            "train a head for this target with `outrider train`"
        )
    return checkpoint


def can_read(target: LanguageModel) -> TypeGuard[TorchDecoder | NativeDecoder | CudaDecoder]:
    """Whether a head can be placed beside this kind of target at all."""
    return isinstance(target, TorchDecoder | NativeDecoder) or cuda.is_decoder(target)


def place_head(checkpoint: HeadCheckpoint, target: LanguageModel) -> DraftHead:
    if not can_read(target):
        raise DrafterError(
            f"a head reads the target's hidden states, which {type(target).__name__} does not give; "
            "use another drafter (suffix needs nothing from the model)"
        )
    checkpoint = checkpoint.for_target(target.architecture)
    if isinstance(target, TorchDecoder):
        target.tap(checkpoint.config.taps)
        return _torch_head(checkpoint, target)
    if isinstance(target, NativeDecoder):
        if against := unsupported_reason(checkpoint.config.architecture, INT8):
            raise DrafterError(f"the compiled decoder cannot run this head: {against}; use another drafter")
        weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, target.device, None)
        return NativeHead(checkpoint.config, weights, target)
    if not cuda.expressible(checkpoint.config.architecture):
        raise DrafterError("the GPU kernels cannot compute this head's layers; use another drafter")
    target.tap(checkpoint.config.taps)
    weights = HeadWeights.of(checkpoint.config, checkpoint.tensors, target.device, target.dtype)
    return target.head(checkpoint.config, weights)


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
        if name in tensor_shapes(checkpoint.config) and name != "d2t"
    }
    module.load_state_dict(tensors, assign=True)
    return module
