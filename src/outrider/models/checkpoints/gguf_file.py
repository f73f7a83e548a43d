"""Reads the GGUF container: metadata, the list of tensors, and a tensor's numbers.

The header is parsed here rather than with `gguf.GGUFReader`, which takes 4 s and 400 MB for a 50k vocabulary
and does not notice a file that was cut short. What the numbers mean is left to the `gguf` package.
Invariant: a `GGUFFile` that was opened lies wholly within its file, so reading cannot run past the end.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from outrider.errors import ModelError
from outrider.models.native.formats import widened
from outrider.models.stored import Stored

_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    8: ("Q8_0", 32, 34),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    19: ("IQ1_S", 256, 50),
    29: ("IQ1_M", 256, 56),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    22: ("IQ2_S", 256, 82),
    18: ("IQ3_XXS", 256, 98),
    21: ("IQ3_S", 256, 110),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
}
"""Those we can read, by their numbers: name, numbers in a block, bytes of one. As the package `gguf` has them (a test
compares), whose import alone takes longer than all of a header."""
SUPPORTED_TYPES = tuple(name for name, _, _ in _TYPES.values())

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_CHUNK = 1 << 19
"""Elements dequantised at once, a multiple of every block size. One long row per call: `gguf` goes through
many short rows 16 at a time in Python, which is slower and keeps threads from running side by side."""
_PIECE = 1 << 18
"""Bytes of a header that are read at once where it has many strings."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how it is encoded; `shape` is in row-major (PyTorch) order."""

    path: Path
    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUFFile:
    """A model in one file, or the first of several: then `tensors` are those of all of them."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @staticmethod
    def open(path: Path, vocabulary: bool = True) -> GGUFFile:
        """Parse the header and check that every tensor is complete and of a type we can read. Without the vocabulary
        `metadata` has no lists."""
        first = GGUFFile._open(path, vocabulary)
        return _joined(first) if first.metadata.get("split.count", 1) != 1 else first

    @staticmethod
    def _open(path: Path, vocabulary: bool) -> GGUFFile:
        try:
            with path.open("rb") as file:
                return _parse(path, file, vocabulary)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error
        except RecursionError as error:
            raise ModelError(f"{path} is not a readable GGUF file (lists within lists); fetch it again.") from error
        except (_Damaged, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is not a readable GGUF file ({error}); fetch it again.") from error

    def without_vocabulary(self) -> GGUFFile:
        """For whoever wants the tensors: lists of the metadata take tens of megabytes."""
        metadata = {key: value for key, value in self.metadata.items() if not isinstance(value, list)}
        return replace(self, metadata=metadata)

    def read(self, name: str, dtype: torch.dtype, shift: float = 0.0) -> torch.Tensor:
        """The tensor as numbers, plus `shift`, computed in fp32 and rounded once to `dtype`.

        Works through the blocks in chunks on a few threads: the only large allocation is the result itself.
        """
        info = self.tensors[name]
        result = torch.empty(info.shape, dtype=dtype)
        flat = result.view(-1)
        bytes_per_chunk = _CHUNK * info.nbytes // info.numel  # exact: a chunk is a whole number of blocks

        def fill(index: int) -> None:
            part = flat[index * _CHUNK : (index + 1) * _CHUNK]
            offset = index * bytes_per_chunk
            count = min(bytes_per_chunk, info.nbytes - offset)
            numbers = part.numpy() if dtype == torch.float32 else np.empty(len(part), np.float32)
            _dequantize(_bytes(info.path, info.offset + offset, count), info.type_name, numbers)
            if shift:
                numbers += np.float32(shift)
            if dtype != torch.float32:
                part.copy_(torch.from_numpy(numbers))

        chunks = range(-(-info.numel // _CHUNK))
        if len(chunks) == 1:
            fill(0)
        else:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                list(pool.map(fill, chunks))
        return result

    def stored(self, name: str) -> Stored:
        """A matrix, or those of all experts, as it is, to be read later."""
        info = self.tensors[name]
        width = info.nbytes // math.prod(info.shape[:-1])

        def read(first: int, last: int) -> torch.Tensor:
            raw = _bytes(info.path, info.offset + first * width, (last - first) * width)
            return torch.from_numpy(raw).view(last - first, width)

        def mapped() -> torch.Tensor:
            try:
                pages = np.memmap(info.path, np.uint8, mode="c", offset=info.offset, shape=(info.nbytes,))
            except (OSError, ValueError) as error:
                raise ModelError(f"{info.path} became shorter while it was read; fetch it again.") from error
            return torch.from_numpy(pages).view(-1, width)

        return Stored(info.type_name, info.shape, read, mapped)


def _bytes(path: Path, offset: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        raw = np.fromfile(path, np.uint8, count, offset=offset)
    except OSError as error:
        raise ModelError(f"cannot read {path} any more: {error.strerror or error}.") from error
    if len(raw) != count:
        raise ModelError(f"{path} became shorter while it was read; fetch it again.")
    return raw


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def is_later_part(path: Path) -> bool:
    """Whether the file's name says that it is a part of a model, and not the first."""
    match = _PART.fullmatch(path.name)
    return match is not None and int(match[2]) != 1


