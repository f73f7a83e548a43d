"""Which CPU this is, and what it can multiply by itself, as far as the choice of a number format depends on it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
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


def cpu_name() -> str:
    """As the system calls it; ARM ones go by numbers."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    known = {name.strip(): value.strip() for name, value in facts.items()}
    if "model name" in known:
        return known["model name"]
    if "CPU part" in known:
        return f"{platform.machine()} {known.get('CPU implementer', '')}-{known['CPU part']}"
    return platform.processor() or platform.machine()
