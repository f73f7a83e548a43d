"""OpenVINO GenAI on the GGUF file: plain, and its prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import openvino
import openvino_genai

_LOOKUP_TOKENS = 10
_LOOKUP_NGRAM = 3


def load(config: dict[str, Any]) -> Peer:
    return Peer(config)


class _Tap(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Hands on what each pass brought."""

    def __init__(self, emit: Callable[[Sequence[int]], None]) -> None:
        super().__init__()
        self._emit = emit

    def write(self, token: Any) -> Any:
        self._emit([int(token)] if isinstance(token, int) else [int(each) for each in token])
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class Peer:
    def __init__(self, config: dict[str, Any]) -> None:
        self._lookup = config["method"] == "lookup"
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": config["threads"]}
        if self._lookup:
            options["prompt_lookup"] = True
        self._pipeline = openvino_genai.LLMPipeline(config["gguf"], "CPU", **options)

    def versions(self) -> dict[str, str]:
        return {"openvino": openvino.__version__, "openvino-genai": openvino_genai.__version__}

    def run(
        self,
        ids: list[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        emit: Callable[[Sequence[int]], None],
    ) -> None:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = max_tokens
        generation.ignore_eos = True
        if temperature > 0:
            generation.do_sample = True
            generation.temperature = temperature
            generation.top_p = 1.0
            generation.rng_seed = seed
        if self._lookup:
            generation.num_assistant_tokens = _LOOKUP_TOKENS
            generation.max_ngram_size = _LOOKUP_NGRAM
        prompt = numpy.array([ids], dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(numpy.ones_like(prompt)))
        self._pipeline.generate(inputs, generation, _Tap(emit))
