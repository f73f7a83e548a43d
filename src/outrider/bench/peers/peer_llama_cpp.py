"""llama.cpp through llama-cpp-python: plain, and its prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

_LOOKUP_TOKENS = 10


def load(config: dict[str, Any]) -> Peer:
    _without_repacking()
    return Peer(config)


def _without_repacking() -> None:
    """Its AMX code, chosen for repacked weights, dies of an illegal instruction on some virtual machines. `Llama`
    offers no such option, so the defaults it starts from are changed."""
    library = llama_cpp.llama_cpp
    defaults = library.llama_model_default_params

    def changed() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    library.llama_model_default_params = changed


class Peer:
    def __init__(self, config: dict[str, Any]) -> None:
        lookup = config["method"] == "lookup"
        self._model = llama_cpp.Llama(
            config["gguf"],
            n_ctx=config["max_context"],
            n_threads=config["threads"],
            n_threads_batch=config["threads"],
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=_LOOKUP_TOKENS) if lookup else None,
            verbose=False,
        )
        self._evaluated = 0
        evaluate = self._model.eval

        def counted(tokens: Sequence[int]) -> None:
            self._evaluated += 1
            evaluate(tokens)

        self._model.eval = counted

    def versions(self) -> dict[str, str]:
        return {"llama-cpp-python": llama_cpp.__version__}

    def run(
        self,
        ids: list[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        emit: Callable[[Sequence[int]], None],
    ) -> None:
        self._model.reset()  # otherwise the common beginning of two prompts is not computed again
        self._model.set_seed(seed)
        self._evaluated = 0
        stream = self._model.generate(ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
        batch: list[int] = []
        seen = 0
        for token in islice(stream, max_tokens):
            # Tokens of one pass come one after the other without an evaluation in between.
            if batch and self._evaluated != seen:
                emit(batch)
                batch = []
            seen = self._evaluated
            batch.append(token)
        emit(batch)
        stream.close()
