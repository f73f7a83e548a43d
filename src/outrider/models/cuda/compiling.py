"""Kernels compiled side by side: one after the other they take half a minute before the first request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

from outrider.core.step import Recording
from outrider.models.cuda.launches import shallow

_MOST = 16
"""Compilers at a time."""


class _Nothing:
    """Stands for a kernel that is not there yet: launching it does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None: ...
    def run(self, *_: object) -> None: ...


def compile_kernels(recordings: Iterable[Recording]) -> Iterator[None]:
    """Compile what these launch, or fetch it from Triton's cache, and load it; yields after each kernel.

    Triton asks before it compiles anything, and does not launch what it was told not to: so all that is missing is
    known first. What cannot be compiled here is told where it is needed, when it is compiled again.
    """
    missing: dict[str, Any] = {}
    caches: list[tuple[dict[str, Any], str]] = []

    def note(*, fn: Any, key: str, compile: dict[str, Any], **_: object) -> bool:
        missing[compile["specialization_data"]] = fn.jit_function
        cache = fn.jit_function.device_caches[driver.active.get_current_device()][0]
        cache[key] = _Nothing()  # else every launch of it would ask again, which takes longer than a launch
        caches.append((cache, key))
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        with shallow():
            for recording in recordings:
                recording.launch()
    finally:
        knobs.runtime.jit_cache_hook = before
        for cache, key in caches:
            cache.pop(key, None)
    if not missing:
        return
    device = driver.active.get_current_device()
    workers = min(_MOST, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        for _ in as_completed([pool.submit(_load, kernel, what) for what, kernel in missing.items()]):
            yield


def _load(kernel: Any, what: str) -> None:
    """Ready to be launched: what launches it is compiled, too."""
    assert kernel.preload(what).run is not None
