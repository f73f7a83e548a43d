"""Kernels compiled side by side: one after the other they take half a minute before the first request.

Threads fetch what Triton's cache on disk holds. If much is missing, a process for each thread puts it there first,
since who compiles holds Python's lock most of the time. A process that fails, dies, hangs or talks nonsense costs no
more than time: its thread then compiles.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread, Timer
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime import driver

from outrider.core.step import Recording
from outrider.models.cuda.compile_worker import DONE
from outrider.models.cuda.launches import is_shallow, shallow

_MOST = 16
"""Compilers at a time."""

_CORES = 3
"""With fewer, processes gain nothing."""

_MANY = 8
"""Missing kernels that are worth starting processes, which takes them a second."""

_PATIENCE = 60.0
"""Seconds for a kernel, after which its process hangs."""

_LOOKING = ContextVar("looking", default=False)
"""Whether this thread only looks what the cache holds: others compile and launch meanwhile, another model's maybe."""

_WORKER = "from outrider.models.cuda.compile_worker import main; main()"


class _Nothing:
    """Stands for a kernel that is not there yet: launching it does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None: ...
    def run(self, *_: object) -> None: ...


class _MissingError(Exception):
    """Not in the cache on disk."""


class _Worker:
    """A process that compiles, for one thread at a time."""

    def __init__(self, told: dict[str, Any]) -> None:
        path = [str(place) for place in sys.path]  # so that it finds what we found
        start = f"import sys; sys.path[:] = {path!a}; {_WORKER}"
        self._process = Popen([sys.executable, "-c", start], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        self._told = _line(told)

    def compile(self, kernel: Any, what: str) -> None:
        """Returns when it is stored, unless something went wrong."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if self._process.poll() is not None:
            return
        late = Timer(_PATIENCE, self._process.kill)
        late.start()
        try:
            stdin.write(self._told + _line([kernel.fn.__module__, kernel.fn.__qualname__, what]))
            stdin.flush()
            self._told, answer = b"", stdout.readline()
        except OSError:
            answer = b""
        finally:
            late.cancel()
        if answer != DONE:
            self._process.kill()

    def end(self) -> None:
        self._process.kill()  # it has stored all that it was asked for
        with suppress(OSError):
            self._process.communicate()


def _line(told: object) -> bytes:
    return json.dumps(told).encode() + b"\n"


def compile_kernels(recordings: Iterable[Recording]) -> Iterator[None]:
    """Compile what these launch, or fetch it from Triton's cache, and load it; yields after each kernel.

    What cannot be compiled here is told where it is needed, when it is compiled again.
    """
    kernels = _unloaded(recordings)
    if not kernels:
        return
    device, cores = driver.active.get_current_device(), os.cpu_count() or 1
    pool = ThreadPoolExecutor(min(_MOST, cores), initializer=torch.cuda.set_device, initargs=(device,))
    workers: list[_Worker] = []
    try:
        if cores >= _CORES:
            with _only_stored(kernels.values()):
                looked = {pool.submit(_look, kernel, what): what for what, kernel in kernels.items()}
                stored, missing = list[str](), 0
                for found in as_completed(looked):
                    if not isinstance(found.exception(), _MissingError):
                        stored.append(looked[found])
                    elif (missing := missing + 1) == _MANY:
                        workers = _started(min(_MOST, cores, len(kernels)))  # while others are still looked for
            for what in stored:
                del kernels[what]
                yield
        free = SimpleQueue[_Worker]()
        for worker in workers:
            free.put(worker)
        longest = sorted(kernels.items(), key=lambda kernel: -len(kernel[1].src))  # compile for longest, or nearly
        for _ in as_completed([pool.submit(_compile, *kernel, free if workers else None) for kernel in longest]):
            yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()
        pool.shutdown()


def _unloaded(recordings: Iterable[Recording]) -> dict[str, Any]:
    """Triton asks before it compiles anything, and does not launch what it was told not to."""
    missing: dict[str, Any] = {}
    caches: list[tuple[dict[str, Any], str]] = []
    hashing = Thread(target=_key)

    def note(*, fn: Any, key: str, compile: dict[str, Any], **others: Any) -> bool:
        if not is_shallow():  # another thread, which is to launch what it launches
            return bool(before and before(fn=fn, key=key, compile=compile, **others))
        if not missing:
            hashing.start()
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
        if missing:
            hashing.join()
    return missing


def _key() -> str:
    """Triton's own part of every key, found once: half a second, in which it reads all of itself."""
    return str(getattr(triton.runtime.cache, "triton_key", str)())


@contextmanager
def _only_stored(kernels: Iterable[Any]) -> Iterator[None]:
    """Triton comes to the source of a kernel when it has not found it in its cache: who is `_LOOKING` then gives up."""

    def looking(source: Any) -> Any:
        def make_ir(self: Any, *args: Any, **named: Any) -> Any:
            if _LOOKING.get():
                raise _MissingError
            return source.make_ir(self, *args, **named)

        return type(source.__name__, (source,), {"make_ir": make_ir})

    unique = {id(kernel): kernel for kernel in kernels}.values()
    kept = [(kernel, kernel.ASTSource) for kernel in unique if hasattr(kernel, "ASTSource")]
    for kernel, source in kept:
        kernel.ASTSource = looking(source)
    try:
        yield
    finally:
        for kernel, source in kept:
            kernel.ASTSource = source


def _started(count: int) -> list[_Worker]:
    """None if they cannot be."""
    if not sys.executable or getattr(sys, "frozen", False):  # it would start something else
        return []
    workers: list[_Worker] = []
    with suppress(AttributeError, TypeError, OSError):
        told = {
            "target": asdict(driver.active.get_current_target()),
            "triton": [triton.__file__, triton.__version__],
            "key": _key(),
        }
        for _ in range(count):
            workers.append(_Worker(told))
    return workers


def _compile(what: str, kernel: Any, free: SimpleQueue[_Worker] | None) -> None:
    if free is not None:
        worker = free.get()
        try:
            worker.compile(kernel, what)
        finally:
            free.put(worker)
    _load(kernel, what)


def _look(kernel: Any, what: str) -> None:
    """As `_load`, of what is stored; `_MissingError` where it is not."""
    before = _LOOKING.set(True)
    try:
        _load(kernel, what)
    finally:
        _LOOKING.reset(before)


def _load(kernel: Any, what: str) -> None:
    """Ready to be launched: what launches it is compiled, too."""
    _ = kernel.preload(what).run  # not in an assertion: Python may be told to leave those out
