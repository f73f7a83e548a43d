"""The short ways of Triton's interpreter (tests/support/interpreter.py) are its own: the same numbers and types, of
whatever they are given."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import interpreter
import triton
import triton.language as tl
from interpreter_operators import Operators
from interpreter_tensors import ALL, FLOATS, NUMBERS
from simulated import only_interpreted

pytestmark = only_interpreted


@pytest.fixture(scope="module")
def known() -> Operators:
    found = interpreter.hasten()
    if found is None:
        pytest.skip("this version of Triton is used as it comes")
    return found


KINDS: dict[str, Any] = {name: getattr(tl, {"fp": "float"}.get(name[:2], name[:2]) + name[2:]) for name in ALL}
SHAPES = [(), (4,), (1,), (4, 1), (1, 8), (4, 8), (2, 4)]
PLAIN: list[Any] = [0, 1, 3, -2, 300, 2**31, -(2**40), 0.0, -0.0, 2.5, 1e300, float("inf"), float("nan"), True, None]


def tensor(known: Operators, name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Small numbers, so that some are equal; of floats, one is none, and one infinite."""
    rng = np.random.default_rng([seed, len(shape), *shape])
    data = rng.integers(0 if name.startswith(("u", "int1")) else -3, 2 if name == "int1" else 4, shape or (1,))
    data = data.astype(ALL[name])
    if name in FLOATS and data.size > 3:
        data.flat[:3] = np.nan, -np.inf, -0.0
    return known.made(data, KINDS[name], shape)


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Type, shape and bits; or what went wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = function(*args, **kwargs)
        except Exception as error:
            return type(error)
    if not isinstance(found, tl.tensor):
        return found
    data = found.handle.data
    return str(found.type), [each.value for each in found.shape], str(data.dtype), data.shape, data.tobytes()


def same(known: Operators, name: str, *args: Any, **kwargs: Any) -> None:
    slow, short = known.replaced[name]
    expected, got = outcome(slow, *args, **kwargs), outcome(short, *args, **kwargs)
    assert got == expected, (name, [getattr(each, "type", each) for each in args])


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", [*BINARY, *(f"r{name}" for name in BINARY[:9]), "lshift", "rshift"])
def test_operators(known: Operators, name: str) -> None:
    """Of all types, of shapes that fit and that do not, and with Python's numbers."""
    for one, other in itertools.product(ALL, ALL):
        same(known, f"tensor.__{name}__", tensor(known, one, (4, 8)), tensor(known, other, (4, 8), seed=1))
    for shape, its in itertools.product(SHAPES, SHAPES):
        for kinds in (("int32", "int32"), ("fp32", "fp32"), ("int64", "int32")):
            a, b = tensor(known, kinds[0], shape), tensor(known, kinds[1], its, seed=1)
            same(known, f"tensor.__{name}__", a, b)
    for kind, number in itertools.product(ALL, PLAIN):
        for constant in (number, tl.constexpr(number)):
            same(known, f"tensor.__{name}__", tensor(known, kind, (4,)), constant)


def pointers(known: Operators, memory: torch.Tensor, shape: tuple[int, ...]) -> Any:
    kind = tl.pointer_type(KINDS[{torch.float16: "fp16", torch.int32: "int32", torch.float64: "fp64"}[memory.dtype]])
    count = int(np.prod(shape, dtype=int))
    data = memory.data_ptr() + memory.element_size() * np.arange(count, dtype=np.uint64)
    return known.made(data.astype(np.uint64).reshape(shape or (1,)), kind, shape)


def test_pointers_are_moved(known: Operators) -> None:
    memory = torch.zeros(64, dtype=torch.float16)
    for name in ("tensor.__add__", "tensor.__sub__"):
        for one, other in itertools.product(SHAPES, SHAPES):
            for kind in ("int32", "int64", "uint32", "fp32"):
                same(known, name, pointers(known, memory, one), tensor(known, kind, other))
        for number in PLAIN:
            same(known, name, pointers(known, memory, (4,)), number)


def test_casts_and_views(known: Operators) -> None:
    for one, other, bitcast in itertools.product(ALL, ALL, (False, True)):
        given = tensor(known, one, (4, 8))
        if one in FLOATS and other not in FLOATS:  # what becomes of an infinity is nobody's promise
            given.handle.data = np.nan_to_num(given.handle.data, posinf=5, neginf=5)
        same(known, "tensor.to", given, KINDS[other], bitcast=bitcast)
    for shape in SHAPES:
        for slices in ((slice(None), None), (None, slice(None)), (slice(None), None, slice(None)), (None,), (0,)):
            same(known, "tensor.__getitem__", tensor(known, "int32", shape), slices)


@pytest.mark.parametrize("name", ["where", "maximum", "minimum"])
def test_choices(known: Operators, name: str) -> None:
    def compare(condition: Any, x: Any, y: Any) -> None:
        given = (condition, x, y) if name == "where" else (x, y)
        same(known, f"triton.language.{name}", *given)

    everywhere = tensor(known, "int1", (4, 8), seed=3)
    for one, other in itertools.product(ALL, ALL):
        compare(everywhere, tensor(known, one, (4, 8)), tensor(known, other, (4, 8), seed=1))
    for condition, shape, its in itertools.product(SHAPES, SHAPES, SHAPES):
        where = tensor(known, "int1", condition, seed=3)
        compare(where, tensor(known, "fp32", shape), tensor(known, "fp32", its, seed=1))
    for kind, number in itertools.product(ALL, PLAIN):
        compare(everywhere, tensor(known, kind, (4, 8)), number)
        compare(everywhere, number, tensor(known, kind, (4, 8)))


