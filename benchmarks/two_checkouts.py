"""Whether a change has made decoding slower: two checkouts answer the same requests by turns, pair by pair.

    python benchmarks/two_checkouts.py OTHER_CHECKOUT [--pairs 32] [--out FILE.json]

Whole answers; steps as each checkout's own step_profile.py sees them, and passes as its cpu_pass.py does. Both must
have been built (`python setup.py build_ext --inplace`). Each is a process of its own; who goes first changes with every
pair. Printed are the medians of the other checkout's seconds over this one's, above 1 where this one is faster, and the
95% intervals of the medians. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXTS = (
    "Explain how rivers form.",
    "Write a Python function that reverses a list.",
    "List five fruits and their colours.",
    "Summarise a fairy tale in a few words.",
    "What is 12 times 13? Explain.",
    "Translate 'good morning' into three languages.",
    "Name three rivers in Europe.",
    "Why is the sky blue?",
)
ANSWERS = {  # drafter, requests, tokens, temperature, top-p
    "plain, 1 request": ("none", 1, 24, 0.0, 1.0),
    "plain, 8 requests, T=0.7 top-p 0.95": ("none", 8, 12, 0.7, 0.95),
    "suffix of 4, 8 requests": ("suffix", 8, 12, 0.0, 1.0),
}


STEPS = {  # requests, manner of step_profile.py
    "plain step, 1 request, greedy": (1, "greedy"),
    "plain step, 8 requests, greedy": (8, "greedy"),
    "plain step, 8 requests, T=0.7 top-p 0.95": (8, "T=0.7 top-p 0.95"),
    "plain step, 8 requests, T=1 penalised": (8, "T=1 penalised"),
}
PASSES = {  # format, rows, context
    "pass, bf16, 1 row": ("bf16", 1, 0),
    "pass, bf16, 8 rows": ("bf16", 8, 0),
    "pass, bf16, 16 rows behind 2,000": ("bf16", 16, 2000),
    "pass, int8, 1 row": ("int8", 1, 0),
    "pass, int8, 8 rows": ("int8", 8, 0),
}
JOBS = (*ANSWERS, *STEPS, *PASSES)
Job = Callable[[], float]
"""What it measures, in seconds."""


def answers(threads: int) -> dict[str, Job]:
    """Seconds from the first token to the last."""
    from outrider import LLM, SamplingParams

    def load(drafter: str) -> LLM:
        return LLM(
            "smollm2-135m",
            device="cpu",
            threads=threads,
            max_batch=8,
            max_context=1024,
            drafter=drafter,
            draft_length=4,
        )

    models = {drafter: load(drafter) for drafter, *_ in ANSWERS.values()}
    asked = 0

    def answer(job: str) -> float:
        nonlocal asked
        asked += 1
        drafter, requests, tokens, temperature, top_p = ANSWERS[job]
        llm = models[drafter]
        prompts = [llm.encode_chat([{"role": "user", "content": f"{asked}. {text}"}]) for text in TEXTS[:requests]]
        params = [
            SamplingParams(temperature=temperature, top_p=top_p, max_tokens=tokens, seed=i, ignore_eos=True)
            for i in range(requests)
        ]
        first = None
        for _ in llm.stream(prompts, params):
            first = first or perf_counter()
        assert first is not None
        return perf_counter() - first

    return {job: partial(answer, job) for job in ANSWERS}


def steps() -> dict[str, Job]:
    """Seconds of a step after the prompts, the median, by the clock of step_profile.py."""
    script: Any = importlib.import_module("step_profile")
    llm = script.LLM(script.MODEL, drafter="suffix", max_batch=8, dtype="bf16", device="cpu")
    clock = script.Clock()
    script.instrument(llm, clock)
    ids = script.prompts_of(llm)

    def profile(requests: int, manner: str) -> float:
        found = script.profile(llm, clock, ids[:requests], manner, False, 24)
        return float(median(sum(step.values()) for step in found))

    return {job: partial(profile, *asked) for job, asked in STEPS.items()}


def passes() -> dict[str, Job]:
    """Seconds of a pass, the median of nine."""
    script: Any = importlib.import_module("cpu_pass")
    arms = {dtype: script.Arm(dtype) for dtype in ("bf16", "int8")}

    def run(dtype: str, rows: int, context: int) -> float:
        return float(median(arms[dtype].seconds(rows, context) for _ in range(9)))

    return {job: partial(run, *asked) for job, asked in PASSES.items()}


def worker(checkout: Path, threads: int) -> None:
    """Names of jobs in, seconds out."""
    sys.path.insert(0, str(checkout / "benchmarks"))
    jobs = answers(threads) | passes() | steps()  # the last wraps parts that all engines share
    for job in jobs.values():
        job()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        print(jobs[line.rstrip("\n")](), flush=True)


def compare(other: Path, pairs: int, threads: int) -> dict[str, list[float]]:
    def start(checkout: Path) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", "--threads", str(threads), str(checkout)]
        environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(process: subprocess.Popen[str], job: str = "") -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        if job:
            process.stdin.write(job + "\n")
            process.stdin.flush()
        if not (line := process.stdout.readline()):
            raise SystemExit("a checkout has stopped; its message is above")
        return line

    both = [start(other), start(ROOT)]
    for process in both:
        ask(process)
    ratios: dict[str, list[float]] = {job: [] for job in JOBS}
    for pair in range(pairs):
        for job in JOBS:
            seconds = {i: float(ask(both[i], job)) for i in ((0, 1) if pair % 2 else (1, 0))}
            ratios[job].append(seconds[0] / seconds[1])
    for process in both:
        process.kill()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.other, options.threads)
        return
    if not (options.other / "src" / "outrider").is_dir():
        parser.error(f"{options.other} is no checkout: it has no src/outrider")
    ratios = compare(options.other, options.pairs, options.threads)
    for job, found in ratios.items():
        found.sort()
        reach = max(0, int(len(found) / 2 - 1.96 * math.sqrt(len(found)) / 2))
        low, high = found[reach], found[-1 - reach]
        print(f"{job}: {median(found):.3f} ({low:.3f} to {high:.3f}), {len(found)} pairs")
    if options.out:
        from outrider.provenance import provenance

        kept = {"provenance": provenance(), "other_over_this": ratios}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
