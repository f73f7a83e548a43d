"""Many requests at once through the service that the server answers with, without HTTP: nothing lost, nothing changed.

    python benchmarks/service_load.py [--model NAME] [--device cuda] [--requests 256] [--batch N] [--rounds 3]
                                      [--alone 64] [--asked FILE.json] [--out FILE.json]

Requests are of mixed lengths (prompts of 20 to 2,000 tokens, answers of 16 to 256) and mixed sampling (greedy, top-p,
min-p, penalties, logprobs, stop strings). All arrive together, plainly and with `auto` in turn, `--rounds` times; each
begins with tokens of its own, so that nothing of it is in the cache. After each round `--alone` of them, others each
time, are answered alone and plainly: what was said together must be equal to that. Exit status 1 if one was lost or
differs. `--asked` keeps the requests, for `vllm_service.py` to ask vLLM the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

from outrider import LLM, AsyncLLM, SamplingParams
from outrider.bench.questions import builtin, interleaved
from outrider.cli.memory import keep_for_good
from outrider.core.request import Completion
from outrider.provenance import provenance

LENGTHS = (16, 32, 64, 96, 128, 192, 256)
FIRST, SECOND = 1000, 2000
"""The tokens that the first request of the first round begins with."""
LONG = (0, 0, 0, 1, 0, 0, 4, 0, 0, 12)
"""How many other questions stand before the one that is asked."""
MANNERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "repetition_penalty": 1.1},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0.9, "top_k": 40, "stop": ["\n\n\n"]},
)


class Asked(NamedTuple):
    prompt: list[int]
    params: SamplingParams


class Round(NamedTuple):
    answers: list[Completion | None]
    """None: lost."""
    first_tokens: list[float]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers if answer is not None)


def asked(llm: LLM, count: int) -> list[Asked]:
    """Of up to 2,000 tokens less two, which tell them apart."""
    texts = [question.turns[0] for question in interleaved(builtin())]
    made = []
    for i in range(count):
        before = [texts[(i + 3 + j) % len(texts)] for j in range(LONG[i % len(LONG)])]
        prompt = llm.encode_chat([{"role": "user", "content": "\n\n".join([*before, texts[i % len(texts)]])}])
        params = SamplingParams(max_tokens=LENGTHS[i % len(LENGTHS)], seed=i, **MANNERS[i % len(MANNERS)])
        made.append(Asked(prompt[-1998:], params))
    return made


def begun_with(number: int, requests: Sequence[Asked]) -> list[Asked]:
    """The same as asked in round `number`: no two of any round begin alike."""
    each = enumerate(requests)
    return [Asked([FIRST + number, SECOND + i, *request.prompt], request.params) for i, request in each]


async def together(llm: LLM, requests: list[Asked], speculate: bool) -> Round:
    started = perf_counter()
    firsts: list[float] = []

    async def one(service: AsyncLLM, request: Asked) -> Completion | None:
        first, last = None, None
        async for chunk in service.stream([request.prompt], request.params, speculate=speculate):
            first = first or perf_counter()
            last = chunk.completion or last
        firsts.append((first or perf_counter()) - started)
        return last

    async with AsyncLLM(llm) as service:
        answers = await asyncio.gather(*(one(service, request) for request in requests))
        seconds = perf_counter() - started
    return Round(list(answers), firsts, seconds)


def differing(
    llm: LLM, requests: Sequence[Asked], answers: Sequence[Completion | None], which: Sequence[int]
) -> list[int]:
    """Those of `which` that are answered otherwise alone."""
    wrong = []
    for i in which:
        alone, answer = llm.generate([requests[i].prompt], requests[i].params, speculate=False)[0], answers[i]
        if answer is not None and answer.token_ids != alone.token_ids:
            wrong.append(i)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--batch", type=int, help="requests that run at once; the others wait (default: as LLM has it)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=64, help="requests of each round that are answered alone, too")
    parser.add_argument("--asked", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    llm = LLM(options.model, device=options.device, max_batch=options.batch, max_context=2560)
    keep_for_good()  # as the server does
    requests = asked(llm, options.requests)
    if options.asked:
        options.asked.write_text(json.dumps([[one.prompt, _told(one.params)] for one in requests]))
    arms: dict[str, list[Round]] = {"plain": [], "auto": []}
    wrong, lost, compared = [], 0, 0
    for i in range(options.rounds):
        for arm in ("plain", "auto") if i % 2 else ("auto", "plain"):
            number = 2 * i + (arm == "auto")
            fresh = begun_with(number, requests)
            found = asyncio.run(together(llm, fresh, arm == "auto"))
            arms[arm].append(found)
            lost += found.answers.count(None)
            which = [(number + round(j * len(fresh) / options.alone)) % len(fresh) for j in range(options.alone)]
            wrong += [(number, one) for one in differing(llm, fresh, found.answers, which)]
            compared += len(which)
            print(f"{arm}: {found.tokens / found.seconds:.0f} tokens/s", flush=True)
    kept = {
        "provenance": provenance(),
        "settings": {key: str(value) for key, value in vars(options).items() if key not in ("out", "asked")},
        "max_batch": llm.model.max_batch,
        "prompt_tokens": sum(len(request.prompt) for request in requests),
        "lost": lost,
        "compared_with_alone": compared,
        "different": wrong,
        "arms": {name: [_figures(each) for each in rounds] for name, rounds in arms.items()},
    }
    for name, rounds in arms.items():
        rate = median(each.tokens / each.seconds for each in rounds)
        p50, p99 = (median(_share(each.first_tokens, share) for each in rounds) for share in (50, 99))
        print(f"{name}: {rate:.0f} tokens/s, first token {p50:.3f} s (p99 {p99:.3f}), {len(rounds)} rounds")
    print(f"{len(requests)} requests a round, lost {lost}, different from alone {len(wrong)} of {compared}")
    if options.out:
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
    sys.exit(1 if lost or wrong else 0)


def _share(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _told(params: SamplingParams) -> dict[str, Any]:
    """What others call it, too."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logprobs")
    return {name: getattr(params, name) for name in names if getattr(params, name) is not None}


def _figures(each: Round) -> dict[str, float]:
    return {
        "seconds": each.seconds,
        "tokens": each.tokens,
        "first_token_p50": _share(each.first_tokens, 50),
        "first_token_p99": _share(each.first_tokens, 99),
    }


if __name__ == "__main__":
    main()
