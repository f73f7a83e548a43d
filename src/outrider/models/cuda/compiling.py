"""Kernels compiled side by side: one after the other they take half a minute before the first request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from triton import knobs

from outrider.core.step import Recording
from outrider.models.cuda.launches import shallow

_MOST = 16
"""Compilers at a time."""


def compile_kernels(recordings: Iterable[Recording]) -> Iterator[None]:
    """Compile what these launch, or fetch it from Triton's cache; yields after each kernel.

    Triton asks before it compiles anything, and does not launch what it was told not to: so all that is missing is
    known first. What cannot be compiled here is told where it is needed, when it is compiled again.
    """
    missing: dict[str, Any] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        missing[compile["specialization_data"]] = fn.jit_function
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        with shallow():
            for recording in recordings:
                recording.launch()
    finally:
        knobs.runtime.jit_cache_hook = before
    with ThreadPoolExecutor(min(_MOST, os.cpu_count() or 1)) as pool:
        for _ in as_completed([pool.submit(kernel.preload, what) for what, kernel in missing.items()]):
            yield
