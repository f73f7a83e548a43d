"""Compiles kernels into Triton's cache on disk, in a process of its own that needs no GPU and does not import PyTorch.

`compiling.py` starts several. The first line of stdin tells the GPU, and each line after it a kernel, which is answered
when it is stored or could not be compiled. With the end of stdin it ends: it does not outlive who started it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import cache, driver, jit

DONE = b"done\n"


def settle_keys() -> None:
    """Whoever asks finds a kernel under the same key.

    Triton 3.6 adds the constants of what a function calls to its key only if that was called by another before: keys
    depend on the order in which threads ask for them. Here as in later versions, what is called comes first.
    """
    with suppress(AttributeError):
        add = jit.DependenciesFinder._update_hash

        def called_first(self: Any, called: Any) -> None:
            _ = called.cache_key
            add(self, called)

        jit.DependenciesFinder._update_hash = called_first


settle_keys()


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what compilers print is no answer
    told = json.loads(sys.stdin.readline())
    target = GPUTarget(**told["target"])
    driver.set_active(SimpleNamespace(get_current_device=lambda: 0, get_current_target=lambda: target))
    if [triton.__file__, triton.__version__] == told["triton"] and hasattr(cache, "triton_key"):
        cache.triton_key = lambda: told["key"]  # half a second of hashing the same files again
    for line in sys.stdin:
        with suppress(Exception):  # who asked compiles it again, and tells
            compile_kernel(*json.loads(line))
        os.write(answers, DONE)


def compile_kernel(module: str, name: str, what: str) -> None:
    for constant in json.loads(what)["constant_vals"]:
        if isinstance(constant, dict) and "jit_function" in constant:  # is known by name once it is imported
            import_module(constant["jit_function"].partition(":")[0])
    made = attrgetter(name)(import_module(module)).preload(what)
    from triton.backends.nvidia.driver import CudaLauncher

    with suppress(Exception):
        CudaLauncher(made.src, made.metadata)  # stores what launches it, too, where Triton has the C compiler make that
