"""Ways to compute the products of a layer of the 8B shape on one GPU, by number of rows: which is fastest, bit for bit.

    python benchmarks/gpu_tilings.py [--rows 1,128] [--seconds 150] [--only Stream] [--out FILE]

Several layers of random weights, more than the L2 cache holds, are recorded as one graph: qkv, o, gate and up, down of
each, one after the other as in a pass but for attention. Of one product after the other the way is changed in all
layers, and what the whole then takes is compared with what it took just before. What comes out must be the very bits of
the way that is used now. The vocabulary is timed alone.

Everything found is appended to the file given as --kept, and not measured again when this is started anew. A launch
that does not come back ends the program with status 17, and is left out the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from outrider.bench.shapes import SHAPES
from outrider.models.cuda.device import GPU
from outrider.models.cuda.launches import power_of_two
from outrider.models.cuda.products import Matrix, Products
from outrider.models.cuda.tiling import Cut, HopperTiling, PartsTiling, Product, StreamTiling, Tiling, depth_split
from outrider.provenance import provenance

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
LAYERS = 6
MOST_ROWS = 512
SHAPE = SHAPES["8b"]
KINDS = ("qkv", "o", "gate_up", "down")
ROWS = (1, 128, 320, 80, 16, 64, 32)
STUCK = 20.0
"""Seconds after which a launch is not expected to come back."""


@dataclass(frozen=True, slots=True)
class Way:
    kind: str
    rows: int
    cut: Cut

    @property
    def name(self) -> str:
        values = ",".join(str(value) for value in asdict(self.cut).values())
        return f"{self.kind} {self.rows} {type(self.cut).__name__.removesuffix('Tiling') or 'Narrow'}({values})"


class Tried(Products):
    """Some products computed in a given way."""

    trial: Cut | None = None

    def cut(self, product: Product, rows: int, *, gathered: bool = False, counted: bool = False) -> Cut:
        return self.trial or super().cut(product, rows, gathered=gathered, counted=counted)


class Layers:
    """Weights and buffers, and the launch of one product of one layer in a given way."""

    def __init__(self, gpu: GPU) -> None:
        a = SHAPE
        shapes = {
            "qkv": (a.q_width + 2 * a.kv_width, a.hidden),
            "o": (a.hidden, a.q_width),
            "gate_up": (2 * a.mlp, a.hidden),
            "down": (a.hidden, a.mlp),
            "head": (a.vocab_size, a.hidden),
        }
        self.shapes = shapes
        splits = [(n, depth_split(n, k)) for kind, (n, k) in shapes.items() if kind != "gate_up"]
        self.products = Tried(a, gpu, DTYPE, DEVICE, MOST_ROWS, MOST_ROWS, splits)
        generator = torch.Generator(DEVICE).manual_seed(0)

        def numbers(*shape: int, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> Tensor:
            made = torch.empty(shape, dtype=dtype, device=DEVICE)
            return made.normal_(0, scale, generator=generator)

        self.weights = [{kind: Matrix(numbers(*shapes[kind], scale=0.02)) for kind in KINDS} for _ in range(LAYERS)]
        self.head = Matrix(numbers(*shapes["head"], scale=0.02))
        self.x, self.attended = numbers(MOST_ROWS, a.hidden), numbers(MOST_ROWS, a.q_width)
        self.qkv = numbers(MOST_ROWS, shapes["qkv"][0])
        self.gated = numbers(MOST_ROWS, a.mlp)
        self.gain = numbers(a.hidden, scale=0.1, dtype=torch.float32).add_(1)
        self.residual = numbers(MOST_ROWS, a.hidden)
        self.squares = numbers(MOST_ROWS, self.products.tiles, dtype=torch.float32).square()
        self.logits = torch.zeros(256, a.vocab_size, device=DEVICE)
        self.wanted = torch.arange(MOST_ROWS, dtype=torch.int32, device=DEVICE)
        self.given = {name: getattr(self, name).clone() for name in ("x", "attended", "qkv", "gated")}
        self.reset()

    def reset(self) -> None:
        self.products.residual.copy_(self.residual)
        self.products.squares.copy_(self.squares)
        for name, value in self.given.items():
            getattr(self, name).copy_(value)

    def launch(self, kind: str, layer: int, rows: int, cut: Cut | None) -> None:
        linear, self.products.trial = self.products.linear, cut
        weight = self.head if kind == "head" else self.weights[layer][kind]
        if kind == "qkv":
            linear(self.x, weight, None, rows, self.qkv, normed=True)
        elif kind == "o":
            linear(self.attended, weight, None, rows, self.x, gain=self.gain)
        elif kind == "gate_up":
            linear(self.x, weight, None, rows, self.gated, normed=True, gated=True)
        elif kind == "down":
            linear(self.gated, weight, None, rows, self.x, gain=self.gain)
        else:
            gathered = cut is None or type(cut) is Tiling
            linear(self.x, weight, None, rows, self.logits, normed=True, index=self.wanted if gathered else None)

    def outcome(self, kind: str, rows: int, cut: Cut | None) -> list[Tensor]:
        """What one product writes: bits to be compared."""
        self.reset()
        written = {"qkv": self.qkv, "gate_up": self.gated, "head": self.logits}.get(kind, self.x)
        if kind != "down" and kind != "o":
            written.zero_()
        self.launch(kind, 0, rows, cut)
        every = (written, self.products.residual, self.products.squares)
        return [tensor[:rows].clone() for tensor in every]

    def pass_(self, rows: int, cuts: dict[str, Cut]) -> None:
        for layer in range(LAYERS):
            for kind in KINDS:
                self.launch(kind, layer, rows, cuts.get(kind))


def recorded(launches: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return graph


def timed(graph: torch.cuda.CUDAGraph, repeats: int = 9) -> float:
    """Microseconds of one replay: the median."""
    events = [torch.Event(DEVICE, enable_timing=True) for _ in range(repeats + 1)]
    graph.replay()
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) * 1000 for a, b in pairwise(events))


def candidates(rows: int, gpu: GPU) -> Iterator[Way]:
    """Most promising first."""
    for kind in ("down", "qkv", "o", "gate_up", "head"):
        gated, split = kind == "gate_up", 1 if kind in ("gate_up", "head") else 2
        if rows <= 128:
            m = max(16, power_of_two(rows))
            for groups in (1, 2):
                finishing = groups * (1024 + max(4352, 256 * min(m, 64)))
                stages = min(24, (gpu.shared - finishing) // (128 * (m + groups * 64 * (2 if gated else 1))))
                yield Way(kind, rows, StreamTiling(m, groups, stages))
        if rows > 64 and kind != "head":
            for groups, width in ((3, 64), (3, 128), (2, 64), (2, 128)):
                block_n = width // 2 if gated else width
                stages = min(8, (gpu.shared - 1024 - 8448 * groups) // (128 * (64 * groups + width)))
                if block_n >= 64:
                    yield Way(kind, rows, PartsTiling(groups, block_n, stages))
            for block_n in (64, 128):
                stages = min(6, (gpu.shared - 20_480) // (128 * (128 + block_n * (2 if gated else 1))))
                yield Way(kind, rows, HopperTiling(128, block_n, stages, 8))
        if rows <= 128:
            m = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128
            base = Tiling(m, 128 if kind == "head" else 64, 64, split, 4, warps=8 if m == 128 else 4)
            tried = [replace(base, stages=6), replace(base, block_k=128, stages=3), replace(base, stages=8)]
            if m == 16:
                tried += [replace(base, block_k=128, stages=stages) for stages in (4, 5, 6)]
            for cut in dict.fromkeys(tried):
                if cut.shared(2, gated) <= gpu.shared - 2048:
                    yield Way(kind, rows, cut)


def needed(launch: Callable[[], None]) -> dict[str, Any]:
    """What a launch has yet to have compiled, and by which kernel; nothing is launched."""
    missing: dict[str, Any] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        missing[compile["specialization_data"]] = fn.jit_function
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, note
    try:
        launch()
    finally:
        knobs.runtime.jit_cache_hook = before
    return missing


def load(kernel: Any, what: str) -> None:
    assert kernel.preload(what).run is not None


class Watch:
    """Ends the program where a launch does not come back, having said which it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.since: float | None = None
        self.name = ""
        threading.Thread(target=self._look, daemon=True).start()

    def on(self, name: str) -> None:
        self.name, self.since = name, perf_counter()

    def off(self) -> None:
        self.since = None

    def _look(self) -> None:
        while True:
            threading.Event().wait(0.5)
            if self.since is not None and perf_counter() - self.since > STUCK:
                with self.path.open("a") as file:
                    file.write(json.dumps({"name": self.name, "stuck": True}) + "\n")
                print("STUCK", self.name, flush=True)
                os._exit(17)


def innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[-160:]}".replace("\n", " ")


def search(rows_list: list[int], kept: Path, deadline: float, only: str) -> list[dict[str, Any]]:
    entered, gpu = perf_counter(), GPU.of(DEVICE)
    layers, watch = Layers(gpu), Watch(kept)
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {entry["name"] for entry in found}

    def keep(**entry: Any) -> None:
        found.append(entry)
        with kept.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    ways = [way for rows in rows_list for way in candidates(rows, gpu) if only in way.name]
    ways = [way for way in dict.fromkeys(ways) if way.name not in known]
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), initializer=torch.cuda.set_device, initargs=(0,))
    missing: dict[str, Any] = {}
    for rows in rows_list:  # what is used now must be there first
        for kind in (*KINDS, "head"):
            if kind != "head" or rows <= 256:
                missing |= needed(partial(layers.launch, kind, 0, rows, None))
    needs: dict[Way, list[str]] = {}
    for way in ways:
        try:
            asked = needed(partial(layers.launch, way.kind, 0, way.rows, way.cut))
            needs[way] = list(asked)
            missing |= asked
        except Exception as error:
            keep(name=way.name, error=innermost(error))
    loading = {what: pool.submit(load, kernel, what) for what, kernel in missing.items()}
    wait(loading.values(), 0.7 * max(0.0, deadline - perf_counter()))  # compilers would keep the host from launching
    print(f"{len(ways)} ways, {len(loading)} kernels, after {perf_counter() - entered:.1f} s", flush=True)
    began = perf_counter()
    for rows in rows_list:
        default = recorded(partial(layers.pass_, rows, {}))
        alone = recorded(partial(layers.launch, "head", 0, rows, None)) if rows <= 256 else None
        timed(default)
        references = {kind: layers.outcome(kind, rows, None) for kind in (*KINDS, *(["head"] if alone else []))}
        best: dict[str, tuple[float, Cut]] = {}
        of_rows = [way for way in ways if way.rows == rows and way in needs]
        usual = 0.0
        for way in of_rows:
            if perf_counter() > deadline:
                break
            try:
                for what in needs[way]:
                    loading[what].result()
                watch.on(way.name)
                same = all(map(torch.equal, layers.outcome(way.kind, rows, way.cut), references[way.kind]))
                torch.cuda.synchronize()
                if way.kind == "head":
                    assert alone is not None
                    usual = timed(alone)
                    gained = usual - timed(recorded(partial(layers.launch, "head", 0, rows, way.cut)))
                else:
                    usual = timed(default)
                    graph = recorded(partial(layers.pass_, rows, {way.kind: way.cut}))
                    gained = (usual - timed(graph)) / LAYERS
                    usual /= LAYERS
            except Exception as error:
                keep(name=way.name, error=innermost(error))
                continue
            finally:
                watch.off()
            entry = {"name": way.name, "kind": way.kind, "rows": rows, "same": same, "usual_us": round(usual, 2)}
            keep(**entry, gained_us=round(gained, 2))
            if same and gained > best.get(way.kind, (0.0, way.cut))[0]:
                best[way.kind] = gained, way.cut
        if best and (cuts := {kind: cut for kind, (_, cut) in best.items() if kind != "head"}):
            usual = timed(default) / LAYERS
            together = timed(recorded(partial(layers.pass_, rows, cuts))) / LAYERS
            keep(
                name=f"all {rows}",
                kind="all",
                rows=rows,
                same=True,
                usual_us=round(usual, 2),
                gained_us=round(usual - together, 2),
            )
        tell(found, rows, perf_counter() - began)
    pool.shutdown(wait=False, cancel_futures=True)
    return found


