"""Decode speed on one GPU with random weights of named shapes: plain at several batches, a draft model at a set
acceptance, and the cost of a pass by the number of rows; or what each sampling parameter costs.

    python benchmarks/gpu_speed.py [--quick | --sampling] [--out benchmarks/results/gpu_speed.json]
    python benchmarks/gpu_speed.py --formats [--quick] [--out benchmarks/results/gpu_formats.json]
    python benchmarks/gpu_speed.py --draft [--quick] [--out benchmarks/results/gpu_draft.json]
    python benchmarks/gpu_speed.py --plain 1,32,128 [--out benchmarks/results/gpu_plain.json]

The second form is plain decoding alone, in fp8 beside bf16, at batches 1, 16 and 64; the third the draft model alone,
in fp8 and in bf16; the fourth plain decoding in bf16 at the batches given, twice over.

256 random tokens in, 256 out, greedy unless said. Rates come from whole runs through the engine: tokens beyond the
first 64 over the time they took, so prefill and first compilation cancel out; medians of three (--sampling: two).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

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
from outrider.models.cuda.backend import HEAD_IN_FP8
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.precision import BF16, FP8, Precision
from outrider.provenance import provenance
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams

GPU = torch.device("cuda")
PROMPT, NEW, SKIP = 256, 256, 64


def decoder(shape: str, max_batch: int, precision: Precision = BF16) -> CudaDecoder:
    weights = random_weights(SHAPES[shape], GPU, precision.compute, seed=0)
    return CudaDecoder.load(
        SHAPES[shape],
        weights,
        precision.compute,
        GPU,
        matrices=precision.weights,
        head=HEAD_IN_FP8 if precision is FP8 else None,
        max_batch=max_batch,
        max_context=1024,
    )


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T=0.7": {"temperature": 0.7},
    "T=0.7 top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T=0.7 min-p 0.05": {"temperature": 0.7, "min_p": 0.05},
    "T=0.7 top-k 50": {"temperature": 0.7, "top_k": 50},
    "repetition 1.1": {"repetition_penalty": 1.1},
    "all penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "logit bias": {"logit_bias": dict.fromkeys(range(100, 140), -1.0)},
    "logprobs 5": {"logprobs": 5},
}
"""What is compared with greedy decoding."""


def requests(batch: int, tokens: int, asked: dict[str, Any]) -> list[Request]:
    made = []
    for i in range(batch):
        prompt = random.Random(i).choices(range(10, 40_000), k=PROMPT)
        params = SamplingParams(**{"temperature": 0.0} | asked, seed=i, max_tokens=tokens, ignore_eos=True)
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


def rate(name: str, engine: Engine, batch: int, runs: int = 4, **asked: Any) -> Rate:
    found, passes = [], 1.0
    for _ in range(runs):  # the first compiles and records
        running = requests(batch, NEW, asked)
        for request in running:
            engine.add(request)
        began, before = 0.0, 0
        while not all(s.ended for s in running):
            engine.step()
            done = sum(s.generated for s in running)
            if not began and min(s.generated for s in running) >= SKIP:
                torch.cuda.synchronize()
                began, before = perf_counter(), done
        torch.cuda.synchronize()
        found.append((sum(s.generated for s in running) - before) / (perf_counter() - began))
        passes = statistics.mean(s.generated / s.steps for s in running)
    found = sorted(found[1:])
    result = Rate(name, batch, statistics.median(found), [found[0], found[-1]], passes)
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


def sampling_rates() -> list[Rate]:
    big = decoder("8b", 16)
    engine = Engine(big, NoDrafter(), FixedLength(0))
    rates = []
    for batch in (1, 16):
        some = [rate(f"8b {name}", engine, batch, runs=3, **asked) for name, asked in SAMPLING.items()]
        for each in some:
            print(f"{each.name:24} batch {batch:3}  {each.tokens_per_second / some[0].tokens_per_second:.3f}x greedy")
        rates += some
    return rates


def formats(batches: Sequence[int]) -> dict[str, object]:
    """Plain decoding of the 8B shape in both formats, one after the other."""
    rates, passes = [], {}
    for precision in (FP8, BF16):
        model = decoder("8b", 64, precision)
        engine = Engine(model, NoDrafter(), FixedLength(0))
        rates += [rate(f"8b plain {precision.name}", engine, batch) for batch in batches]
        passes[precision.name] = pass_times(model, 300, list(batches))
        print(
            precision.name, "pass ms by rows", {k: round(v, 3) for k, v in passes[precision.name].items()}, flush=True
        )
        del model, engine
    return {"rates": [asdict(r) for r in rates], "pass_ms_by_rows": passes}


def drafting(big: CudaDecoder, batches: Sequence[int]) -> list[Rate]:
    """With a draft model of the 1B shape, in eight bits (as it is loaded) and in as many as its target."""
    rates = []
    for precision in (FP8, BF16):
        draft = decoder("1b", 16, precision)
        rates.append(rate(f"1b plain, {precision.name}", Engine(draft, NoDrafter(), FixedLength(0)), 1))
        for batch in batches:
            controller, drafter = FixedLength(4), ModelDrafter(draft)
            acceptance = SyntheticAcceptance(4, 3.0)
            host = HostExecutor(big, drafter, controller, acceptance.rules())
            stepper = ForcedStepper(big, draft, acceptance, big.vocab_size)
            engine = Engine(big, drafter, controller, executor=DeviceExecutor(stepper, host, drafter.device_part))
            rates.append(rate(f"8b + 1b draft in {precision.name}, K=4, L=3.0", engine, batch))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="batch 1 only")
    parser.add_argument("--sampling", action="store_true", help="the 8b shape by sampling parameters, nothing else")
    parser.add_argument("--formats", action="store_true", help="plain decoding of the 8B shape in fp8 beside bf16")
    parser.add_argument(
        "--draft", action="store_true", help="the 8B shape with a draft model of the 1B shape, nothing else"
    )
    parser.add_argument("--plain", help="batches: plain decoding of the 8B shape, twice over, nothing else")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [1] if options.quick else [1, 4, 16]
    result: dict[str, object] = {"provenance": provenance() | {"dtype": "bf16"}}
    if options.formats:
        found = formats([1] if options.quick else [1, 16, 64])
        write(options.out, {"provenance": provenance() | {"dtype": "bf16, fp8"}} | found)
        return
    if options.draft:
        write(options.out, result | {"rates": [asdict(r) for r in drafting(decoder("8b", 16), batches)]})
        return
    if options.plain:
        asked = [int(batch) for batch in options.plain.split(",")]
        engine = Engine(decoder("8b", max(asked)), NoDrafter(), FixedLength(0))
        write(options.out, result | {"rates": [asdict(rate("8b plain", engine, batch)) for batch in asked * 2]})
        return
    if options.sampling:
        write(options.out, result | {"rates": [asdict(r) for r in sampling_rates()]})
        return
    rates = []
    small = decoder("135m", 16)
    rates += [rate("135m plain", Engine(small, NoDrafter(), FixedLength(0)), batch) for batch in batches]
    rates.append(rate("135m plain T=1", Engine(small, NoDrafter(), FixedLength(0)), 1, temperature=1.0))
    result["135m_pass_ms_by_rows"] = pass_times(small, 300, [1, 2, 4, 8, 16, 32, 64])
    del small
    big = decoder("8b", 16)
    rates += [rate("8b plain", Engine(big, NoDrafter(), FixedLength(0)), batch) for batch in batches]
    rates.append(rate("8b plain T=1", Engine(big, NoDrafter(), FixedLength(0)), 1, temperature=1.0))
    result["8b_pass_ms_by_rows"] = pass_times(big, 300, [1, 2, 4, 8, 16, 32, 64])
    rates += drafting(big, batches)
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
    write(options.out, result)


def write(out: Path | None, result: dict[str, object]) -> None:
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
