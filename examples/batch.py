"""Many prompts in one batch, each with its own sampling: `python examples/batch.py [MODEL]`."""

from __future__ import annotations

import sys

from outrider import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "Rivers flow to the"]


def main(model: str = "smollm2-135m") -> None:
    params = [SamplingParams(max_tokens=32, temperature=t, seed=7) for t in (0.0, 0.8, 0.0, 1.0)]
    with LLM(model, max_batch=len(PROMPTS)) as llm:
        for prompt, done in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
            print(f"{prompt!r} → {done.text!r}")
            print(f"  {len(done.token_ids)} tokens in {done.steps} passes, {done.accepted} of them drafted")


if __name__ == "__main__":
    main(*sys.argv[1:])
