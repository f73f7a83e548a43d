"""Errors of a GPU: which are, and whether the process can go on afterwards.

Some leave everything as it was, but for what had just been asked: no memory is left, a launch is refused. Others, such
as an access to memory that is nobody's, end the CUDA context for good: from then on every call fails, and only another
process gets a new one.
"""

from __future__ import annotations

import re
from contextlib import suppress

import torch

from outrider.errors import DeviceLost

_NAMED = re.compile(r"^Triton Error \[CUDA\]|\bCUDA (driver )?error\b|\bCUBLAS_STATUS_")
"""Errors of launches and of libraries, which have no class of their own."""


def recovered(error: Exception, device: torch.device) -> bool:
    """As `CachedNetwork.recovers`, of a network on this device."""
    if not _of_device(error):
        return False
    _revive(device, error)
    return True


def _of_device(error: Exception) -> bool:
    """Whether the GPU, its driver or its memory has failed."""
    if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _NAMED.search(str(error)) is not None


def _revive(device: torch.device, error: Exception) -> None:
    """Wait until nothing runs any more, and let go of memory that is set aside. `DeviceLost` where the device does
    nothing more for this process, because of `error`."""
    if device.type != "cuda":
        return
    with suppress(RuntimeError):  # what went wrong last is told once; what is told again stays
        torch.cuda.synchronize(device)
    try:
        torch.cuda.set_stream(torch.cuda.default_stream(device))  # a recording that broke off had another
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError as last:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise DeviceLost(
            f"the GPU has failed ({why}), and this process cannot use it any more; ask again once another was started"
        ) from last
