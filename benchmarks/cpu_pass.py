"""What one pass of the CPU decoder costs: by rows, by context, by weight format; prefill, memory, start-up.

    python benchmarks/cpu_pass.py [--rounds 6] [--out benchmarks/results/cpu_pass.json]

Formats take turns in short bursts, since the machine's speed drifts; every figure is the median over all rounds. Read
bandwidth is that of summing a buffer as large as the format's weights, measured in the same rounds. Leave the machine
otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider.core.model import Rows
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import load_model, placement
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import KERNELS
from outrider.provenance import provenance

MODEL = "smollm2-135m"
FORMATS = {"bf16": 2, "int8": 1, "fp32": 4}
ROWS = (1, 2, 4, 8, 16, 17, 32, 64, 128)
CONTEXTS = (0, 300, 2000)
PROMPT = 380
PARAMETERS = 134_515_008


def load(dtype: str, max_batch: int = 3) -> NativeDecoder:
    place = placement(device="cpu", dtype=dtype, bitwise=None, threads=None, max_batch=max_batch, max_context=2304)
    model = load_model(open_checkpoint(MODEL, SilentProgress()), place)
    assert isinstance(model, NativeDecoder), "the compiled decoder is what this measures; build it first"
    return model


class Arm:
    """One format with a slot per context length."""

    def __init__(self, dtype: str) -> None:
        self.model = load(dtype)
        self.slots = {context: self._filled(context) for context in CONTEXTS}
        self.buffer = torch.ones(PARAMETERS * FORMATS[dtype] // 4)

    def _filled(self, context: int) -> int:
        slot = self.model.open()
        tokens = [1000 + i % 5000 for i in range(context)]
        self.model.forward([Rows.chain(slot, tokens, logits=())])
        self.model.commit(slot, range(context))
        return slot

    def seconds(self, rows: int, context: int, logits: list[int] | None = None) -> float:
        slot, tokens = self.slots[context], [100 + i for i in range(rows)]
        start = perf_counter()
        self.model.forward([Rows.chain(slot, tokens, logits)])
        seconds = perf_counter() - start
        self.model.commit(slot, [])
        return seconds

    def read(self) -> float:
        start = perf_counter()
        self.buffer.sum()
        return perf_counter() - start


def burst(measure: Callable[[], float], count: int) -> list[float]:
    measure()  # the others' weights have pushed these out of the caches
    return [measure() for _ in range(count)]


def loading_memory(dtype: str) -> dict[str, float]:
    """Peak resident memory of a fresh process that loads and decodes, beyond its imports, against the weights' size."""
    script = f"""
import resource, psutil, outrider.llm, gguf.quants
from outrider import LLM, SamplingParams
before = psutil.Process().memory_info().rss
llm = LLM("{MODEL}", dtype="{dtype}", max_batch=1)
llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, psutil.Process().memory_info().rss)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    before, peak, now = map(int, out.split()[-3:])
    weights = PARAMETERS * FORMATS[dtype]
    return {"weights_mb": weights / 1e6, "peak_mb": (peak - before) / 1e6, "resident_mb": (now - before) / 1e6}


def start_up(dtype: str) -> float:
    """Seconds from the command to its end, for one token."""
    command = [sys.executable, "-c", "from outrider.cli.main import main; main()", "generate", "Hello"]
    start = perf_counter()
    subprocess.run([*command, "--max-tokens", "1", "--dtype", dtype], capture_output=True, check=True)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    origin = provenance() | {"threads": torch.get_num_threads(), "model": MODEL}
    memory = {dtype: loading_memory(dtype) for dtype in FORMATS}
    starts = {dtype: statistics.median(start_up(dtype) for _ in range(3)) for dtype in ("bf16", "int8")}
    arms = {dtype: Arm(dtype) for dtype in FORMATS}
    origin["kernels"] = KERNELS[arms["bf16"].model._model.shape.kernels]
    times: dict[str, dict[str, list[float]]] = {dtype: defaultdict(list) for dtype in FORMATS}
    for _ in track(range(options.rounds), "Measuring"):
        for dtype, arm in arms.items():
            found = times[dtype]
            found["read"] += burst(arm.read, 3)
            for rows in ROWS:
                found[f"rows {rows}"] += burst(partial(arm.seconds, rows, 0), 4 if rows < 64 else 1)
            for context in CONTEXTS:
                for rows in (1, 16):
                    key = f"rows {rows}, context {context}"
                    found[key] += burst(partial(arm.seconds, rows, context), 4 if context else 2)
            found["prefill"] += burst(partial(arm.seconds, PROMPT, 0, [PROMPT - 1]), 1)

    medians = {d: {key: statistics.median(v) for key, v in found.items()} for d, found in times.items()}
    table = Table("measure", *FORMATS)
    for key in medians["bf16"]:
        if key != "read":
            table.add_row(f"{key}, ms", *(f"{1e3 * medians[d][key]:.2f}" for d in FORMATS))
    summary: dict[str, dict[str, float]] = {}
    for dtype, m in medians.items():
        size = PARAMETERS * FORMATS[dtype] / 1e9
        summary[dtype] = {
            "weights_read_gb_per_s": size / m["rows 1"],
            "buffer_read_gb_per_s": size / m["read"],
            "share_of_read_bandwidth": m["read"] / m["rows 1"],
            "rows_16_over_1": m["rows 16"] / m["rows 1"],
            "rows_32_over_1": m["rows 32"] / m["rows 1"],
            "context_300_over_0": m["rows 1, context 300"] / m["rows 1, context 0"],
            "context_2000_over_0": m["rows 1, context 2000"] / m["rows 1, context 0"],
            "prefill_380_seconds": m["prefill"],
            "peak_memory_over_weights": memory[dtype]["peak_mb"] / memory[dtype]["weights_mb"],
            **memory[dtype],
            **({"first_token_seconds_from_command": starts[dtype]} if dtype in starts else {}),
        }
    for key in summary["bf16"]:
        table.add_row(key, *(f"{summary[d][key]:.2f}" if key in summary[d] else "" for d in FORMATS))
    Console().print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        rounded = {d: {k: round(1e3 * v, 3) for k, v in m.items()} for d, m in medians.items()}
        result = {"provenance": origin, "summary": summary, "median_ms": rounded}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
