"""The first answer of a process on a machine of which nothing is known: `auto` against plain decoding.

    python benchmarks/cold_start.py --questions FILE [--kernels avx2,base] [--dtype bf16] [--sampling greedy,t0.7-p0.9]
                                    [--model NAME] [--threads 2] [--tokens 256] [--limit 6] [--out FILE.json]

Every answer is a process of its own, with no cost table on disk, timed from asking to the last token; loading is not
counted. Arms take turns, who is first alternates. `--kernels`: instruction sets to force, `best` for none. Exit status
1 if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

from outrider.bench.questions import interleaved, read_questions
from outrider.bench.sampling import SamplingMethod, parse_all
from outrider.bench.timing import Sampling
from outrider.models.checkpoints.catalog import cache_root
from outrider.provenance import provenance

ARMS = ("plain", "auto")
LONGEST = 1500


def answer(wanted: dict[str, Any]) -> None:
    """In a process of its own: seconds, tokens of the prompt, the answer."""
    from outrider import LLM
    from outrider.bench.ours import sampling_params

    llm = LLM(wanted["model"], device="cpu", threads=wanted["threads"], dtype=wanted["dtype"], max_context=2048)
    prompt = llm.encode_chat([{"role": "user", "content": wanted["text"]}])[:LONGEST]
    params = sampling_params(Sampling(**wanted["sampling"]))
    began = perf_counter()
    tokens = llm.generate([prompt], params, speculate=wanted["arm"] == "auto")[0].token_ids
    print(json.dumps({"seconds": perf_counter() - began, "prompt": len(prompt), "tokens": tokens}))


def asked(wanted: dict[str, Any], kernels: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "models").symlink_to(cache_root() / "models")
        environment = {**os.environ, "OUTRIDER_CACHE": folder}
        environment.pop("OUTRIDER_KERNELS", None)
        if kernels != "best":
            environment["OUTRIDER_KERNELS"] = kernels
        command = [sys.executable, __file__, "--answer"]
        done = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cell(options: argparse.Namespace, kernels: str, method: SamplingMethod) -> dict[str, Any]:
    how = Sampling(options.tokens, method.temperature, 1, method.top_k, method.top_p)
    found, different = list[dict[str, Any]](), 0
    for number, question in enumerate(interleaved(read_questions(options.questions))[: options.limit]):
        wanted = {name: getattr(options, name) for name in ("model", "threads", "dtype")}
        wanted |= {"text": question.turns[0], "sampling": asdict(how)}
        told = {arm: asked(wanted | {"arm": arm}, kernels) for arm in (ARMS if number % 2 else ARMS[::-1])}
        different += told["plain"]["tokens"] != told["auto"]["tokens"]
        seconds = {arm: round(told[arm]["seconds"], 3) for arm in ARMS}
        ratio = round(seconds["plain"] / seconds["auto"], 3)
        found.append({"question": question.id, "prompt": told["plain"]["prompt"], **seconds, "ratio": ratio})
    ratios = [each["ratio"] for each in found]
    entry = {"kernels": kernels, "dtype": options.dtype, "sampling": method.name, "different": different}
    print(
        f"{kernels} {options.dtype} {method.name}: {geometric_mean(ratios):.2f} of plain, {min(ratios):.2f} to "
        f"{max(ratios):.2f}; {different} of {len(found)} differ",
        flush=True,
    )
    return {**entry, "ratio": geometric_mean(ratios), "worst": min(ratios), "answers": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, help="in Spec-Bench's format")
    parser.add_argument("--kernels", default="best")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--sampling", type=parse_all, default=parse_all("greedy"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(json.load(sys.stdin))
        return
    if options.questions is None:
        parser.error("--questions is needed")
    cells = [cell(options, kernels, how) for kernels in options.kernels.split(",") for how in options.sampling]
    if options.out:
        options.out.write_text(json.dumps({"provenance": provenance(), "cells": cells}, indent=1) + "\n")
    sys.exit(1 if any(each["different"] for each in cells) else 0)


if __name__ == "__main__":
    main()
