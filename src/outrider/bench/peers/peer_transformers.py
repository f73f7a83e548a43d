"""transformers' own `generate`: plain, static cache, prompt lookup, assisted by a smaller model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LOOKUP_TOKENS = 10


def load(config: dict[str, Any]) -> Peer:
    return Peer(config)


class _Tap:
    """A streamer that hands on what each pass brought; the first thing it is given is the prompt."""

    def __init__(self, emit: Callable[[Sequence[int]], None]) -> None:
        self._emit = emit
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        if self._prompt_seen:
            self._emit(value.reshape(-1).tolist())
        self._prompt_seen = True

    def end(self) -> None:
        pass


class Peer:
    def __init__(self, config: dict[str, Any]) -> None:
        transformers.logging.set_verbosity_error()
        if config["dtype"] not in _DTYPES:
            raise ValueError(f"transformers runs {', '.join(_DTYPES)} here, not {config['dtype']}")
        torch.set_num_threads(config["threads"])
        self._device = config["device"]
        self._dtype = _DTYPES[config["dtype"]]
        self._model = self._load(config["folder"])
        self._model.generation_config = transformers.GenerationConfig(pad_token_id=0)
        self._extra: dict[str, Any] = {}
        if config["method"] == "static":
            self._extra["cache_implementation"] = "static"
        elif config["method"] == "lookup":
            self._extra["prompt_lookup_num_tokens"] = _LOOKUP_TOKENS
        elif config["method"] == "assisted":
            self._extra["assistant_model"] = self._load(config["path"])

    def _load(self, folder: str) -> Any:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self._dtype)
        return model.to(self._device).eval()

    def versions(self) -> dict[str, str]:
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def run(
        self,
        ids: list[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        emit: Callable[[Sequence[int]], None],
    ) -> None:
        torch.manual_seed(seed)
        prompt = torch.tensor([ids], device=self._device)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                streamer=_Tap(emit),
                **sampling,
                **self._extra,
            )