def masks(known: Operators) -> list[Any]:
    return [
        *(None, True, False),
        *(tensor(known, "int1", shape, seed=2) for shape in SHAPES),
        tensor(known, "int32", (4, 8)),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_memory(known: Operators, dtype: torch.dtype) -> None:
    """Loads and stores of everything that fits, under every mask; what is not meant stays."""
    memory = torch.arange(64).to(dtype)
    for shape, mask in itertools.product(SHAPES, masks(known)):
        for other in (None, 0, -1, 0.0, float("-inf"), 0.1, 2**40, tensor(known, "fp32", ())):
            if mask is not None or other is not None:
                same(known, "triton.language.load", pointers(known, memory, shape), mask, other)
        same(known, "triton.language.load", pointers(known, memory, shape))
    values = [*(tensor(known, name, (4, 8)) for name in NUMBERS), *(tensor(known, "fp32", shape) for shape in SHAPES)]
    for mask, value in itertools.product(masks(known), [*values, 0, 7, -1, 0.0, 0.1, True]):
        for shape in ((4, 8), ()):
            found = list[Any]()
            for store in known.replaced["triton.language.store"]:
                memory = torch.arange(64).to(dtype)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        store(pointers(known, memory, shape), value, mask)
                    except Exception as error:
                        found.append(type(error))
                    else:
                        found.append(memory.view(torch.int8).tolist())
            assert found[0] == found[1], (shape, value, mask)


def test_shapes_and_products(known: Operators) -> None:
    for shape, to in itertools.product(SHAPES, ([4], [8, 4], [2, 2, 8], [3], [1])):
        same(known, "triton.language.reshape", tensor(known, "fp32", shape), to)
    for kind, value, shape in itertools.product(ALL, PLAIN, ([], [4], [2, tl.constexpr(8)], [3])):
        same(known, "triton.language.full", shape, value, KINDS[kind])
        if shape != [3]:  # an error, by another name
            same(known, "triton.language.zeros", shape, KINDS[kind])
    for start, end in ((0, 8), (4, 8), (0, tl.constexpr(2)), (0, 3), (4, 0)):
        same(known, "triton.language.arange", start, end)
    for one, other in itertools.product(("fp16", "fp32", "fp64", "int32"), repeat=2):
        for before in (None, tensor(known, "fp32", (4, 4)), tensor(known, "fp32", (4, 8))):
            a, b = tensor(known, one, (4, 8)), tensor(known, other, (8, 4))
            same(known, "triton.language.dot", a, b, before)
    same(known, "triton.language.dot", tensor(known, "fp32", (4, 8)), tensor(known, "fp32", (4, 8)))


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions(known: Operators, name: str) -> None:
    """Along every axis; numbers that are none, and ones that are widened first."""
    for kind, shape, axis in itertools.product(ALL, SHAPES, (None, 0, 1, 2, -1, tl.constexpr(0))):
        for keeps in (False, True):
            same(known, f"triton.language.{name}", tensor(known, kind, shape), axis, keep_dims=keeps)
            same(known, f"triton.language.{name}", tensor(known, kind, shape), axis=axis, keep_dims=keeps)
    if name == "sum":
        return
    slow, short = known.replaced[f"triton.language.{name}"]
    for kind, shape, axis in itertools.product(NUMBERS, [(4,), (4, 8)], (0, 1)):
        for clean in (False, True):
            given = tensor(known, kind, shape)
            if clean and kind in FLOATS:
                given.handle.data = np.nan_to_num(given.handle.data, neginf=-9)
            found = [
                outcome(lambda f=f, i=i, given=given, axis=axis: f(given, axis=axis, return_indices=True)[i])
                for f in (slow, short)
                for i in (0, 1)
            ]
            assert found[:2] == found[2:], (kind, shape, axis)


@triton.jit  # type: ignore[untyped-decorator]
def largest_kernel(x_ptr, y_ptr, which_ptr, pair, N: tl.constexpr, LARGEST: tl.constexpr = True):  # type: ignore[no-untyped-def]
    row, (offset, scale) = tl.program_id(0), pair
    x = tl.load(x_ptr + row * N + tl.arange(0, N)) * scale + offset
    if LARGEST:
        best, which = tl.max(x, axis=0, return_indices=True)
    else:
        best, which = tl.min(x, axis=0, return_indices=True)
    tl.store(y_ptr + row, best)
    tl.store(which_ptr + row, which)


@pytest.mark.parametrize("largest", [True, False])
def test_launches_and_reductions(largest: bool) -> None:
    """Positional and named arguments, tuples and defaults; the first of equals; what is no number does not count."""
    x = torch.tensor([[1.0, 5.0, 5.0, -2.0, -2.0, 0.0, 1.0, 2.0], [torch.nan, 3.0, 4.0, 3.0, 4.0, 3.0, 3.0, 3.0]])
    y, which = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    named = {} if largest else {"LARGEST": False}
    largest_kernel[(2,)](x, y, which, (1, 2), N=8, num_warps=4, **named)
    expected = ([11.0, 9.0], [1, 2]) if largest else ([-3.0, 7.0], [3, 1])
    assert (y.tolist(), which.tolist()) == expected
    with pytest.raises(TypeError, match="N"):
        largest_kernel[(2,)](x, y, which, (1, 2))
