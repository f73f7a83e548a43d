"""Is `auto` ever slower than plain decoding? What everybody gets, cell by cell.

    python benchmarks/never_slower.py --questions FILE [--device cuda] [--batches 1,4,16,64] [--rounds 5]
        [--out benchmarks/results/never_slower_gpu.json]

A cell is a batch size and a way to sample. In every round both arms answer the same questions, one batch after the
other, in turns; the cell's figure is the mean of the rounds' ratios (of tokens per second, prompts included) with its
95% interval. It fails where the whole interval lies below 0.97. Single cells are not run again. Tokens must be
identical.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from scipy import stats

from outrider import LLM, SamplingParams
from outrider.bench.provenance import provenance
from outrider.bench.questions import read_questions
from outrider.bench.target import Target
from outrider.models.checkpoints.progress import SilentProgress

NEW = 128
LEAST = 0.97
SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=0.7": {"temperature": 0.7},
    "T=0.7 top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
}


@dataclass(frozen=True)
class Cell:
    batch: int
    sampling: str
    plain: float
    """Tokens per second, as is `auto`; medians over the rounds."""
    auto: float
    ratio: float
    half_width: float
    tokens_per_pass: float
    worst_request: float
    """The lowest ratio of one request's decoding speed to its plain one's, medians over the rounds."""
    identical: int
    answers: int

    @property
    def fails(self) -> bool:
        return self.ratio + self.half_width < LEAST


def measured(llm: LLM, prompts: list[list[int]], batch: int, sampling: str, rounds: int) -> Cell:
    options: dict[str, Any] = dict(SAMPLINGS[sampling])
    groups = [prompts[start : start + batch] for start in range(0, max(batch, 4), batch)]
    speeds: dict[bool, list[float]] = {False: [], True: []}
    single: dict[bool, list[list[float]]] = {False: [], True: []}
    tokens: dict[bool, list[list[int]]] = {}
    passes = 1.0
    for turn in range(rounds):
        for speculate in (False, True) if turn % 2 else (True, False):
            started, done = perf_counter(), []
            for group in groups:
                params = [SamplingParams(max_tokens=NEW, seed=i, ignore_eos=True, **options) for i in range(len(group))]
                done += llm.generate(group, params, speculate=speculate)
            speeds[speculate].append(sum(len(c.token_ids) for c in done) / (perf_counter() - started))
            single[speculate].append([c.tokens_per_second for c in done])
            tokens[speculate] = [c.token_ids for c in done]
            if speculate:
                passes = statistics.mean(c.mean_acceptance_length for c in done)
    logs = [math.log(auto / plain) for auto, plain in zip(speeds[True], speeds[False], strict=True)]
    ratio = math.exp(statistics.mean(logs))
    spread = statistics.stdev(logs) / math.sqrt(rounds) * float(stats.t.ppf(0.975, rounds - 1))
    each = [
        statistics.median(a) / statistics.median(p)
        for a, p in zip(zip(*single[True], strict=True), zip(*single[False], strict=True), strict=True)
    ]
    same = sum(a == p for a, p in zip(tokens[True], tokens[False], strict=True))
    plain, auto = (statistics.median(speeds[arm]) for arm in (False, True))
    return Cell(batch, sampling, plain, auto, ratio, ratio * spread, passes, min(each), same, len(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batches", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    batches = [int(batch) for batch in asked.batches.split(",")]
    started = perf_counter()
    llm = LLM(asked.model, device=asked.device, dtype=asked.dtype, max_batch=max(batches), max_context=2048)
    loading = perf_counter() - started
    place = llm.place
    target = Target(asked.model, place.precision.name, place.device.type, place.threads, SilentProgress())
    about = provenance(target, place.threads)
    texts = [question.turns[0] for question in read_questions(asked.questions)]
    prompts = [llm.encode_chat([{"role": "user", "content": text}]) for text in texts]
    prompts = [prompt for prompt in prompts if len(prompt) < 1500]
    step = max(1, len(prompts) // max(batches))
    prompts = prompts[::step]
    print(f"loaded in {loading:.1f} s; {llm.drafter.name}", flush=True)
    measured(llm, prompts, batches[0], "greedy", 2)  # not counted
    cells = []
    for sampling in SAMPLINGS:
        for batch in batches:
            cell = measured(llm, prompts, batch, sampling, asked.rounds)
            cells.append(cell)
            print(
                f"{sampling:16} batch {batch:3}  plain {cell.plain:8.0f}  auto {cell.auto:8.0f} tok/s  "
                f"{cell.ratio:.2f}x ± {cell.half_width:.2f}{' FAILS' if cell.fails else ''}  worst request "
                f"{cell.worst_request:.2f}x  {cell.tokens_per_pass:.2f} a pass  "
                f"identical {cell.identical}/{cell.answers}",
                flush=True,
            )
    if asked.out:
        result = {"provenance": about, "load_seconds": loading, "rounds": asked.rounds, "tokens": NEW}
        result["cells"] = [{**asdict(cell), "fails": cell.fails} for cell in cells]
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
