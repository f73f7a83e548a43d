"""What lookup adds on a GPU, by kind of text: plain decoding, the head alone, and `auto`, which looks up beside it.

    python benchmarks/gpu_lookup.py [--twin 8b] [--batches 1,4,16] [--sampling greedy,t0.7-p0.9] [--rounds 5] [--out F]

The arms answer the same requests in turns, who goes first changes with every round; every kind is asked alone. Printed
per cell: tokens a second against plain decoding (paired over the rounds, with 95% intervals), tokens a pass, who
proposed what was accepted, how many answers have the same tokens as plain decoding (all, or something is wrong), and
what was recorded while requests waited (0). `--twin`: the text of the default model at the cost of a larger one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from outrider.bench.concurrency import BenchRequest, Prompt, requests_of, serve
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.names import parse as arm_name
from outrider.bench.ours import OurArm
from outrider.bench.questions import CATEGORIES, builtin
from outrider.bench.sampling import parse
from outrider.bench.statistics import paired_ratio
from outrider.bench.timing import Timing
from outrider.llm import LLM
from outrider.models.checkpoints.progress import SilentProgress

ARMS = ("plain", "head", "auto")
KINDS = ("edit", "summarise", "qa", "code", "chat")
"""`qa`: questions about a text that is given, as in retrieval."""
CONTEXT = 1536
Wave = tuple[float, list[Timing]]
"""Tokens a second, and the answers."""


def watched(llm: LLM, origins: Counter[str]) -> None:
    """Count who proposed every token from now on."""
    engine = llm.engine
    step = engine.step

    def counted() -> Any:
        chunks = step()
        for chunk in chunks:
            origins.update(chunk.origins)
        return chunks

    engine.step = counted  # type: ignore[method-assign]


def wave(llm: LLM, requests: Sequence[BenchRequest], batch: int, salt: str) -> Wave:
    started = perf_counter()
    timings = serve(llm, requests, batch, salt)
    return sum(timing.tokens for timing in timings) / (perf_counter() - started), timings


def cell(
    arms: dict[str, LLM],
    origins: dict[str, Counter[str]],
    requests: list[BenchRequest],
    batch: int,
    rounds: int,
    name: str,
) -> list[dict[str, Any]]:
    waves: dict[str, list[Wave]] = {arm: [] for arm in arms}
    for arm, llm in arms.items():
        serve(llm, requests[:batch], batch, f"{name} warm-up")
        origins[arm].clear()
    for number in range(rounds):
        order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
        for arm in order:
            waves[arm].append(wave(arms[arm], requests, batch, f"{name} {number}"))
    found = []
    for arm in arms:
        ratio = paired_ratio([rate for rate, _ in waves[arm]], [rate for rate, _ in waves["plain"]])
        passes = [gained for _, timings in waves[arm] for timing in timings for gained in timing.passes or ()]
        same = [
            a.token_ids == b.token_ids
            for (_, ours), (_, theirs) in zip(waves[arm], waves["plain"], strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        found.append(
            {"arm": arm, "rates": [rate for rate, _ in waves[arm]], "ratio": ratio.value, "low": ratio.low}
            | {"high": ratio.high, "tokens_per_pass": sum(passes) / len(passes), "origins": dict(origins[arm])}
            | {"identical": sum(same), "answers": len(same), "late_recordings": arms[arm].engine.stats.late_recordings}
        )
    return found


def shown(kind: str, batch: int, method: str, entries: Sequence[dict[str, Any]]) -> None:
    for entry in entries:
        total = sum(entry["origins"].values())
        shares = " ".join(f"{name} {count / total:.0%}" for name, count in sorted(entry["origins"].items()))
        interval = (entry["high"] - entry["low"]) / 2
        print(
            f"{batch:3} {method:10} {kind:10} {entry['arm']:6} {entry['ratio']:5.2f} ± {interval:.2f}  "
            f"{entry['tokens_per_pass']:.2f} a pass  same {entry['identical']}/{entry['answers']}  "
            f"late {entry['late_recordings']}  {shares}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--twin")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(CATEGORIES)}")
    parser.add_argument("--sampling", default="greedy,t0.7-p0.9")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    target = MeasuredModel(
        options.model,
        options.dtype,
        options.device,
        None,
        SilentProgress(),
        max_context=CONTEXT,
        max_batch=max(batches),
        twin=options.twin,
    )
    report: dict[str, Any] = {"provenance": target.provenance(0), "options": {**vars(options), "out": None}}
    arms, origins = {}, {}
    for name in ARMS:
        arm = OurArm(arm_name(name), target)
        started = perf_counter()
        arm.prepare()
        arms[name], origins[name] = arm.llm, Counter[str]()
        watched(arm.llm, origins[name])
        print(f"{name} prepared in {perf_counter() - started:.1f} s", flush=True)
    report["cells"] = []
    for batch in batches:
        for method in options.sampling.split(","):
            for kind in options.kinds.split(","):
                asked = [q for q in builtin() if q.category == kind]
                prompts = [Prompt(q.id, target.encode([{"role": "user", "content": q.turns[0]}])) for q in asked]
                prompts = [prompt for prompt in prompts if len(prompt.token_ids) + options.tokens <= CONTEXT]
                requests = requests_of(prompts, batch, parse(method), options.tokens, 0)
                found = cell(arms, origins, requests, batch, options.rounds, f"{batch} {method} {kind}")
                shown(kind, batch, method, found)
                report["cells"].append({"batch": batch, "sampling": method, "kind": kind, "arms": found})
                if options.out:
                    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    same = all(entry["identical"] == entry["answers"] for each in report["cells"] for entry in each["arms"])
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
