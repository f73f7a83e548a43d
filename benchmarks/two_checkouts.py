"""Whether a change has made decoding slower: two checkouts answer the same requests by turns, pair by pair.

    python benchmarks/two_checkouts.py OTHER_CHECKOUT [--pairs 32] [--out FILE.json]

Both must have been built (`python setup.py build_ext --inplace`). Each is a process of its own; who goes first changes
with every pair. Printed are the medians of the other checkout's seconds over this one's, above 1 where this one is
faster, and the 95% intervals of the medians. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

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
JOBS = {  # drafter, requests, tokens, temperature, top-p
    "plain, 1 request": ("none", 1, 24, 0.0, 1.0),
    "plain, 8 requests, T=0.7 top-p 0.95": ("none", 8, 12, 0.7, 0.95),
    "suffix of 4, 8 requests": ("suffix", 8, 12, 0.0, 1.0),
}


def worker(threads: int) -> None:
    """Names of jobs in, seconds from the first token to the last out."""
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

    models = {drafter: load(drafter) for drafter, *_ in JOBS.values()}
    asked = 0

    def answer(job: str) -> float:
        nonlocal asked
        asked += 1
        drafter, requests, tokens, temperature, top_p = JOBS[job]
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

    for job in JOBS:
        answer(job)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        print(answer(line.rstrip("\n")), flush=True)


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
        worker(options.threads)
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
