"""What kernels do most, the short way: operators, loads, stores and reductions of Triton's interpreter.

Each takes the operands that it knows and does with their arrays what the interpreter would; whatever else it is given
it leaves to the interpreter. Both are held against each other in tests/gpu/test_interpreter.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from interpreter_tensors import (
    ALL,
    BITS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    SUMMED,
    WIDE,
    Array,
    Shape,
    Tensors,
    dims,
)

Operator = Callable[..., Any]


def quotient(a: Array, b: Array) -> Array:
    """Rounded towards zero."""
    found: Array = (a - np.fmod(a, b)) // b
    return found


ARITHMETIC: list[tuple[str, Operator, dict[str, Any], bool]] = [
    ("add", np.add, NUMBERS, True),
    ("sub", np.subtract, NUMBERS, True),
    ("mul", np.multiply, NUMBERS, True),
    ("truediv", np.divide, WIDE, False),
    ("floordiv", quotient, INTEGERS, False),
    ("mod", np.fmod, INTEGERS, False),
    ("and", np.bitwise_and, BITS, True),
    ("or", np.bitwise_or, BITS, True),
    ("xor", np.bitwise_xor, BITS, True),
]
"""What each is for, and whether also of two types."""
COMPARISONS: dict[str, Operator] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class Operators(Tensors):
    """Around those of Triton's language."""

    def __init__(self, given: Any, shape_of: Callable[[Shape], tuple[Any, Any]]) -> None:
        super().__init__(given, shape_of)
        self.replaced: dict[str, tuple[Operator, Operator]] = {}
        """The interpreter's own and the short way of each."""

    def replace(self, owner: Any, name: str, short: Callable[[Operator], Operator]) -> None:
        key, now = f"{owner.__name__}.{name}", getattr(owner, name)
        slow, _ = self.replaced.get(key, (now, now))
        self.replaced[key] = slow, short(now)
        setattr(owner, name, self.replaced[key][1])

    # Operators

    def binary(
        self, op: Operator, known: dict[str, Any], *, turned: bool = False, mixed: bool = True, result: Any = None
    ) -> Callable[[Operator], Operator]:
        """`turned`: the tensor comes second. `mixed`: also of two types. `result`: the type of the outcome; None: that
        of the operands."""
        tensor = self.tensor

        def short(slow: Operator) -> Operator:
            def operator(one: Any, other: Any) -> Any:
                name = one.dtype.name
                if name not in known:
                    return slow(one, other)
                if type(other) is not tensor:
                    constant = self._constant(self._unwrapped(other), name)
                    if constant is None:
                        return slow(one, other)
                    data = op(constant, one.handle.data) if turned else op(one.handle.data, constant)
                    return self._like(data, one) if result is None else self.made(data, result, dims(one))
                its = other.dtype.name
                if its not in known or (shape := self._together(one, other)) is None:
                    return slow(one, other)
                a, b, kind = one.handle.data, other.handle.data, one.dtype
                if its != name:
                    kind = self._common(one, other) if mixed else None
                    if kind is None or kind.name not in known:
                        return slow(one, other)
                    a, b = a.astype(known[kind.name], copy=False), b.astype(known[kind.name], copy=False)
                return self.made(op(b, a) if turned else op(a, b), result or kind, shape)

            return operator

        return short

    def shifted(self, op: Operator) -> Callable[[Operator], Operator]:
        """By a number that is known."""

        def short(slow: Operator) -> Operator:
            def operator(one: Any, count: Any) -> Any:
                name, amount = one.dtype.name, self._unwrapped(count)
                if name not in INTEGERS or type(amount) is not int or not 0 <= amount < one.dtype.primitive_bitwidth:
                    return slow(one, count)
                return self._like(op(one.handle.data, np.array([amount], dtype=INTEGERS[name])), one)

            return operator

        return short

    def moved(self, *, back: bool) -> Callable[[Operator], Operator]:
        """A pointer by an offset."""

        def short(slow: Operator) -> Operator:
            def operator(one: Any, other: Any) -> Any:
                if not one.dtype.is_ptr():
                    return slow(one, other)
                offset, shape = self._unwrapped(other), None
                if type(offset) is int and -(2**31) < offset < 2**31:
                    by, shape = np.array([offset], dtype=np.int32), dims(one)
                elif type(offset) is self.tensor and offset.dtype.name in SIGNED:
                    by, shape = offset.handle.data, self._together(one, offset)
                if shape is None:
                    return slow(one, other)
                width = max(1, one.dtype.element_ty.primitive_bitwidth // 8)
                data = one.handle.data + width * (-by if back else by).astype(np.uint64)
                return self.made(data, one.dtype, shape)

            return operator

        return short

    def indexed(self, slow: Operator) -> Operator:
        whole = slice(None)

        def operator(one: Any, slices: Any) -> Any:
            known = type(slices) is tuple and one.shape and all(each is None or each == whole for each in slices)
            if not known or len(slices) - slices.count(None) != len(one.shape):
                return slow(one, slices)
            data = one.handle.data[slices]
            return self.made(data, one.dtype, data.shape)

        return operator

    def cast(self, slow: Operator) -> Operator:
        def operator(one: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> Any:
            name, to = one.dtype.name, self._unwrapped(dtype).name
            if fp_downcast_rounding is None and name in ALL and to in NUMBERS:
                data = one.handle.data
                if name == to:
                    return one
                if not bitcast and (name != "fp16" or to in FLOATS):
                    return self.made(data.astype(NUMBERS[to]), self._kinds[to], dims(one))
                if bitcast and name in NUMBERS and data.dtype.itemsize == np.dtype(NUMBERS[to]).itemsize:
                    return self.made(data.view(NUMBERS[to]), self._kinds[to], dims(one))
            return slow(one, dtype, fp_downcast_rounding, bitcast)

        return operator

    def selected(self, slow: Operator) -> Operator:
        def operator(condition: Any, x: Any, y: Any) -> Any:
            a, b = self._unwrapped(x), self._unwrapped(y)
            one, other = (a, b) if type(a) is self.tensor else (b, a)
            if type(condition) is self.tensor and condition.dtype.name == "int1" and type(one) is self.tensor:
                name, shape = one.dtype.name, None
                if type(other) is not self.tensor:
                    its = self._constant(other, name)
                    if its is not None:
                        shape = self._together(condition, one)
                elif other.dtype.name == name in NUMBERS:
                    its, both = other.handle.data, self._together(one, other)
                    if both is not None:
                        shape = self._join(dims(condition), both)
                if shape is not None:
                    pair = (one.handle.data, its) if one is a else (its, one.handle.data)
                    return self.made(np.where(condition.handle.data, *pair), one.dtype, shape)
            return slow(condition, x, y)

        return operator

    def extreme(self, whole: Operator, real: Operator) -> Callable[[Operator], Operator]:
        """The larger or the smaller of two, of which one that is no number does not count."""

        def short(slow: Operator) -> Operator:
            def operator(x: Any, y: Any, **asked: Any) -> Any:
                a, b = self._unwrapped(x), self._unwrapped(y)
                one, other = (a, b) if type(a) is self.tensor else (b, a)
                if not asked and type(one) is self.tensor and (name := one.dtype.name) in NUMBERS:
                    op, data = real if name in FLOATS else whole, one.handle.data
                    if type(other) is not self.tensor:
                        if (constant := self._constant(other, name)) is not None:
                            return self._like(op(data, constant) if one is a else op(constant, data), one)
                    elif other.dtype.name == name and (shape := self._together(one, other)) is not None:
                        return self.made(op(data, other.handle.data), one.dtype, shape)
                return slow(x, y, **asked)

            return operator

        return short

    # Memory

    def loaded(self, slow: Operator) -> Operator:
        load = self.given._interpreter.load

        def operator(pointer: Any, mask: Any = None, other: Any = None, **asked: Any) -> Any:
            if type(pointer) is self.tensor and pointer.dtype.is_ptr():
                name, data = pointer.dtype.element_ty.name, pointer.handle.data
                if name in NUMBERS and (mask is not None or other is None):
                    rest = self._filling(0 if other is None else self._unwrapped(other), name, data.shape)
                    meant = self._meant(mask, pointer)
                    if rest is not None and meant is not None:
                        found = load(data, meant, rest, np.dtype(NUMBERS[name]))
                        return self.made(found, self._kinds[name], dims(pointer))
            return slow(pointer, mask, other, **asked)

        return operator

    def stored(self, slow: Operator) -> Operator:
        store = self.given._interpreter.store

        def operator(pointer: Any, value: Any, mask: Any = None, **asked: Any) -> Any:
            if type(pointer) is self.tensor and pointer.dtype.is_ptr() and not pointer.dtype.is_const():
                name, data = pointer.dtype.element_ty.name, pointer.handle.data
                written = self._written(self._unwrapped(value), name, pointer) if name in NUMBERS else None
                meant = self._meant(mask, pointer)
                if written is not None and meant is not None:
                    store(data, written, meant)
                    return None
            return slow(pointer, value, mask, **asked)

        return operator

    def _written(self, value: Any, name: str, pointer: Any) -> Array | None:
        shape: Shape = pointer.handle.data.shape
        if type(value) is not self.tensor:
            return self._filling(value, name, shape)
        its = value.dtype.name
        if its not in ALL or (its == "fp16" and name not in FLOATS) or self._together(pointer, value) != dims(pointer):
            return None
        data: Array = value.handle.data.astype(NUMBERS[name], copy=False)
        return data if data.shape == shape else np.broadcast_to(data, shape)

    # Shapes and products

    def counted(self, slow: Operator) -> Operator:
        def operator(start: Any, end: Any) -> Any:
            first, last = self._unwrapped(start), self._unwrapped(end)
            key = "range", first, last
            if key not in self._filled:
                self._filled[key] = slow(start, end).handle.data
            return self.made(self._filled[key], self._kinds["int32"], (last - first,))

        return operator

    def full(self, slow: Operator) -> Operator:
        def operator(shape: Any, value: Any, dtype: Any) -> Any:
            kind, number = self._unwrapped(dtype), self._unwrapped(value)
            if type(shape) in (list, tuple) and kind.name in NUMBERS and type(number) in (int, float):
                sizes = tuple(map(self._unwrapped, shape))
                constant = self._constant(number, kind.name)
                if constant is not None:
                    data = np.full(sizes, constant, constant.dtype) if sizes else constant
                    return self.made(data, self._kinds[kind.name], sizes)
            return slow(shape, value, dtype)

        return operator

    def zeros(self, slow: Operator) -> Operator:
        full = self.full(lambda shape, value, dtype: slow(shape, dtype))
        return lambda shape, dtype: full(shape, 0, dtype)

    def reshaped(self, slow: Operator) -> Operator:
        def operator(one: Any, *shape: Any, **asked: Any) -> Any:
            if len(shape) == 1 and type(shape[0]) is list and one.shape and not asked:
                sizes = tuple(map(self._unwrapped, shape[0]))
                if sizes and math.prod(sizes) == one.handle.data.size:
                    return self.made(one.handle.data.reshape(sizes), one.dtype, sizes)
            return slow(one, *shape, **asked)

        return operator

    def product(self, slow: Operator) -> Operator:
        def operator(one: Any, other: Any, acc: Any = None, **asked: Any) -> Any:
            a, b = one.handle.data, other.handle.data
            if not asked and one.dtype.name == other.dtype.name in ("fp16", "fp32") and a.ndim == b.ndim == 2:
                shape = a.shape[0], b.shape[1]
                plain = acc is None or (acc.dtype.name == "fp32" and acc.handle.data.shape == shape)
                if a.shape[1] == b.shape[0] and plain:
                    before = self._full(0.0, np.float32, shape) if acc is None else acc.handle.data
                    data = np.matmul(a, b, dtype=np.float32) + before
                    return self.made(data, self._kinds["fp32"], shape)
            return slow(one, other, acc, **asked)

        return operator

    # Reductions

    def reduced(self, op: Operator, places: dict[str, Operator]) -> Callable[[Operator], Operator]:
        """Over an axis, of numbers that are not widened for it. `places`: where the first of equals stands."""

        def short(slow: Operator) -> Operator:
            def operator(one: Any, axis: Any = None, *more: Any, **asked: Any) -> Any:
                along, data = self._unwrapped(axis), one.handle.data
                keeps = asked.get("keep_dims", False)
                located = asked.get("return_indices", False)
                if (
                    one.dtype.name in SUMMED
                    and (along is None or (type(along) is int and -data.ndim <= along < data.ndim))
                    and not more
                    and asked.keys() <= places.keys() | {"keep_dims"}
                    and type(keeps) is type(located) is bool
                    and one.shape
                ):
                    values = op(data, axis=along, keepdims=keeps)
                    if not located:
                        return self._reduced(values, one.dtype.name)
                    if along is not None and (data.dtype.kind != "f" or not np.isnan(data).any()):
                        where = places["return_indices"](data, axis=along, keepdims=keeps)
                        return self._reduced(values, one.dtype.name), self._reduced(where, "int32")
                return slow(one, axis, *more, **asked)

            return operator

        return short

    def _reduced(self, found: Any, name: str) -> Any:
        data = np.asarray(found).astype(NUMBERS[name], copy=False)
        shape: Shape = data.shape
        return self.made(data if shape else data.reshape(1), self._kinds[name], shape)

    def best(self, slow: Operator) -> Operator:
        """The largest or the smallest, and where the first of equals stands. `nanmax` would look for what is no number
        once more."""
        values = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}
        places = {np.nanargmax: np.argmax, np.nanargmin: np.argmin}

        def operator(ops: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
            data = (input[0] if type(input) is tuple else input).handle.data
            if idx_reduce_op in places and (data.dtype.kind != "f" or not np.isnan(data).any()):
                idx_reduce_op = places[idx_reduce_op]
            return slow(ops, input, values.get(val_reduce_op, val_reduce_op), idx_reduce_op)

        return operator


def install(given: Any, shape_of: Callable[[Shape], tuple[Any, Any]]) -> Operators:
    import triton.language as tl

    known, tensor = Operators(given, shape_of), tl.core.tensor
    known.replace(tensor, "__add__", known.moved(back=False))
    known.replace(tensor, "__sub__", known.moved(back=True))
    for name, op, kinds, mixed in ARITHMETIC:
        known.replace(tensor, f"__{name}__", known.binary(op, kinds, mixed=mixed))
        known.replace(tensor, f"__r{name}__", known.binary(op, kinds, mixed=mixed, turned=True))
    for name, op in COMPARISONS.items():
        known.replace(tensor, f"__{name}__", known.binary(op, NUMBERS, result=tl.int1))
    known.replace(tensor, "__lshift__", known.shifted(np.left_shift))
    known.replace(tensor, "__rshift__", known.shifted(np.right_shift))
    known.replace(tensor, "__getitem__", known.indexed)
    known.replace(tensor, "to", known.cast)
    for name, short in (
        *(("where", known.selected), ("load", known.loaded), ("store", known.stored)),
        *(("arange", known.counted), ("full", known.full), ("zeros", known.zeros), ("reshape", known.reshaped)),
        ("dot", known.product),
        ("maximum", known.extreme(np.maximum, np.fmax)),
        ("minimum", known.extreme(np.minimum, np.fmin)),
        ("sum", known.reduced(np.add.reduce, {})),
        ("max", known.reduced(np.fmax.reduce, {"return_indices": np.argmax})),
        ("min", known.reduced(np.fmin.reduce, {"return_indices": np.argmin})),
    ):
        known.replace(tl, name, short)  # kernels name them so; the language itself goes on as it did
    known.replace(given.ReduceOps, "min_max", known.best)
    return known
