"""Triton's interpreter without the work that changes nothing: nearly all of its time.

It computes for every sum and product of integers whether they overflow, and never looks at the answer unless it debugs.
It makes `triton.language` its own again for every launch and every function that a kernel calls. It works out again and
again what a type is called and what numpy calls it. And what a sum of two blocks costs it is little beside finding out
that they may be added: `interpreter_operators` has the short way where there is nothing to find out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from interpreter_operators import Operators, install

NEEDED = {
    *("GridExecutor", "InterpretedFunction", "InterpreterError", "ReduceOps", "TensorHandle", "_LangPatchScope"),
    *("_get_np_dtype", "_implicit_cvt", "_interpreter", "_patch_lang", "_validate_np_data_size"),
    *("interpreter_builder", "interpreter_semantic"),
}


@functools.cache
def hasten() -> Operators | None:
    """Once; None: this version is used as it comes."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return None
    if not vars(interpreter).keys() >= NEEDED:
        return None
    given: Any = interpreter
    if not given.interpreter_builder.options.debug:
        given.interpreter_builder.options = replace(given.interpreter_builder.options, sanitize_overflow=False)
    _speak_for_good(given)
    shape_of = _know_types(given)
    _launch_at_once(given)
    return install(given, shape_of)


def _speak_for_good(given: Any) -> None:
    """`triton.language` is the interpreter's, once: it is put back by nobody."""
    import triton.language as tl

    def of_both() -> None: ...

    given._patch_lang(FunctionType(of_both.__code__, {"tl": tl, "core": tl.core}))
    untouched = given._LangPatchScope()
    given._patch_lang = lambda function: untouched


def _know_types(given: Any) -> Callable[[tuple[int, ...]], tuple[Any, Any]]:
    """What follows from a type's name, and from a shape, is worked out once. Returns what follows from a shape."""
    import triton.language as tl

    dtype, block_type, constexpr = tl.core.dtype, tl.core.block_type, tl.core.constexpr
    for name, member in list(vars(dtype).items()):
        if name.startswith("is_") and isinstance(member, FunctionType):  # not those that are never or always so
            setattr(dtype, name, _by_name(member))
    dtype.to_ir = _by_name(dtype.to_ir, 1)
    numpy_s = _by_name(given._get_np_dtype)
    given._get_np_dtype = lambda kind: numpy_s(kind.element_ty if type(kind) is block_type else kind)
    width = _by_name(lambda kind: max(1, kind.primitive_bitwidth // 8))
    pointer_type = tl.core.pointer_type
    given._validate_np_data_size = lambda data, kind: type(kind) is pointer_type or data.itemsize <= width(kind)

    sizes: dict[tuple[int, ...], int] = {}
    validate = tl.core.validate_block_shape

    def of_block(self: Any, element_ty: Any, shape: Any) -> None:
        known = tuple([each.value if type(each) is constexpr else each for each in shape])
        if not known:
            raise TypeError("0d block_type is forbidden")
        if known not in sizes:
            sizes[known] = validate(known)
        self.element_ty, self.shape, self.numel = element_ty, known, sizes[known]

    block_type.__init__ = of_block
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")

    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def of_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shape_of(type.shape if type.is_block() else ())

    def shape_of(shape: tuple[int, ...]) -> tuple[Any, Any]:
        """How many numbers, and the shape: one object for each, so that equal ones are the same."""
        if shape not in shapes:
            shapes[shape] = constexpr(sizes.get(shape, 1)), tuple([constexpr(each) for each in shape])
        return shapes[shape]

    tl.core.tensor.__init__ = of_tensor
    return shape_of


def _by_name(function: Callable[..., Any], more: int = 0) -> Callable[..., Any]:
    """A function of a type that depends on its name alone, and on as many `more` arguments that are always the same."""
    known: dict[str, Any] = {}

    @functools.wraps(function)
    def answer(kind: Any, *rest: Any) -> Any:
        name = kind.name
        if name not in known:
            known[name] = function(kind, *rest)
        return known[name]

    return answer


def _launch_at_once(given: Any) -> None:
    """Arguments are where they should be: nothing is copied to the CPU and back; and a kernel's signature stays what it
    is."""
    import triton
    import triton.language as tl

    signatures: dict[Any, tuple[Any, dict[str, Any], frozenset[str]]] = {}
    pointers: dict[torch.dtype, Any] = {}
    convert = given._implicit_cvt

    def signature(kernel: Any) -> tuple[Any, dict[str, Any], frozenset[str]]:
        """The function, its arguments with their defaults, and which are constants."""
        if kernel not in signatures:
            executor = given.GridExecutor(kernel.rewrite(), kernel.arg_names, (1,))
            parameters = inspect.signature(kernel.fn).parameters
            defaults = {name: each.default for name, each in parameters.items()}
            signatures[kernel] = executor.fn, defaults, frozenset(executor.constexprs)
        return signatures[kernel]

    def converted(argument: Any) -> Any:
        if type(argument) is not torch.Tensor:
            return tuple(map(converted, argument)) if type(argument) is tuple else convert(argument)
        if argument.dtype not in pointers:
            pointers[argument.dtype] = convert(argument).type
        kind, data = pointers[argument.dtype], np.array([argument.data_ptr()], dtype=np.uint64)
        return tl.core.tensor(given.TensorHandle(data, kind), kind)

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            return
        function, defaults, constants = signature(self)
        asked = dict(zip(defaults, args, strict=False)) | {k: v for k, v in kwargs.items() if k in defaults}
        given_all = {**defaults, **asked}
        lacking = [name for name, value in given_all.items() if value is inspect.Parameter.empty]
        if lacking or len(args) > len(defaults):
            raise TypeError(f"{self.fn.__name__}: {len(args)} arguments, and none for {lacking}")
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        said = {name: value if name in constants else converted(value) for name, value in given_all.items()}
        sizes = grid(said) if callable(grid) else grid
        sizes = (*sizes, 1, 1)[:3]
        builder = given.interpreter_builder
        builder.set_grid_dim(*sizes)
        try:
            for x in range(sizes[0]):
                for y in range(sizes[1]):
                    for z in range(sizes[2]):
                        builder.grid_idx = (x, y, z)
                        function(**said)
        except Exception as error:
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise given.InterpreterError(repr(error)) from error

    given.InterpretedFunction.run = run