def _joined(first: GGUFFile) -> GGUFFile:
    """With the tensors of all parts, which lie side by side under the names llama.cpp gives them."""
    path, count = first.path, first.metadata["split.count"]
    match = _PART.fullmatch(path.name)
    if match is None or not isinstance(count, int) or int(match[3]) != count:
        raise ModelError(
            f"{path} is a part of a model in {count} files; it has to keep the name it was given, which ends in "
            "-00001-of-0000N.gguf."
        )
    paths = [path.with_name(f"{match[1]}-{i:05}-of-{match[3]}.gguf") for i in range(1, count + 1)]
    if first.metadata.get("split.no") != 0 or path != paths[0]:
        raise ModelError(f"{path} is not the first part of its model; name that one, {paths[0].name}.")
    if missing := [part.name for part in paths if not part.is_file()]:
        raise ModelError(f"{path} is the first of {count} files; missing beside it: {', '.join(missing)}.")
    tensors = dict(first.tensors)
    for number, part in enumerate(paths[1:], 1):
        file = GGUFFile._open(part, vocabulary=False)
        if file.metadata.get("split.no") != number or file.metadata.get("split.count") != count:
            raise ModelError(f"{part} is not part {number + 1} of {count}, as its name says; fetch it again.")
        if twice := tensors.keys() & file.tensors.keys():
            raise ModelError(f"{part} holds {min(twice)}, which another part holds, too; fetch both again.")
        tensors |= file.tensors
    if (whole := first.metadata.get("split.tensors.count")) not in (None, len(tensors)):
        raise ModelError(f"the parts beside {path} hold {len(tensors)} tensors, not {whole}; fetch them again.")
    return GGUFFile(path, first.metadata, tensors)