def tell(found: list[dict[str, Any]], rows: int, seconds: float) -> None:
    its = [entry for entry in found if entry.get("rows") == rows]
    wrong = [entry["name"] for entry in its if not entry["same"]]
    print(f"== {rows} rows, {len(its)} ways, {len(wrong)} of other bits {wrong[:3]} ({seconds:.0f} s)", flush=True)
    for kind in ("all", *KINDS, "head"):
        of = sorted((entry for entry in its if entry["kind"] == kind and entry["same"]), key=lambda e: -e["gained_us"])
        if of:
            ways = "; ".join(f"{e['gained_us']:+.1f} {e['name'].split(' ')[-1]}" for e in of[:4])
            print(f"  {kind} (layer {of[0]['usual_us']}): {ways}", flush=True)
    errors = [entry for entry in found if "error" in entry and f" {rows} " in entry["name"]]
    for entry in errors[:2]:
        print("  ERROR", len(errors), entry["name"], entry["error"][:150], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", type=Path, default=Path("gpu_tilings.jsonl"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    deadline = perf_counter() + given.seconds
    with torch.inference_mode():
        found = search([int(rows) for rows in given.rows.split(",")], given.kept, deadline, given.only)
    if given.out:
        given.out.write_text(json.dumps({"provenance": provenance(), "found": found}, indent=1) + "\n")
    os._exit(0)  # whatever still compiles is not waited for


if __name__ == "__main__":
    main()
