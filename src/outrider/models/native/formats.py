"""Number formats changed by compiled code: a few times as fast as NumPy and PyTorch, and no thread waits for another.
To the bit what those give."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.models.native.library import library
from outrider.models.stored import KINDS, Stored


def widened(raw: np.ndarray[Any, np.dtype[np.uint8]], kind: str, out: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
    """Whole blocks [bytes] to `out` [elements], to the bit as the package `gguf` has them. False, and nothing done:
    nothing is compiled here, or not for these blocks."""
    kernels = library()
    if kernels is None or kind not in KINDS or not (raw.flags.c_contiguous and out.flags.c_contiguous):
        return False
    place = raw.ctypes.data, len(raw), KINDS.index(kind), len(out), out.ctypes.data
    return bool(kernels.outrider_widen(*place))


def quantised(weight: Tensor, values: Tensor, scales: Tensor, block: int) -> bool:
    """As `precision.quantise`: fp32 [out, in] to int8 and a scale for every `block` of a row. False, and nothing done:
    nothing is compiled here, or not for these."""
    kernels, given = library(), (weight, values, scales)
    fits = weight.dtype == scales.dtype == torch.float32 and values.dtype == torch.int8
    if kernels is None or not fits or not all(each.is_contiguous() and each.device.type == "cpu" for each in given):
        return False
    rows, inputs = weight.shape
    assert values.shape == weight.shape
    assert scales.shape == (rows, -(-inputs // block))
    kernels.outrider_quantise(weight.data_ptr(), rows, inputs, block, values.data_ptr(), scales.data_ptr())
    return True


def requantise(matrix: Stored, values: Tensor, scales: Tensor, block: int) -> None:
    """A matrix of a file as `quantised` would have its numbers, which nobody has to hold."""
    kernels = library()
    assert kernels is not None, "who reads matrices as a file stores them has kernels for them"
    assert values.is_contiguous()
    assert scales.is_contiguous()
    kind, (rows, inputs) = KINDS.index(matrix.kind), values.shape
    assert scales.shape == (rows, -(-inputs // block))

    def fill(piece: Tensor, first: int) -> None:
        source, pitch = piece.contiguous(), piece.shape[1]
        place = source.data_ptr(), pitch, kind, len(source), inputs, block
        kernels.outrider_requantise(*place, values[first:].data_ptr(), scales[first:].data_ptr())

    pieces = matrix.pieces(_ROWS)
    if rows <= _ROWS:
        for piece in pieces:
            fill(piece, 0)
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        filling = [pool.submit(fill, piece, i * _ROWS) for i, piece in enumerate(pieces)]
    for each in filling:
        each.result()


def unpacked(codes: Tensor, bits: int, scales: Tensor, spread: Tensor, centre: Tensor, out: Tensor) -> bool:
    """Codes of a head in few bits to `out` [rows, columns], as `head.packed` says. False, and nothing done: nothing is
    compiled here, or not for these."""
    kernels, numbers = library(), (scales, spread, centre, out)
    fits = codes.dtype == torch.uint8 and all(each.dtype == torch.float32 for each in numbers)
    if kernels is None or not fits or not all(each.is_contiguous() for each in (codes, *numbers)):
        return False
    rows, columns = out.shape
    assert codes.shape[1] * 8 >= columns * bits
    at, *others = [each.data_ptr() for each in (codes, *numbers)]
    kernels.outrider_unpack(at, codes.shape[1], rows, columns, bits, *others)
    return True


_ROWS = 512
"""Of a file, for one thread at once."""
