"""What is compiled and recorded on a GPU is so before the first request, not while it waits."""

from __future__ import annotations

import gc
from itertools import chain

from outrider.engine.engine import Engine
from outrider.models.checkpoints.progress import Progress


def prepare(engine: Engine, progress: Progress) -> None:
    trials = chain(*(network.tune(progress.note) for network in engine.networks))
    for _ in trials:  # there are some
        with progress.task("Trying kernels on this GPU, once", None) as advance:
            for _ in trials:
                advance(1)
    recordings = list(chain(*(part.recordings() for part in engine.prepares)))
    if not recordings:  # on a CPU there are none
        return
    from outrider.models.cuda.compiling import compile_kernels  # needs Triton, which is not everywhere

    with progress.task("Compiling for the GPU", None) as advance:
        for _ in compile_kernels(recordings):
            advance(1)
    with progress.task("Preparing the GPU", len(recordings)) as advance:
        for recording in recordings:
            recording.record()
            advance(1)
        for _ in engine.executor.measure():
            pass
    gc.collect()  # else it would be while the first request waits
