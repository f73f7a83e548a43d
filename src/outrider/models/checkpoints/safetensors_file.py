"""Reads and writes the safetensors format one tensor at a time.

Plain reads instead of the usual memory map: mapped pages count as the process's own memory until the file is
closed, which would double the peak while a model is loaded.
Invariant: a `SafetensorsFile` that was opened lies wholly within its file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from outrider.errors import ModelError
from outrider.models.stored import KINDS, Stored

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class _Entry:
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    path: Path
    entries: dict[str, _Entry]

    @staticmethod
    def open(path: Path) -> SafetensorsFile:
        """Parse the header and check that every tensor is complete."""
        try:
            with path.open("rb") as file:
                return SafetensorsFile(path, _parse(file))
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path} is not a readable safetensors file ({error}); fetch it again.") from error

    def numel(self, name: str) -> int:
        return math.prod(self.entries[name].shape)

    def in_fp8(self, name: str) -> bool:
        return self.entries[name].type_name == "F8_E4M3"

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As `dtype`; None: as it is stored."""
        entry = self.entries[name]
        stored = _DTYPES.get(entry.type_name)
        if stored is None or (dtype is not None and not stored.is_floating_point and dtype.is_floating_point):
            raise ModelError(
                f"{self.path.name} stores {name} as {entry.type_name}, which Outrider cannot read; "
                "use the model's unquantised weights (F32, F16 or BF16)."
            )
        raw = self._bytes(entry.offset, entry.nbytes)
        return raw.view(stored).view(entry.shape).to(dtype or stored)

    def unread(self, name: str, dtype: torch.dtype) -> Stored | None:
        """A matrix that is stored in this format, to be read later."""
        entry = self.entries[name]
        if len(entry.shape) != 2 or entry.type_name not in KINDS or _DTYPES[entry.type_name] != dtype:
            return None
        width = entry.shape[1] * dtype.itemsize

        def read(first: int, last: int) -> torch.Tensor:
            return self._bytes(entry.offset + first * width, (last - first) * width).view(last - first, width)

        return Stored(entry.type_name, entry.shape, read, lambda: read(0, entry.shape[0]))

    def _bytes(self, offset: int, count: int) -> torch.Tensor:
        raw = np.fromfile(self.path, np.uint8, count, offset=offset)
        if len(raw) != count:
            raise ModelError(f"{self.path} became shorter while it was read; fetch it again.")
        return torch.from_numpy(raw)


def _parse(file: BinaryIO) -> dict[str, _Entry]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if size < start or length < 2:
        raise ValueError(f"it ends at byte {size}, inside its header")
    header: dict[str, Any] = json.loads(file.read(length))
    entries = {}
    for name, item in header.items():
        if name == "__metadata__":
            continue
        begin, end = (int(offset) for offset in item["data_offsets"])
        shape = tuple(int(extent) for extent in item["shape"])
        if not 0 <= begin <= end or start + end > size:
            raise ValueError(f"tensor {name} ends at byte {start + end} but the file has {size}")
        dtype = _DTYPES.get(item["dtype"])
        if dtype is not None and end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor {name} has {end - begin} bytes for shape {shape}")
        entries[name] = _Entry(str(item["dtype"]), shape, start + begin, end - begin)
    return entries


def write_bf16(
    write: Callable[[bytes | memoryview], object],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Write bf16 tensors as they come; `shapes` announces their names and shapes in the same order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write(len(text).to_bytes(8, "little"))
    write(text)
    for (name, tensor), (expected, shape) in zip(tensors, shapes.items(), strict=True):
        if (name, tuple(tensor.shape), tensor.dtype) != (expected, shape, torch.bfloat16):
            raise ValueError(f"expected {expected} {shape} in bf16, got {name} {tuple(tensor.shape)} {tensor.dtype}")
        write(tensor.contiguous().view(torch.uint8).numpy().reshape(-1).data)
