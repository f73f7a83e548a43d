"""The copy engine's load, and where all warps of a role meet, by the names they have in this Triton."""

from __future__ import annotations

try:
    from triton.experimental.gluon.language.nvidia.hopper.tma import async_load
except ImportError:  # before 3.7
    from triton.experimental.gluon.language.nvidia.hopper.tma import async_copy_global_to_shared as async_load

try:
    from triton.experimental.gluon.language import barrier as meet
except ImportError:  # before 3.7
    from triton.experimental.gluon.language import thread_barrier as meet

__all__ = ["async_load", "meet"]
