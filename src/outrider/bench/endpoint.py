"""An arm behind an OpenAI-compatible endpoint: the same prompt, streamed, counted by the server's own usage report."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from outrider.bench.timing import WARM_UP, ArmUnavailable, Sampling, Timing
from outrider.models.checkpoints.tokenizer import Tokenizer

_TIMEOUT = 600
_WARM_PROMPT = "Name three rivers, and say where each of them ends."


class EndpointArm:
    """`url` is the base, as in http://localhost:8000/v1; a key is taken from OPENAI_API_KEY.

    The prompt is sent as token ids, or as text to a server that refuses those. What comes back is text, so token ids
    and target passes are not known; the number of tokens is what the server reports.
    """

    def __init__(self, name: str, url: str, tokenizer: Tokenizer) -> None:
        self.name = name
        self._url = url.rstrip("/")
        self._tokenizer = tokenizer
        self._model = ""
        self._as_text = False

    def prepare(self) -> None:
        with self._open("/models", None) as answer:
            listed = json.load(answer).get("data") or []
        if not listed:
            raise ArmUnavailable(f"{self._url}/models lists no model")
        self._model = str(listed[0]["id"])
        prompt = self._tokenizer.encode(_WARM_PROMPT)
        try:
            self.run(prompt, WARM_UP)
        except ArmUnavailable:
            self._as_text = True
            self.run(prompt, WARM_UP)

    def run(self, prompt: Sequence[int], sampling: Sampling) -> Timing:
        text = b"".join(map(self._tokenizer.token_bytes, prompt)).decode("utf-8", errors="replace")
        request = {
            "model": self._model,
            "prompt": text if self._as_text else list(prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tokens, times = 0, []
        started = perf_counter()
        with self._open("/completions", request) as answer:
            for event in _events(answer):
                if any(choice.get("text") for choice in event.get("choices") or []):
                    times.append(perf_counter())
                if usage := event.get("usage"):
                    tokens = int(usage["completion_tokens"])
        if not times or not tokens:
            raise ArmUnavailable(f"{self._url} streamed no text, or no usage with its token count")
        return Timing(tokens, None, None, times[0] - started, times[-1] - times[0])

    def close(self) -> None:
        pass

    @property
    def pids(self) -> Sequence[int]:
        return ()

    @property
    def versions(self) -> dict[str, str]:
        return {"model": self._model}

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers), timeout=_TIMEOUT)
        except (OSError, ValueError) as error:
            reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
            raise ArmUnavailable(f"{self._url}{path} does not answer ({reason}); is the server up?") from error


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """Server-sent events up to [DONE]."""
    for line in answer:
        text = line.decode("utf-8").strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data:"):
            yield json.loads(text.removeprefix("data:"))
