"""Cell by cell, round by round: every arm answers the same requests, one arm after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from outrider.bench.bystanders import Bystanders
from outrider.bench.concurrency import BenchRequest, Prompt, begins_with, requests_of, serve
from outrider.bench.results import Results, finished_rounds
from outrider.bench.sampling import parse
from outrider.bench.waves import Cell, TimedAnswer, Wave
from outrider.llm import LLM
from outrider.models.checkpoints.progress import Progress

_WARM_TOKENS = 4


class Batched(Protocol):
    """An arm that can be asked several things at once."""

    @property
    def name(self) -> str: ...
    @property
    def llm(self) -> LLM: ...


def measure_cells(
    arms: Sequence[Batched],
    cells: Sequence[Cell],
    prompts: Sequence[Prompt],
    results: Results,
    *,
    rounds: int,
    max_tokens: int,
    seed: int,
    others: Bystanders,
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    """Who goes first changes every round. Rounds that `results` has already are not run again; `keep` is given the
    results after every one."""
    done = finished_rounds(results.waves, [arm.name for arm in arms])
    todo = {cell: [number for number in range(rounds) if (cell, number) not in done] for cell in cells}
    total = sum(map(len, todo.values())) * len(arms)
    with progress.task(f"Measuring {len(cells)} cells", total) as advance:
        for cell, numbers in todo.items():
            asked = requests_of(prompts, cell.concurrency, parse(cell.sampling), max_tokens, seed)
            if numbers:
                _warm_up(arms, asked, cell.concurrency)
            for number in numbers:
                first = number % len(arms)
                for arm in [*arms[first:], *arms[:first]]:
                    results.waves.append(_wave(arm, cell, number, asked, others))
                    advance(1)
                keep(results)


def _wave(arm: Batched, cell: Cell, number: int, asked: Sequence[BenchRequest], others: Bystanders) -> Wave:
    others.start()
    started = perf_counter()
    begin = begins_with(number, len(asked))
    timings = serve(arm.llm, asked, cell.concurrency, f"{cell.name} {number}", begin=begin)
    seconds = perf_counter() - started
    answers = [
        TimedAnswer(request.prompt.question, len(request.prompt.token_ids), timing)
        for request, timing in zip(asked, timings, strict=True)
    ]
    return Wave(arm.name, cell, number, seconds, tuple(answers), others.processors())


def _warm_up(arms: Sequence[Batched], asked: Sequence[BenchRequest], concurrency: int) -> None:
    """A short round that does not count, in which every number of requests in flight occurs once."""
    short = [
        replace(request, sampling=replace(request.sampling, max_tokens=_WARM_TOKENS + index))
        for index, request in enumerate(asked[:concurrency])
    ]
    for arm in arms:
        serve(arm.llm, short, concurrency, "warm-up")
