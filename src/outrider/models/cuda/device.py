"""What a GPU has room for, and what it computes to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.runtime import driver


@dataclass(frozen=True, slots=True)
class GPU:
    """What kernels are cut to."""

    shared: int
    """Bytes of shared memory that a program may have."""
    multiprocessors: int
    capability: tuple[int, int] | None
    """None: kernels are run by Triton's interpreter."""

    @staticmethod
    def of(device: torch.device) -> GPU:
        """As large as an H200 where there is none."""
        if device.type != "cuda":
            return GPU(shared=232_448, multiprocessors=132, capability=None)
        number = torch.cuda.current_device() if device.index is None else device.index
        known = driver.active.utils.get_device_properties(number)
        shared, multiprocessors = int(known["max_shared_mem"]), int(known["multiprocessor_count"])
        return GPU(shared, multiprocessors, torch.cuda.get_device_capability(device))

    @property
    def interpreted(self) -> bool:
        return self.capability is None

    @property
    def copies(self) -> bool:
        """Whether it has a copy engine, and kernels that start before the one they follow has ended."""
        return self.capability is not None and self.capability >= (9, 0)

    @property
    def multiplies_apart(self) -> bool:
        """Whether groups of four warps multiply while others do something else: compute capability 9.0 alone."""
        return self.capability is not None and self.capability[0] == 9

    def widens(self, dtype: torch.dtype) -> bool:
        """Whether tiles of any size give the same bits: measured in bf16 for compute capability 9.0; 8.x has one
        instruction for all of them. Not known of others."""
        return self.capability is None or (dtype == torch.bfloat16 and self.capability[0] in (8, 9))
