"""Decode speed on one GPU with random weights of named shapes: plain at several batches, a draft model at a set
acceptance, and the cost of a pass by the number of rows.

    python benchmarks/gpu_speed.py [--quick] [--out benchmarks/results/gpu_speed.json]

256 random tokens in, 256 out, greedy. Rates come from whole runs through the engine: tokens beyond the first 64 over
the time they took, so prefill and first compilation cancel out; medians of three.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from outrider.bench.forced import ForcedStepper
from outrider.bench.shapes import SHAPES, random_weights
from outrider.bench.synthetic import SyntheticAcceptance
from outrider.control.controller import FixedLength
from outrider.core.model import Rows
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.cuda.decoder import CudaDecoder
from outrider.provenance import provenance
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

GPU = torch.device("cuda")
PROMPT, NEW, SKIP = 256, 256, 64


def decoder(shape: str, max_batch: int) -> CudaDecoder:
    weights = random_weights(SHAPES[shape], GPU, torch.bfloat16, seed=0)
    return CudaDecoder.load(SHAPES[shape], weights, torch.bfloat16, GPU, max_batch=max_batch, max_context=1024)


def requests(batch: int, tokens: int, temperature: float) -> list[Request]:
    made = []
    for i in range(batch):
        prompt = random.Random(i).choices(range(10, 40_000), k=PROMPT)
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True)
        made.append(
            Request(
                id=i,
                tokens=prompt,
                prompt_length=PROMPT,
                params=params.resolve({}, [], 49_152),
                limit=tokens,
                stream=TextStream(lambda token: b"x", (), False),
                history=History(prompt),
            )
        )
    return made


@dataclass
class Rate:
    name: str
    batch: int
    tokens_per_second: float
    spread: list[float]
    tokens_per_pass: float


def rate(name: str, engine: Engine, batch: int, temperature: float = 0.0) -> Rate:
    found, passes = [], 1.0
    for _ in range(4):  # the first compiles and records
        running = requests(batch, NEW, temperature)
        for request in running:
            engine.add(request)
        began, before = 0.0, 0
        while not all(s.finish_reason for s in running):
            engine.step()
            done = sum(s.generated for s in running)
            if not began and min(s.generated for s in running) >= SKIP:
                torch.cuda.synchronize()
                began, before = perf_counter(), done
        torch.cuda.synchronize()
        found.append((sum(s.generated for s in running) - before) / (perf_counter() - began))
        passes = statistics.mean(s.generated / s.steps for s in running)
    found = sorted(found[1:])
    result = Rate(name, batch, found[1], [found[0], found[-1]], passes)
    print(f"{name:24} batch {batch:3}  {result.tokens_per_second:9.1f} tok/s  ({passes:.2f} tokens a pass)", flush=True)
    return result


def pass_times(model: CudaDecoder, context: int, widths: list[int]) -> dict[str, float]:
    """Milliseconds of device time of one verification pass (logits included) of a tree of so many rows."""
    slot = model.open()
    model.forward([Rows.chain(slot, random.Random(0).choices(range(10, 40_000), k=context), logits=())])
    model.commit(slot, range(context))
    found = {}
    for width in widths:
        rows = Rows(slot, list(range(width)), [-1, *(max(-1, i // 2 - 1) for i in range(1, width))])
        times = []
        for _ in range(30):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            start.record()
            model.forward([rows])
            end.record()
            torch.cuda.synchronize()
            model.rollback(slot, context)
            times.append(start.elapsed_time(end))
        found[str(width)] = statistics.median(times)
    model.close(slot)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="batch 1 only")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [1] if options.quick else [1, 4, 16]
    result: dict[str, object] = {"provenance": provenance() | {"dtype": "bf16"}}
    rates = []
    small = decoder("135m", 16)
    rates += [rate("135m plain", Engine(small, NoDrafter(), FixedLength(0)), batch) for batch in batches]
    rates.append(rate("135m plain T=1", Engine(small, NoDrafter(), FixedLength(0)), 1, 1.0))
    result["135m_pass_ms_by_rows"] = pass_times(small, 300, [1, 2, 4, 8, 16, 32, 64])
    del small
    big = decoder("8b", 16)
    rates += [rate("8b plain", Engine(big, NoDrafter(), FixedLength(0)), batch) for batch in batches]
    rates.append(rate("8b plain T=1", Engine(big, NoDrafter(), FixedLength(0)), 1, 1.0))
    result["8b_pass_ms_by_rows"] = pass_times(big, 300, [1, 2, 4, 8, 16, 32, 64])
    draft = decoder("1b", 16)
    rates.append(rate("1b plain", Engine(draft, NoDrafter(), FixedLength(0)), 1))
    for batch in batches:
        controller, drafter = FixedLength(4), ModelDrafter(draft)
        acceptance = SyntheticAcceptance(4, 3.0)
        host = HostExecutor(big, drafter, controller, acceptance.rules())
        stepper = ForcedStepper(big, draft, acceptance, big.vocab_size)
        engine = Engine(big, drafter, controller, executor=DeviceExecutor(stepper, host, drafter.device_part))
        rates.append(rate("8b + 1b draft, K=4, L=3.0", engine, batch))
    result["rates"] = [asdict(r) for r in rates]
    for shape in ("135m", "8b"):
        times = result[f"{shape}_pass_ms_by_rows"]
        assert isinstance(times, dict)
        print(
            shape,
            "pass ms by rows",
            {k: round(v, 3) for k, v in times.items()},
            f"64 rows {times['64'] / times['1']:.3f}x one",
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
