"""What vLLM's offline engine makes of the requests of `service_load.py`, on the same model folder.

    python benchmarks/service_load.py --model FOLDER --device cuda --asked asked.json --out ours.json
    python benchmarks/vllm_service.py FOLDER asked.json [--rounds 3] [--prompts 8192,32000] [--out vllm.json]

Run it where vLLM is; nothing else is needed. All requests at once, as many in flight as vLLM likes, each beginning with
tokens of its own as there. Prompts travel as token ids; seeds, stop strings and detokenization are left out, which can
only make vLLM faster. `--prompts`: also first tokens of prompts so long, median of three.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

FIRST, SECOND = 1000, 2000
"""As `service_load.py` has it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("asked", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams, TokensPrompt, __version__

    asked: list[tuple[list[int], dict[str, Any]]] = json.loads(options.asked.read_text())
    lengths = [int(length) for length in options.prompts.split(",") if length]
    context = max([2560, *(length + 64 for length in lengths)])
    llm = LLM(model=options.model, skip_tokenizer_init=True, max_model_len=context, gpu_memory_utilization=0.8)
    params = [SamplingParams(**told, detokenize=False) for _, told in asked]
    rounds = []
    for number in range(options.rounds + 1):  # the first warms up
        prompts = [
            TokensPrompt(prompt_token_ids=[FIRST + number, SECOND + i, *prompt]) for i, (prompt, _) in enumerate(asked)
        ]
        started = perf_counter()
        answers = llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - started
        tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
        rounds.append({"seconds": seconds, "tokens": tokens})
        print(f"vllm {__version__}: {tokens / seconds:.0f} tokens/s, {seconds:.2f} s", flush=True)
    firsts = {}
    for length in lengths:
        one = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        taken = []
        for number in range(4):
            ids = random.Random(f"{length} {number}").choices(range(10, 40_000), k=length)
            started = perf_counter()
            llm.generate([TokensPrompt(prompt_token_ids=ids)], one, use_tqdm=False)
            taken.append(perf_counter() - started)
        firsts[length] = median(taken[1:])
        print(f"first token of {length}: {firsts[length]:.3f} s", flush=True)
    if options.out:
        kept = {"vllm": __version__, "requests": len(asked), "rounds": rounds[1:], "first_token_seconds": firsts}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
