"""Two streams read by turns; both run in one batch: `python examples/streaming.py [MODEL]`."""

from __future__ import annotations

import sys
from itertools import zip_longest

from outrider import LLM, SamplingParams


def main(model: str = "smollm2-135m") -> None:
    params = SamplingParams(max_tokens=48, temperature=0.7, seed=1)
    with LLM(model, max_batch=2) as llm:
        left, right = (llm.stream(prompt, params) for prompt in ("A poem about rivers:", "A poem about stones:"))
        for chunks in zip_longest(left, right):
            for name, chunk in zip(("rivers", "stones"), chunks, strict=True):
                if chunk is not None and chunk.text:
                    drafted = sum(origin != "target" for origin in chunk.origins)
                    print(f"{name}: {chunk.text!r} ({len(chunk.token_ids)} tokens in one pass, {drafted} drafted)")


if __name__ == "__main__":
    main(*sys.argv[1:])
