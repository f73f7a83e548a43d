"""What decoding costs on this CPU: passes by rows on every instruction set it has, plain and automatic decoding in
every number format, and llama.cpp beside them in the same minutes.

    python benchmarks/cpu_everywhere.py --out results.json
    python benchmarks/cpu_everywhere.py --llama /path/to/venv/bin/python --gguf q4_0.gguf --gguf q8_0.gguf
    python benchmarks/cpu_everywhere.py --model q4_k.gguf --dtype native --drafter suffix --drafter model:small.gguf …

Each arm is a process of its own that answers one question at a time; arms take turns, question by question, so that a
machine that slows down slows down for all. Tokens per second count from the first token to the last. `auto` meets every
question once only: its lookups remember. Needs an otherwise idle machine. llama.cpp must be built for the same CPU
(pip install llama-cpp-python, in an environment of its own).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
KINDS = ("chat", "code", "edit", "qa", "summarise")
ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "src" / "outrider" / "bench" / "suite"

Question = dict[str, Any]


def ours(name: str, dtype: str, drafter: str, threads: int) -> None:
    """A worker: questions in, timings out, a line of JSON each."""
    from outrider import LLM, SamplingParams

    llm = LLM(name, dtype=dtype, drafter=drafter, threads=threads, max_batch=1, max_context=2048)

    def answer(text: str, tokens: int) -> Question:
        stamps = []
        ids: list[int] = []
        params = SamplingParams(temperature=0, max_tokens=tokens)
        for chunk in llm.stream([llm.encode_chat([{"role": "user", "content": text}])], params):
            stamps.append(perf_counter())
            ids += chunk.token_ids
        return {"seconds": stamps[-1] - stamps[0], "tokens": len(ids) - 1, "ids": ids}

    _serve(answer)


def theirs(path: str, threads: int) -> None:
    """The same with llama.cpp, in its own environment."""
    import llama_cpp

    model = llama_cpp.Llama(path, n_threads=threads, n_threads_batch=threads, n_ctx=2048, verbose=False)

    def answer(text: str, tokens: int) -> Question:
        stamps = []
        given = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for token in model.generate(model.tokenize(given.encode(), special=True), temp=0.0):
            stamps.append(perf_counter())
            if len(stamps) > tokens or token == model.token_eos():
                break
        return {"seconds": stamps[-1] - stamps[0], "tokens": len(stamps) - 1}

    _serve(answer)


def _serve(answer: Any) -> None:
    answer("Hello.", 8)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


class Arm:
    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=nothing)
        self._read()

    def _read(self) -> Question:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended before it answered")
        found: Question = json.loads(line)
        return found

    def ask(self, text: str, tokens: int) -> Question:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"text": text, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def passes(name: str, dtypes: Sequence[str], threads: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a pass behind 64 and 1024 tokens, by instruction set, format and rows: the best of nine."""
    from outrider.models.checkpoints.checkpoint import open_checkpoint
    from outrider.models.checkpoints.progress import SilentProgress
    from outrider.models.load import load_model, placement
    from outrider.models.native.library import FORCED, kernels_here

    checkpoint = open_checkpoint(name, SilentProgress())
    found: dict[str, dict[str, list[float]]] = {}
    for kernels in kernels_here():
        os.environ[FORCED] = kernels
        for dtype in dtypes:
            place = placement(device="cpu", dtype=dtype, bitwise=None, threads=threads, max_batch=1, max_context=1280)
            model: Any = load_model(checkpoint, place)
            for context in (64, 1024):
                best = [min(model.measure(rows, context) for _ in range(9)) * 1e3 for rows in ROWS]
                found.setdefault(kernels, {})[f"{dtype} behind {context}"] = [round(ms, 2) for ms in best]
    os.environ.pop(FORCED)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--questions", type=int, default=4, help="of each kind")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--model", default="smollm2-135m", help="ours")
    parser.add_argument("--dtype", action="append", help="ours; bf16 and int8 unless given")
    parser.add_argument("--drafter", action="append", help="besides none; auto unless given")
    parser.add_argument("--llama", help="the Python of an environment with llama-cpp-python")
    parser.add_argument("--gguf", action="append", default=[], help="files for llama.cpp")
    parser.add_argument("--no-passes", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, *rest = json.loads(options.worker)
        (ours if kind == "ours" else theirs)(*rest)
        return

    def worker(python: str, *what: object) -> list[str]:
        return [python, __file__, "--worker", json.dumps(what)]

    from outrider.models.native.library import chosen_kernels
    from outrider.provenance import provenance

    dtypes, drafters, threads = options.dtype or ["bf16", "int8"], options.drafter or ["auto"], options.threads
    result: dict[str, Any] = {
        "provenance": provenance() | {"kernels": chosen_kernels()},
        "model": Path(options.model).name,
        "threads": threads,
        "tokens": options.tokens,
    }
    if not options.no_passes:
        result["passes"] = {"rows": ROWS, **passes(options.model, dtypes, threads)}
        for kernels, formats in result["passes"].items():
            if kernels == "rows":
                continue
            for name, times in formats.items():
                print(f"{kernels:8} {name:18}", *(f"{r}:{ms}" for r, ms in zip(ROWS, times, strict=True)), flush=True)
    arms = [
        Arm(f"{dtype} {Path(drafter).stem}", worker(sys.executable, "ours", options.model, dtype, drafter, threads))
        for dtype in dtypes
        for drafter in ("none", *drafters)
    ]
    arms += [
        Arm(f"llama.cpp {Path(path).stem}", worker(options.llama, "theirs", path, threads)) for path in options.gguf
    ]
    timings: dict[str, list[Question]] = {arm.name: [] for arm in arms}
    for kind in KINDS:
        lines = (SUITE / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()[: options.questions]
        for i, line in enumerate(lines):
            for arm in arms[i % len(arms) :] + arms[: i % len(arms)]:
                timings[arm.name].append({"kind": kind, **arm.ask(json.loads(line)["turns"][0], options.tokens)})
    for arm in arms:
        arm.close()
    result["speeds"] = speeds = {}
    for name, answers in timings.items():
        seconds, tokens = (sum(answer[part] for answer in answers) for part in ("seconds", "tokens"))
        rates = [answer["tokens"] / answer["seconds"] for answer in answers if answer["seconds"]]
        speeds[name] = {"tokens_per_second": round(tokens / seconds, 1), "median": round(statistics.median(rates), 1)}
        plain = timings.get(f"{name.split()[0]} none", [])
        if plain and not name.endswith(" none"):
            pairs = [(a, b) for a, b in zip(answers, plain, strict=True) if a["seconds"] and b["seconds"]]
            ratios = [b["seconds"] / a["seconds"] for a, b in pairs]
            speeds[name] |= {
                "ratio": round(sum(b["seconds"] for _, b in pairs) / sum(a["seconds"] for a, _ in pairs), 3),
                "worst": round(min(ratios), 3),
                "by_kind": {
                    kind: round(
                        statistics.mean(r for r, (a, _) in zip(ratios, pairs, strict=True) if a["kind"] == kind), 3
                    )
                    for kind in KINDS
                },
                "identical": all(a["ids"] == b["ids"] for a, b in pairs),
            }
        print(f"{name:24}", *(f"{key} {value}" for key, value in speeds[name].items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
