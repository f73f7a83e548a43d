"""`auto` with drafters that are always wrong or always right, against plain decoding.

    python benchmarks/extreme_drafters.py [--batches 1,4] [--sampling greedy,t0.7-p0.9] [--rounds 5] [--out FILE]

Four drafters: useless or perfect, each once for free (looked up) and once paid for (a level takes a tenth of a pass).
All claim to be right nine times in ten. Plain decoding and `auto` with each answer the same requests in turns; printed
are paired ratios with their 95% intervals and the worst request, and whether the tokens were the same. Leave the
machine otherwise idle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from outrider import LLM
from outrider.bench.concurrency import Prompt, requests_of, serve
from outrider.bench.questions import builtin, interleaved
from outrider.bench.sampling import parse
from outrider.bench.statistics import paired_ratio
from outrider.bench.timing import Timing
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView

CLAIM = 0.9
LEVEL = 0.1
"""Of a pass, what a level of a paid draft takes."""
DEEPEST = 16

Answers = dict[tuple[int, ...], list[int]]
"""What plain decoding has answered, by prompt, seed and temperature."""


class Extreme(Drafter):
    """Proposes single paths."""

    def __init__(self, name: str, answers: Answers | None, seconds: float, vocab: int) -> None:
        """`answers`: what it proposes; None: anything. `seconds`: that a level takes."""
        self.name = name
        self._answers = answers
        self._seconds = seconds
        self._vocab = vocab
        self._random = Random(0)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        levels = max((min(budget.nodes, budget.depth) for budget in budgets), default=0)
        until = perf_counter() + self._seconds * levels
        drafts = [self._draft(s, min(b.nodes, b.depth, DEEPEST)) for s, b in zip(requests, budgets, strict=True)]
        while perf_counter() < until:
            pass
        return drafts

    def _draft(self, request: RequestView, count: int) -> Draft:
        if self._answers is None:
            tokens = [self._random.randrange(self._vocab) for _ in range(count)]
        else:
            answer = self._answers.get(key(request), [])
            tokens = answer[len(request.tokens) - request.prompt_length :][:count]
        claims = [CLAIM ** (level + 1) for level in range(len(tokens))]
        return Draft(tokens, range(-1, len(tokens) - 1), claims, self.name if tokens else "none")


class Found(Extreme):
    """The same, for free."""

    looks_up = True

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(requests, budgets)

    def paid(self, request: RequestView) -> str | None:
        return None


def key(request: RequestView) -> tuple[int, ...]:
    params = request.params
    return (params.seed, round(1000 * params.temperature), *request.tokens[: request.prompt_length])


def speeds(rounds: Sequence[Sequence[Timing]]) -> list[float]:
    """Of every request, the median over the rounds."""
    return [median(timing.rate for timing in timings) for timings in zip(*rounds, strict=True)]


def cell(llm: LLM, prompts: list[Prompt], batch: int, method: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    requests = requests_of(prompts, batch, parse(method), options.tokens, 0)
    plain = llm.with_drafter("none")
    started = perf_counter()
    known = serve(plain, requests, batch, "known")
    spent = perf_counter() - started
    steps = sum(timing.tokens for timing in known) / batch
    answers = {
        (request.sampling.seed, round(1000 * request.sampling.temperature), *request.prompt.token_ids): list(
            timing.token_ids or ()
        )
        for request, timing in zip(requests, known, strict=True)
    }
    pace, vocab = LEVEL * spent / steps, llm.model.vocab_size
    arms = {
        "useless, free": llm.with_drafter(Found("useless", None, 0.0, vocab)),
        "useless, paid": llm.with_drafter(Extreme("useless", None, pace, vocab)),
        "perfect, free": llm.with_drafter(Found("perfect", answers, 0.0, vocab)),
        "perfect, paid": llm.with_drafter(Extreme("perfect", answers, pace, vocab)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", *arms)}
    timings: dict[str, list[list[Timing]]] = {name: [] for name in seconds}
    for number in range(options.rounds):
        for name, arm in {"plain": plain, **arms}.items():
            started = perf_counter()
            timings[name].append(serve(arm, requests, batch, f"{name} {number}"))
            seconds[name].append(perf_counter() - started)
    found = []
    for name in arms:
        ratio = paired_ratio([1 / s for s in seconds[name]], [1 / s for s in seconds["plain"]])
        worst = min(a / b for a, b in zip(speeds(timings[name]), speeds(timings["plain"]), strict=True))
        same = all(
            a.token_ids == b.token_ids
            for ours, theirs in zip(timings[name], timings["plain"], strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
        found.append(
            {"batch": batch, "sampling": method, "drafter": name, "ratio": ratio.value, "low": ratio.low}
            | {"high": ratio.high, "worst_request": worst, "identical": same}
        )
        interval = (ratio.high - ratio.low) / 2
        print(
            f"{batch:3} {method:10} {name:14} {ratio.value:5.2f} ± {interval:.2f}  worst {worst:.2f}  same {same}",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--sampling", default="greedy,t0.7-p0.9")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    llm = LLM(device=options.device, threads=options.threads, drafter="none", max_batch=max(batches), max_context=1024)
    questions = list(interleaved(builtin()))[:14]
    prompts = [Prompt(q.id, llm.encode_chat([{"role": "user", "content": q.turns[0]}])) for q in questions]
    prompts = [prompt for prompt in prompts if len(prompt.token_ids) < 800]
    found = []
    for batch in batches:
        for method in options.sampling.split(","):
            found += cell(llm, prompts, batch, method, options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
