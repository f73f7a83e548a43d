"""The decoder for GPUs: Triton kernels, recorded as CUDA graphs, bit-exact rows by construction."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from outrider.models.architecture import Architecture, Capability

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


CAPABILITIES = frozenset({Capability.RESIDUAL_SCALE, Capability.LOGIT_SCALE})
"""What the kernels compute of what only some models need."""


def supported(architecture: Architecture, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are here and can run this model."""
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and dtype in (torch.bfloat16, torch.float16)
        and expressible(architecture)
    )


def expressible(a: Architecture) -> bool:
    """Whether the kernels can compute this architecture."""
    return (
        a.lacking(CAPABILITIES) is None
        and a.head_dim in (16, 32, 64, 128, 256)
        and a.heads // a.kv_heads <= 16
        and all(width % 32 == 0 for width in (a.hidden, a.mlp, a.q_width))
    )


def is_decoder(model: object) -> TypeGuard[CudaDecoder]:
    """Whether this is our decoder; asking does not import Triton."""
    module = sys.modules.get(f"{__name__}.decoder")
    return module is not None and isinstance(model, module.CudaDecoder)


def load(
    architecture: Architecture,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_batch: int,
    max_context: int,
) -> CudaDecoder:
    """Ask `supported` first."""
    from outrider.models.cuda.decoder import CudaDecoder  # needs Triton, which is not everywhere

    return CudaDecoder.load(architecture, tensors, dtype, device, max_batch=max_batch, max_context=max_context)
