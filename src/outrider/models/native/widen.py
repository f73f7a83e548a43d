"""Blocks of a GGUF file as numbers, by compiled code: a few times as fast as NumPy, and other threads can run."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.models.native.library import library
from outrider.models.stored import KINDS


def widened(raw: np.ndarray[Any, np.dtype[np.uint8]], kind: str, out: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
    """Whole blocks [bytes] to `out` [elements], to the bit as the package `gguf` has them. False, and nothing done:
    nothing is compiled here, or not for these blocks."""
    kernels = library()
    if kernels is None or kind not in KINDS or not (raw.flags.c_contiguous and out.flags.c_contiguous):
        return False
    place = raw.ctypes.data, len(raw), KINDS.index(kind), len(out), out.ctypes.data
    return bool(kernels.outrider_widen(*place))
