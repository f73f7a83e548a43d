"""vLLM's CPU build, one engine step at a time: plain, and its n-gram speculation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import vllm

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_NGRAM = {"method": "ngram", "num_speculative_tokens": 10, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def load(config: dict[str, Any]) -> Peer:
    return Peer(config)


class Peer:
    def __init__(self, config: dict[str, Any]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", str(config["threads"]))
        self._engine = vllm.LLM(
            config["folder"],
            dtype=_DTYPES[config["dtype"]],
            max_model_len=config["max_context"],
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config=_NGRAM if config["method"] == "ngram" else None,
        ).llm_engine
        self._ids = count()

    def versions(self) -> dict[str, str]:
        return {"vllm": vllm.__version__}

    def run(
        self,
        ids: list[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        emit: Callable[[Sequence[int]], None],
    ) -> None:
        params = vllm.SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(str(next(self._ids)), {"prompt_token_ids": ids}, params)
        seen = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens = output.outputs[0].token_ids
                emit(tokens[seen:])
                seen = len(tokens)
