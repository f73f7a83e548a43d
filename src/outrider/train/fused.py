"""Elementwise work in as few passes over memory as possible: on a GPU, compiled; elsewhere as written."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose first argument is a tensor, compiled for GPUs once for all shapes. Unfused, training a small
    head spends four fifths of its time writing and reading intermediate results."""
    compiled: list[Callable[P, R]] = []  # not before it is needed: the compiler alone takes seconds to import

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not (isinstance(args[0], Tensor) and args[0].is_cuda):
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        return compiled[0](*args, **kwargs)

    return call


def fuse_modules(module: nn.Module, kinds: tuple[type[nn.Module], ...], device: torch.device) -> None:
    """The same for parts of a module."""
    for part in module.modules():
        if device.type == "cuda" and isinstance(part, kinds):
            part.compile(dynamic=True)
