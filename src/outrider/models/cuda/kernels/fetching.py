"""The copy engine's load, by the name it has in this Triton."""

from __future__ import annotations

try:
    from triton.experimental.gluon.language.nvidia.hopper.tma import async_load
except ImportError:  # before 3.7
    from triton.experimental.gluon.language.nvidia.hopper.tma import async_copy_global_to_shared as async_load

__all__ = ["async_load"]
