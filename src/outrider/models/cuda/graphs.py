"""Recorded launches, and buffers that reach the device without a wait."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.cuda.child_graphs import add_child

Key = tuple[object, ...]
Launches = Callable[[], None]


class Staging:
    """A pinned buffer for one asynchronous copy to the device; not written again before that copy is done."""

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._sent = torch.Event(device) if pinned else None

    def free(self) -> Tensor:
        if self._sent is not None:
            self._sent.synchronize()
        return self._host

    def send(self, target: Tensor, count: int | None = None) -> None:
        """Copy the first `count` numbers (None: all)."""
        target[:count].copy_(self._host[:count], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def oldest(staged: list[Staging]) -> Staging:
    """The one used longest ago; the last in turn from now on."""
    staged.append(staged.pop(0))
    return staged[-1]


class Graphs:
    """Launch sequences recorded once and replayed: a launch costs the host more than a small kernel takes.

    That takes from milliseconds to seconds, so all that will be asked for is recorded before the first request
    (`recordings` of models and steppers). Launches whose kernels may not be loaded yet are made directly first: no
    kernel can be loaded while a graph is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._enabled = device.type == "cuda"
        self._recorded: dict[Key, torch.cuda.CUDAGraph | None] = {}
        self._parts: dict[Key, torch.cuda.CUDAGraph] = {}
        """Recorded to become part of others (`part`)."""
        self._kinds: set[object] = set()
        """Of launches that were made before: what they need beside our own kernels is loaded."""
        self.late = 0
        """Recordings made while somebody waited: nothing had prepared them."""

    def run(self, key: Key, launches: Launches) -> None:
        graph = self._recorded.get(key)
        if graph is not None:
            graph.replay()
            return
        launches()
        if key not in self._recorded:
            self._recorded[key] = recorded(launches) if self._enabled else None
            self.late += 1

    def record(self, key: Key, launches: Launches, part: Launches | None = None) -> None:
        """Nobody waits, and our own kernels are loaded (`compile_kernels`). `part`: what of these launches, the last,
        is to become part of others."""
        if key[0] not in self._kinds or not self._enabled:
            self._kinds.add(key[0])
            launches()
        if part is None:
            self._recorded[key] = recorded(launches) if self._enabled else None
        elif self._enabled:
            self._parts[key] = recorded(part, keep_graph=True)

    def part(self, key: Key, launches: Launches) -> None:
        """Among launches that may be recorded, some that other recordings have as well: where they were recorded as a
        part before, that is taken over, in a hundredth of the time."""
        part = self._parts.get(key)
        if part is None or not torch.cuda.is_current_stream_capturing() or not add_child(part.raw_cuda_graph()):
            launches()

    def recordings(
        self, all_launches: Iterable[tuple[Key, Launches]], parts: Iterable[tuple[Key, Launches, Launches]] = ()
    ) -> Iterator[GraphRecording]:
        """What is not recorded yet; first, what is part of it: as `record` is given both."""
        found = {key: launches for key, launches in all_launches if key not in self._recorded}
        for key, launches, part in parts if found else ():
            if key not in self._parts:
                yield GraphRecording(self, key, launches, part)
        for key, launches in found.items():
            yield GraphRecording(self, key, launches)


@dataclass(frozen=True, slots=True)
class GraphRecording:
    """A `Recording`."""

    graphs: Graphs
    key: Key
    launches: Launches
    part: Launches | None = None

    def launch(self) -> None:
        with torch.inference_mode():
            self.launches()

    def record(self) -> None:
        with torch.inference_mode():
            self.graphs.record(self.key, self.launches, self.part)


def recorded(launches: Callable[[], None], keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """`keep_graph`: not to be run, but to become part of others.

    The garbage collector waits meanwhile: an old graph it let go of would break the recording of this one.

    On a stream of its own, as recording must be. `torch.cuda.graph` would also empty the allocator's cache each time,
    a sixth of what hundreds of recordings take.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            graph.capture_begin()
            try:
                launches()
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph


def bucket(n: int) -> int:
    """The next power of two: passes are recorded for few sizes."""
    return 1 << (n - 1).bit_length()


def buckets(most: int) -> Iterator[int]:
    """Every bucket of 1 to `most`."""
    return (1 << i for i in range(bucket(most).bit_length()))
