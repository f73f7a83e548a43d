"""Speed of the core on this CPU: ratios in one run, arms interleaved prompt by prompt, greedy, batch 1, decode only.

    python benchmarks/core_speed.py [--tokens 128] [--out benchmarks/results/NAME.json]

Arms: transformers' eager generate (bf16), our plain decoding, our suffix drafter with automatic length. Prints a
table and writes every measurement with its provenance. Leave the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch
from prompts import CHAT, EDIT
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider import LLM, SamplingParams
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress

MODEL = "smollm2-135m"


def transformers_model() -> Any:
    from transformers import AutoModelForCausalLM

    folder = open_checkpoint(MODEL, SilentProgress()).path
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def transformers_rate(model: Any, ids: list[int], tokens: int) -> float:
    """Decode tokens per second: the time of one more token than `tokens`, less that of a single one (the prefill)."""

    def seconds(count: int) -> float:
        start = perf_counter()
        with torch.inference_mode():
            model.generate(
                torch.tensor([ids]), min_new_tokens=count, max_new_tokens=count, do_sample=False, pad_token_id=2
            )
        return perf_counter() - start

    prefill = seconds(1)
    return tokens / (seconds(tokens + 1) - prefill)


def ours(llm: LLM, ids: list[int], tokens: int, speculate: bool) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    done = llm.generate([ids], params, speculate=speculate)[0]
    return {
        "tokens_per_second": done.tokens_per_second,
        "prefill_seconds": done.prefill_seconds,
        "tokens_per_pass": done.mean_acceptance_length,
        "token_ids": done.token_ids,
    }


def memory() -> dict[str, float]:
    """Peak resident memory of a fresh process that loads and generates, beyond what its imports take."""
    script = """
import resource, os, psutil, torch
from outrider import LLM, SamplingParams
import outrider.llm
before = psutil.Process().memory_info().rss
llm = LLM("smollm2-135m", max_batch=1)
llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
now = psutil.Process().memory_info().rss
print(before, peak, now)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    before, peak, now = map(int, out.split()[-3:])
    weights = 134_515_008 * 2
    cache = 30 * 2 * 3 * 64 * 2 * 128  # bytes touched by 128 positions
    return {
        "weights_mb": weights / 1e6,
        "cache_mb": cache / 1e6,
        "peak_mb": (peak - before) / 1e6,
        "resident_mb": (now - before) / 1e6,
        "peak_over_weights_and_cache": (peak - before) / (weights + cache),
    }


def provenance() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "load_before": psutil.getloadavg()[0],
        "model": MODEL,
        "dtype": "bf16",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--transformers-prompts", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    origin = provenance()
    footprint = memory()
    llm = LLM(MODEL, drafter="suffix")
    reference = transformers_model()
    ids = {kind: [llm.encode_chat([{"role": "user", "content": p}]) for p in prompts]
           for kind, prompts in (("edit", EDIT), ("chat", CHAT))}  # fmt: skip
    ours(llm, ids["chat"][0], 16, True), ours(llm, ids["chat"][0], 16, False)  # warm up

    against = []
    for prompt in track(ids["chat"][: options.transformers_prompts], "transformers"):
        theirs = transformers_rate(reference, prompt, options.tokens)
        against.append({"transformers": theirs, "plain": ours(llm, prompt, options.tokens, False)})
    pairs = {
        kind: [
            {name: ours(llm, prompt, options.tokens, name == "suffix") for name in order}
            for i, prompt in enumerate(track(prompts, kind))
            for order in [("plain", "suffix") if i % 2 else ("suffix", "plain")]
        ]
        for kind, prompts in ids.items()
    }
    ratios = {
        kind: [p["suffix"]["tokens_per_second"] / p["plain"]["tokens_per_second"] for p in found]
        for kind, found in pairs.items()
    }
    summary = {
        "plain_over_transformers": statistics.median(
            a["plain"]["tokens_per_second"] / a["transformers"] for a in against
        ),
        "transformers_tokens_per_second": statistics.median(a["transformers"] for a in against),
        "plain_tokens_per_second": statistics.median(
            p["plain"]["tokens_per_second"] for found in pairs.values() for p in found
        ),
        **{
            f"{kind}_{what}": value
            for kind, found in pairs.items()
            for what, value in {
                "suffix_over_plain_total": sum(1 / p["plain"]["tokens_per_second"] for p in found)
                / sum(1 / p["suffix"]["tokens_per_second"] for p in found),
                "suffix_over_plain_median": statistics.median(ratios[kind]),
                "suffix_over_plain_p5": sorted(ratios[kind])[int(0.05 * len(ratios[kind]))],
                "tokens_per_pass": statistics.mean(p["suffix"]["tokens_per_pass"] for p in found),
                "identical": sum(p["plain"]["token_ids"] == p["suffix"]["token_ids"] for p in found),
                "prompts": len(found),
            }.items()
        },
        **footprint,
    }
    table = Table("measure", "value")
    for name, value in summary.items():
        table.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
    for found in pairs.values():
        for pair in found:
            for arm in pair.values():
                del arm["token_ids"]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"provenance": origin, "summary": summary, "against_transformers": against, "pairs": pairs}
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
