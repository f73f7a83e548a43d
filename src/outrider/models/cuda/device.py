"""What a GPU has room for, and what it computes to the bit."""

from __future__ import annotations

import torch
from triton.runtime import driver


def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; those of an H200 where there is no GPU."""
    if device.type != "cuda":
        return 232_448
    number = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(number)["max_shared_mem"])


def widens(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether tiles of any size give the same bits: measured in bf16 for compute capability 9.0; 8.x has one
    instruction for all of them. Not known of others."""
    if device.type != "cuda":
        return True
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (8, 9)
