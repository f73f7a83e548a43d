"""Tensors of Triton's interpreter, made and matched the short way, and the types they may have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
"""() is that of a scalar, whose array has one number all the same."""

SIGNED: dict[str, Any] = {"int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64}
INTEGERS: dict[str, Any] = SIGNED | {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64}
WIDE: dict[str, Any] = {"fp32": np.float32, "fp64": np.float64}
FLOATS: dict[str, Any] = {"fp16": np.float16} | WIDE
NUMBERS: dict[str, Any] = INTEGERS | FLOATS
BITS: dict[str, Any] = INTEGERS | {"int1": np.bool_}
ALL: dict[str, Any] = NUMBERS | {"int1": np.bool_}
LIMITS = {name: (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for name, kind in INTEGERS.items()}
SUMMED = {"int32", "int64", "uint32", "uint64", "fp32", "fp64"}
LANGUAGE = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""What `triton.language` calls them."""


class Tensors:
    """Around tensors of `given`, the interpreter's module. `shape_of`: what a tensor of a shape says of it: one object
    for each shape."""

    def __init__(self, given: Any, shape_of: Callable[[Shape], tuple[Any, Any]]) -> None:
        import triton.language as tl

        self.given, self.shape_of = given, shape_of
        self.tensor, self.handle = tl.core.tensor, given.TensorHandle
        self.constexpr, self.block_type = tl.core.constexpr, tl.core.block_type
        self._promoted: dict[tuple[str, str], Any] = {}
        self._joint: dict[tuple[Shape, Shape], Shape | None] = {}
        self._filled: dict[tuple[Any, ...], Array] = {}
        self._kinds = {name: getattr(tl, LANGUAGE.get(name, name)) for name in ALL}

    def made(self, data: Array, kind: Any, shape: Shape) -> Any:
        tensor, handle = object.__new__(self.tensor), object.__new__(self.handle)
        handle.data, handle.dtype, handle.attr = data, kind, {}
        tensor.handle, tensor.dtype = handle, kind
        tensor.type = self._block(kind, shape) if shape else kind
        tensor.numel, tensor.shape = self.shape_of(shape)
        return tensor

    def _block(self, kind: Any, shape: Shape) -> Any:
        known = kind.__dict__.setdefault("blocks", {})
        if shape not in known:
            known[shape] = self.block_type(kind, shape)
        return known[shape]

    def _like(self, data: Array, other: Any) -> Any:
        """A tensor of the type and shape of another."""
        tensor, handle = object.__new__(self.tensor), object.__new__(self.handle)
        handle.data, handle.dtype, handle.attr = data, other.dtype, {}
        tensor.__dict__.update(other.__dict__)
        tensor.handle = handle
        return tensor

    def _together(self, a: Any, b: Any) -> Shape | None:
        """The shape of what two tensors come to; None: they do not fit."""
        return dims(a) if a.shape is b.shape else self._join(dims(a), dims(b))

    def _join(self, a: Shape, b: Shape) -> Shape | None:
        if not a or not b:
            return a or b
        if (a, b) not in self._joint:
            fit = len(a) == len(b) and all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True))
            self._joint[a, b] = tuple(map(max, a, b)) if fit else None
        return self._joint[a, b]

    def _constant(self, value: Any, name: str) -> Array | None:
        """A Python number beside a tensor of that type, which it does not change; None: it might."""
        if type(value) is float:
            fits = name in FLOATS
        elif type(value) is int:
            fits = name in FLOATS or (name in LIMITS and LIMITS[name][0] <= value <= LIMITS[name][1])
        else:
            fits = type(value) is bool and name in NUMBERS
        return np.array([value], dtype=NUMBERS[name]) if fits else None

    def _unwrapped(self, value: Any) -> Any:
        return value.value if type(value) is self.constexpr else value

    def _common(self, a: Any, b: Any) -> Any:
        """The type that two tensors of different types are brought to."""
        key = a.dtype.name, b.dtype.name
        if key not in self._promoted:
            semantic = self.given.interpreter_semantic
            self._promoted[key] = semantic.computation_type_impl(a.dtype, False, b.dtype, False, False)
        return self._promoted[key]

    def _full(self, value: Any, kind: Any, shape: Shape) -> Array:
        """The same array again: it is only read."""
        key = type(value), value, kind, shape
        if key not in self._filled:
            self._filled[key] = np.full(shape, value, dtype=kind)
        return self._filled[key]

    def _filling(self, value: Any, name: str, shape: Shape) -> Array | None:
        """So many of a Python number, which is an int32 or a float32 before it becomes one of that type."""
        if type(value) is int and -(2**31) <= value < 2**31:
            low, high = LIMITS.get(name, (value, value))
            return self._full(value, NUMBERS[name], shape) if low <= value <= high else None
        plain = type(value) is float and name in FLOATS and (math.isinf(value) or repr(value) == "0.0")
        return self._full(value, NUMBERS[name], shape) if plain else None

    def _meant(self, mask: Any, pointer: Any) -> Array | None:
        """Which of the pointers are; None: it is for others to say."""
        data = pointer.handle.data
        if mask is None or mask is True:
            return self._full(True, np.bool_, data.shape)
        if type(mask) is not self.tensor or mask.dtype.name != "int1":
            return None
        if mask.shape is pointer.shape:
            return mask.handle.data  # type: ignore[no-any-return]
        if self._together(pointer, mask) != dims(pointer):
            return None
        return np.broadcast_to(mask.handle.data, data.shape)


def dims(tensor: Any) -> Shape:
    shape: Shape = tensor.type.shape if tensor.shape else ()
    return shape
