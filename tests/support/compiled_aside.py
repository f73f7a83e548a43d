"""Has kernels compiled for a GPU that is not there, by processes that do so and by some that do not.

    python compiled_aside.py FOLDER

In a process of its own, since Triton decides when it is imported whether it compiles or interprets. One JSON line for
each kind of process: what was launched, loaded, and compiled by us instead of them, and how many of them there were.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
from compiled_for import NOWHERE, Absent, chains, replace_of, weights
from triton import knobs
from triton.runtime import driver

from outrider.bench.shapes import SHAPES
from outrider.models.cuda import compiling, network
from outrider.models.cuda.device import GPU
from outrider.models.cuda.lanes import Lanes
from outrider.models.cuda.network import Network

SHARED = 232_448
ASIDE = "from outrider.models.cuda import compile_worker as aside; "
WORKERS = {
    "die": "raise SystemExit(3)",
    "talk nonsense": "print('warning: nonsense', flush=True); input()",
    "do not listen": "import os, time; os.close(0); time.sleep(600)",
    "hang": "import time; time.sleep(600)",
    "are killed": ASIDE + "import os; aside.compile_kernel = lambda *_: os.kill(os.getpid(), 9); aside.main()",
    "fail": ASIDE + "aside.compile_kernel = None; aside.main()",
}


class Loaded(Absent):
    """Takes all that it is given to load."""

    def __init__(self) -> None:
        super().__init__(90)
        self.launcher_cls = lambda *_: object()
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: {"max_shared_mem": SHARED},
            load_binary=lambda *_: (1, 1, 0, 0, 1024),
            unload_module=lambda _: None,
        )


def product() -> None:
    """By groups of warps, with the copy engine: in Gluon."""
    a = replace(SHAPES["8b"], layers=SHAPES["8b"].layers[:1])
    Network(a, weights(a, torch.bfloat16, torch.bfloat16), 5, 1024, 64).sites()[1].alone(16)


def few() -> None:
    board = Lanes(2, 2, 2, 256, 4000, NOWHERE)
    board.count(2)
    board.skip(2, 1)


def main(folder: Path) -> None:
    driver.set_active(Loaded())
    network.GPU = replace_of(GPU(SHARED, 100, (9, 0)))  # type: ignore[attr-defined]
    torch.cuda.set_device = lambda device: None
    os.cpu_count = lambda: 3
    compiling._MANY = 2
    launched: dict[str, Any] = {}
    workers: list[Any] = []
    ours: list[str] = []
    unloaded, started = compiling._unloaded, compiling._started

    def noted(recordings: Any) -> dict[str, Any]:
        launched.update(unloaded(recordings))
        return dict(launched)

    def counted(count: int) -> list[Any]:
        workers.extend(started(count))
        return workers

    def listen(*, src: Any, cache_hit: bool, **_: object) -> None:
        if not cache_hit:
            ours.append(src.name)

    compiling._unloaded, compiling._started, knobs.compilation.listener = noted, counted, listen

    def tell(what: str, cache: str, *launches: Callable[[], None]) -> None:
        for each in (launched, workers, ours):
            each.clear()
        knobs.cache.dir = str(folder / cache)
        recordings: list[Any] = [SimpleNamespace(launch=launch) for launch in launches]
        loaded = sum(1 for _ in compiling.compile_kernels(recordings))
        ended = all(worker._process.poll() is not None for worker in workers)
        names = sorted(kernel.__name__ for kernel in launched.values())
        told = {"launched": names, "loaded": loaded, "ours": sorted(ours), "workers": len(workers), "ended": ended}
        print(json.dumps({what: told}), flush=True)
        for kernel in launched.values():
            kernel.device_caches.clear()

    def meanwhile() -> None:
        """Another thread launches while we note what we launch, and compiles while we look what is stored."""
        kept: list[bool] = []

        def launch() -> None:
            hook: Any = knobs.runtime.jit_cache_hook
            what = {"fn": SimpleNamespace(), "key": "", "compile": {}}
            other = Thread(target=lambda: kept.append(hook(**what)))
            other.start()
            other.join()
            few()

        recordings: list[Any] = [SimpleNamespace(launch=launch)]
        knobs.cache.dir = str(folder / "meanwhile")
        missing = unloaded(recordings)
        with compiling._only_stored(missing.values()):
            for what, kernel in missing.items():
                kernel.preload(what)
        print(json.dumps({"meanwhile": {"kept": kept, "compiled": sorted(ours)}}), flush=True)
        for kernel in missing.values():
            kernel.device_caches.clear()

    meanwhile()
    usual, compiling._PATIENCE = compiling._WORKER, 600.0
    compiling._WORKER = f"sys.modules['torch'] = None; {usual}"
    tell("compile", "good", chains, product)
    tell("are not needed", "good", chains, product)
    key = compiling._key()
    for what, compiling._WORKER in WORKERS.items():
        told_key = "x" * 2**20 if what == "do not listen" else key  # more than a pipe holds
        compiling._key = partial(str, told_key)
        compiling._PATIENCE = 0.5 if what == "hang" else 60.0
        tell(what, what, few)
    compiling._WORKER, sys.executable = usual, str(folder / "no Python")
    tell("cannot be started", "none", few)
    compiling._CORES = 4
    tell("would gain nothing", "threads", few)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
