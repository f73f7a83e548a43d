"""From a checkpoint to a running model: choose device, dtype and decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.errors import InvalidRequest
from outrider.models import cuda
from outrider.models.architecture import Architecture, UnsupportedArchitecture
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.hf import HFModel
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.stack import obstacle
from outrider.models.precision import BF16, PRECISIONS, Precision
from outrider.models.torch_decoder import TorchDecoder
from outrider.types import LanguageModel

DEFAULT_CONTEXT = 8192
"""Longest context a cache slot is made for unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model runs. `bitwise` None: on wherever it is nearly free."""

    device: torch.device
    precision: Precision
    bitwise: bool | None
    threads: int
    max_batch: int
    max_context: int | None

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.precision.compute


def placement(
    *,
    device: str,
    dtype: str,
    bitwise: bool | None,
    threads: int | None,
    max_batch: int,
    max_context: int | None,
) -> Placement:
    """Check what was asked for against this machine."""
    for name, value in (("threads", threads), ("max_batch", max_batch), ("max_context", max_context)):
        if value is not None and value < 1:
            raise InvalidRequest(f"{name} must be at least 1, got {value}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise InvalidRequest(f"device must be auto, cpu or cuda, got {device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidRequest("device: PyTorch sees no CUDA GPU here; use cpu")
    if dtype not in ("auto", *PRECISIONS):
        raise InvalidRequest(f"dtype must be auto, {', '.join(PRECISIONS)}, got {dtype!r}")
    precision = BF16 if dtype == "auto" else PRECISIONS[dtype]
    if threads is not None:
        torch.set_num_threads(threads)
    return Placement(torch.device(device), precision, bitwise, torch.get_num_threads(), max_batch, max_context)


def load_model(checkpoint: Checkpoint, place: Placement) -> LanguageModel:
    """The fastest decoder that runs this checkpoint at this place.

    Bit-exact rows (level C) by default wherever our own kernels run, which compute no other way; elsewhere on request.
    """
    try:
        architecture = Architecture.from_config(checkpoint.config)
    except UnsupportedArchitecture as reason:
        _refuse_quantised(place.precision, str(reason))
        if place.bitwise:
            raise InvalidRequest(f"bitwise: {reason}, and transformers' own decoder cannot promise it") from reason
        return HFModel.load(
            checkpoint, place.dtype, place.device, max_batch=place.max_batch, max_context=place.max_context
        )
    size = {
        "max_batch": place.max_batch,
        "max_context": min(architecture.max_context, place.max_context or DEFAULT_CONTEXT),
    }
    precision = place.precision
    tensors = checkpoint.tensors(precision.source)
    against = obstacle(architecture, precision) if place.device.type == "cpu" else "this is a GPU"
    if against is None:
        return NativeDecoder.load(
            architecture,
            tensors,
            precision,
            max_batch=size["max_batch"],
            max_context=size["max_context"],
            threads=place.threads,
        )
    _refuse_quantised(precision, against)
    if cuda.supported(architecture, place.dtype, place.device):
        return cuda.load(architecture, tensors, place.dtype, place.device, **size)
    return TorchDecoder.load(architecture, tensors, place.dtype, place.device, bitwise=bool(place.bitwise), **size)


def _refuse_quantised(precision: Precision, reason: str) -> None:
    """Only the compiled decoder multiplies with quantised weights."""
    if precision.quantised:
        raise InvalidRequest(f"dtype: {precision.name} weights need the compiled CPU decoder, but {reason}; use bf16")