def _dequantize(raw: np.ndarray[Any, Any], type_name: str, out: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    """[bytes] of whole encoded blocks → out, [elements] fp32."""
    if widened(raw, type_name, out):
        return
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    out[:] = dequantize(raw[None], GGMLQuantizationType[type_name])[0]


class _Damaged(Exception):
    """The header does not make sense; says where."""


class _Header:
    """A cursor over the header that never reads, nor allocates, beyond the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise self._ends()
        self.position += count
        return self.file.read(count)

    def number(self, format_: str) -> Any:
        return struct.unpack("<" + format_, self.take(struct.calcsize("<" + format_)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def strings(self, count: int, wanted: bool) -> list[str]:
        """As `string`, so many times; none of them where they are not wanted. A vocabulary has tens of thousands, in
        every file: they are taken from larger pieces of it."""
        found, length_of = list[str](), struct.Struct("<Q").unpack_from
        piece, at = b"", 0
        for _ in range(count):
            if len(piece) - at < 8:
                piece, at = self._more(piece[at:], 8), 0
            start = at + 8
            at = start + length_of(piece, at)[0]
            if at > len(piece):
                at -= start
                piece, start = self._more(piece[start:], at), 0
            if wanted:
                found.append(str(piece[start:at], "utf-8"))
        self.position -= len(piece) - at
        self.file.seek(self.position)
        return found

    def _more(self, piece: bytes, least: int) -> bytes:
        """What is left of a piece and what follows it, at least so many bytes."""
        missing = max(0, least - len(piece))
        return piece + self.take(max(missing, min(_PIECE, self.size - self.position)))

    def _ends(self) -> _Damaged:
        return _Damaged(f"it ends at byte {self.size}, inside its header")

    def value(self, kind: int, lists: bool = True) -> Any:
        """`lists`: whether anybody wants what is in one."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.number("I"), self.number("Q")
            if item in _SCALARS:
                dtype = np.dtype(_SCALARS[item])
                raw = self.take(count * dtype.itemsize)
                return np.frombuffer(raw, dtype).tolist() if lists else []
            if item not in (_STRING, _ARRAY) or count > self.size - self.position:
                raise _Damaged(f"bad array of type {item} at byte {self.position}")
            if item == _STRING:
                return self.strings(count, lists)
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise _Damaged(f"unknown value type {kind} at byte {self.position}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()


def _parse(path: Path, file: BinaryIO, vocabulary: bool) -> GGUFFile:
    header = _Header(file)
    if header.take(4) != b"GGUF":
        raise ModelError(f"{path} is no GGUF file: it does not start with the letters GGUF.")
    version = header.number("I")
    if version & 0xFFFF == 0:
        raise _Damaged("it was written for big-endian machines")
    if version not in (2, 3):
        raise _Damaged(f"its format version is {version}, known are 2 and 3")
    tensor_count, metadata_count = header.number("Q"), header.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = header.string()
        value = header.value(header.number("I"), vocabulary)
        if vocabulary or not isinstance(value, list):
            metadata[key] = value
    entries = [_tensor_entry(header) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _Damaged(f"its alignment is {alignment!r}")
    start = -(-header.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in _place(path, entries, start):
        if info.name in tensors:
            raise _Damaged(f"tensor {info.name} appears twice")
        if info.offset + info.nbytes > header.size:
            raise _Damaged(
                f"tensor {info.name} ends at byte {info.offset + info.nbytes} but the file has {header.size}"
            )
        tensors[info.name] = info
    return GGUFFile(path, metadata, tensors)


def _tensor_entry(header: _Header) -> tuple[str, tuple[int, ...], int, int]:
    """(name, row-major shape, type number, offset within the data section)"""
    name = header.string()
    rank = header.number("I")
    if not 1 <= rank <= _MAX_DIMENSIONS:
        raise _Damaged(f"tensor {name} has {rank} dimensions")
    shape = tuple(header.number("Q") for _ in range(rank))[::-1]
    return name, shape, header.number("I"), header.number("Q")


def _place(path: Path, entries: list[tuple[str, tuple[int, ...], int, int]], start: int) -> Iterator[TensorInfo]:
    for name, shape, type_number, offset in entries:
        if type_number not in _TYPES:
            raise ModelError(
                f"tensor {name} is stored as {_unknown_type(type_number)}, which Outrider cannot read; "
                f"use a GGUF made of {', '.join(SUPPORTED_TYPES)}."
            )
        type_name, block, block_bytes = _TYPES[type_number]
        if math.prod(shape) == 0 or shape[-1] % block:
            raise _Damaged(f"tensor {name} has shape {shape}, not whole {type_name} blocks of {block}")
        yield TensorInfo(path, name, shape, type_name, start + offset, math.prod(shape) // block * block_bytes)


def _unknown_type(number: int) -> str:
    from gguf import GGMLQuantizationType

    names = {int(member): str(member.name) for member in GGMLQuantizationType}
    return names.get(number, f"number {number}")
