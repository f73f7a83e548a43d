"""What this CPU can multiply by itself, as far as the choice of a number format depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_BF16 = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
"""x86 with AMX or AVX-512, ARM with NEON or SVE."""


def has_bf16(capabilities: Mapping[str, Any] | None = None) -> bool:
    """Whether the CPU has instructions for bf16; without them PyTorch's bf16 is many times slower than its fp32.

    `capabilities`: those PyTorch found, unless given. Where it cannot say, the answer is no: fp32 is never a disaster.
    """
    if capabilities is None:
        capabilities = getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    return any(capabilities.get(name, False) for name in _BF16)
