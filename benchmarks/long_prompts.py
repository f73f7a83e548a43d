"""How fast prompts are read on this CPU, beside llama.cpp in the same minutes: seconds to the first token.

    python benchmarks/long_prompts.py [--tokens 2000] [--threads 1 --threads 2] [--ours int8 --ours bf16:avx2]
                                      [--llama PYTHON --gguf FILE …] [--batch 512] [--rounds 5] [--out FILE.json]

Each arm is a process of its own; arms take turns, prompt by prompt, so that a machine that slows down slows down for
all. Every prompt is another text, so that nobody has read any of it before. `--ours`: a number format, and after a
colon the instruction set to force. llama.cpp must be built for the same CPU (pip install llama-cpp-python, in an
environment of its own). Given are tokens a second by the fastest prompt, and by the quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 49_000
"""Of the default model's vocabulary, without the special ones."""

Reader = Callable[[list[int]], int]
"""Reads a prompt and gives the token that follows."""


def ours(dtype: str, threads: int, room: int) -> Reader:
    from outrider import LLM, SamplingParams

    llm = LLM(dtype=dtype, drafter="none", threads=threads, max_batch=1, max_context=room)
    params = SamplingParams(temperature=0, max_tokens=1)
    return lambda prompt: llm.generate([prompt], params)[0].token_ids[0]


def theirs(path: str, threads: int, room: int, batch: int) -> Reader:
    import llama_cpp

    model = llama_cpp.Llama(
        path,
        n_threads=threads,
        n_threads_batch=threads,
        n_ctx=room,
        n_batch=batch,
        n_ubatch=min(512, batch),
        verbose=False,
    )
    return lambda prompt: int(next(model.generate(prompt, temp=0.0)))


def serve(read: Reader) -> None:
    """A worker: prompts in, seconds out, a line of JSON each."""
    print("{}", flush=True)
    for line in sys.stdin:
        prompt = json.loads(line)
        start = perf_counter()
        token = read(prompt)
        print(json.dumps({"seconds": perf_counter() - start, "token": token}), flush=True)


class Arm:
    def __init__(self, name: str, python: str, what: list[object], kernels: str = "") -> None:
        self.name = name
        self.seconds: list[float] = []
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, **({"OUTRIDER_KERNELS": kernels} if kernels else {})}
        command = [python, __file__, "--worker", json.dumps(what)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=nothing)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended before it answered")
        found: dict[str, Any] = json.loads(line)
        return found

    def read(self, prompt: list[int]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(prompt) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def prompt_of(tokens: int, number: int) -> list[int]:
    return [1 + (7919 * number + 104_729 * i + i * i) % TOKENS for i in range(tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--ours", action="append", default=[], help="FORMAT[:INSTRUCTIONS]")
    parser.add_argument("--llama", help="the Python of an environment with llama-cpp-python")
    parser.add_argument("--gguf", action="append", default=[], help="files for llama.cpp")
    parser.add_argument("--batch", type=int, action="append", help="llama.cpp's n_batch; 512 unless given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, *rest = json.loads(options.worker)
        serve((ours if kind == "ours" else theirs)(*rest))
        return

    from outrider.models.native.library import chosen_kernels
    from outrider.provenance import provenance

    room = options.tokens + 48
    arms = []
    for threads in options.threads or [os.cpu_count() or 1]:
        for arm in options.ours or ["int8", "bf16"]:
            dtype, _, kernels = arm.partition(":")
            name = f"{dtype} {kernels or chosen_kernels()}, threads {threads}"
            arms.append(Arm(name, sys.executable, ["ours", dtype, threads, room], kernels))
        for path in options.gguf:
            for batch in options.batch or [512]:
                name = f"llama.cpp {Path(path).stem}, n_batch {batch}, threads {threads}"
                arms.append(Arm(name, options.llama, ["theirs", path, threads, room, batch]))
    for arm in arms:
        arm.read(prompt_of(64, 0))
    for turn in range(options.rounds):
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            arm.seconds.append(arm.read(prompt_of(options.tokens, turn + 1)))
            print(f"{arm.name}: {arm.seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    speeds = {}
    for arm in arms:
        arm.close()
        rates = sorted(options.tokens / seconds for seconds in arm.seconds)
        low, middle, high = statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
        speeds[arm.name] = {"best": round(rates[-1]), "quartiles": [round(low), round(middle), round(high)]}
        print(
            f"{arm.name:48} best {rates[-1]:7.0f}  quartiles {low:7.0f} {middle:7.0f} {high:7.0f} tokens/s", flush=True
        )
    if options.out:
        result = {
            "provenance": provenance(),
            "tokens": options.tokens,
            "rounds": options.rounds,
            "tokens_per_second": speeds,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
