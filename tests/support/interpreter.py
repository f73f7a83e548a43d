"""Triton's interpreter without the work that changes nothing: half of its time.

It computes for every sum and product of integers whether they overflow, and never looks at the answer unless it debugs.
And it makes `triton.language` its own again for every function that a kernel calls, though the launch did so already.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from types import FunctionType
from typing import Any


def hasten() -> None:
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    if not {"_patch_lang", "_LangPatchScope", "GridExecutor", "interpreter_builder"} <= vars(interpreter).keys():
        return  # another version: as it comes
    given: Any = interpreter
    if not given.interpreter_builder.options.debug:
        given.interpreter_builder.options = replace(given.interpreter_builder.options, sanitize_overflow=False)
    patch, launch = given._patch_lang, given.GridExecutor.__call__
    patched: set[int] = set()
    """Modules whose functions were called in this launch: they name `triton.language` in different ways."""

    def patch_once(function: FunctionType) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return given._LangPatchScope()
        patched.add(module)
        return patch(function)

    @functools.wraps(launch)
    def launch_anew(executor: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()  # what the launch before had patched was put back at its end
        return launch(executor, *args, **kwargs)

    given._patch_lang, given.GridExecutor.__call__ = patch_once, launch_anew
