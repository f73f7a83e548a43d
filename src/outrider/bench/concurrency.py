"""Many requests at a time through one engine: whoever finishes makes room for the next, as in a busy server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.bench.ours import sampling_params
from outrider.bench.sampling import SamplingMethod
from outrider.bench.timing import Sampling, Stopwatch, Timing
from outrider.engine.request import Request
from outrider.llm import LLM

_ENOUGH = 8
"""Questions of a round, where there are so many: all categories of a suite should be heard."""
_SHORTEST = 0.25
"""Of the longest answer."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, ready to be asked."""

    question: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """`lap`: how often its question has been asked before it in the same round."""

    prompt: Prompt
    sampling: Sampling
    lap: int


def requests_of(
    prompts: Sequence[Prompt], concurrency: int, method: SamplingMethod, max_tokens: int, seed: int
) -> list[BenchRequest]:
    """Those of a round: at least half as many again as are in flight, which join while others run; answers have from a
    quarter to the whole of `max_tokens` tokens, so that they leave one by one."""
    made = []
    for index in range(max(concurrency + (concurrency + 1) // 2, min(_ENOUGH, len(prompts)))):
        share = _SHORTEST + (1 - _SHORTEST) * ((index + 1) * _GOLDEN % 1)
        sampling = Sampling(
            max(2, round(share * max_tokens)), method.temperature, seed + index, method.top_k, method.top_p
        )
        made.append(BenchRequest(prompts[index % len(prompts)], sampling, index // len(prompts)))
    return made


def begins_with(number: int, requests: int) -> int:
    """The request that a round begins with, each with another: who shares a step with whom, and who waits for whose
    prompt, is another thing in every round, and so not what tells two arms apart."""
    return round(number * _GOLDEN * requests) % requests


def serve(llm: LLM, asked: Sequence[BenchRequest], concurrency: int, salt: str, *, begin: int = 0) -> list[Timing]:
    """Answer all requests from `begin` on, then those before it, at most `concurrency` of them in flight; timings in
    the order of the requests.

    They have no use for what was computed or said under another salt, or for the same question before: every round, and
    every repetition of a question, finds caches and memories as the first one does.
    """
    coming = deque(enumerate(asked))
    coming.rotate(-begin)
    running: dict[int, tuple[int, Request, Stopwatch]] = {}
    timings: dict[int, Timing] = {}
    engine = llm.engine
    try:
        while coming or running:
            while coming and len(running) < concurrency:
                index, each = coming.popleft()
                watch = Stopwatch()
                params = sampling_params(each.sampling)
                request = llm.requests.build(each.prompt.token_ids, params, cache_salt=f"{salt}.{each.lap}")
                running[request.id] = (index, request, watch)
                engine.add(request)
            for chunk in engine.step():
                index, request, watch = running[chunk.index]
                if request.failure is not None:
                    raise request.failure
                watch.emit(chunk.token_ids)
                if request.ended:
                    timings[index] = watch.timing(request.drafted)
                    del running[request.id]
    finally:
        for _, request, _ in running.values():  # stopped on the way
            engine.remove(request)
    return [timings[index] for index in range(len(asked))]
