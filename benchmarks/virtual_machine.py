"""What `auto` gains on machines that are not at hand: real texts, drafts and tokens, in virtual time.

    python benchmarks/virtual_machine.py [--machine amx-4] [--concurrency 1,4,16] [--sampling greedy]
                                         [--fixed head:3] [--rounds 2] [--max-tokens 48] [--questions FILE]
                                         [--host 1.3] [--out FILE.json]

Every pass takes what a table of the machine says, and nothing else takes any time: there is no noise, the same run
gives the same figures, and other work does not disturb it. The controller surveys that machine, believes its costs, and
decides by its clock. What it cannot show is what the tables leave out. `--fixed` runs drafter and length as given
instead of `auto`, to see what was possible. With `--host 1.3` the processor time of everything but passes counts, too,
1.3 times what it takes here, and takes the place of the set times of a step and a lookup: with many in flight that is
what tells ways to decide apart. Then the same run gives nearly the same figures.

Passes were measured (benchmarks/results/cpu_xeon_*_2threads.json, docs/log/cpu-kernels.md; amx-h200-2 by the survey of
two idle cores of an H200's host), but those of 17 and 64 rows, which are drawn from their neighbours; amx-4 is scaled
by the plain speed of four threads. A head's passes are of docs/log/drafters.md on AMX, elsewhere estimates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider import LLM
from outrider.bench.concurrency import Prompt, begins_with, requests_of, serve
from outrider.bench.questions import builtin, interleaved, read_questions
from outrider.bench.sampling import SamplingMethod, parse_all
from outrider.bench.waves import parse_concurrency
from outrider.control.acceptance import depths
from outrider.core.draft import Draft
from outrider.core.model import Rows, WantedTree
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.costs import Costs
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.models.native.timing import Timer
from outrider.provenance import provenance

Grown = tuple[list[int], list[int], list[float]]
"""A tree that a head grew by itself: tokens, parents, confidence."""

MODEL = "smollm2-135m"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 64)
HEAD_ROWS = (1, 4, 8, 32)


@dataclass(frozen=True)
class Machine:
    """Milliseconds: of a pass of ROWS, a head's of HEAD_ROWS; of a lookup for one request, of a step besides."""

    passes: tuple[float, ...]
    head: tuple[float, ...]
    lookup: float = 0.03
    step: float = 0.3
    dtype: str = "bf16"


MACHINES = {
    "amx-2": Machine((10.4, 10.9, 11.1, 11.2, 11.5, 11.7, 12.5, 13.1, 14.8, 15.5, 18.1, 31.0), (0.75, 0.9, 1.05, 2.2)),
    "amx-h200-2": Machine(
        (9.4, 9.9, 10.4, 10.5, 11.0, 11.0, 11.0, 11.5, 12.1, 13.0, 14.0, 20.5), (0.5, 0.6, 0.75, 1.8)
    ),
    "amx-4": Machine((6.2, 6.4, 6.5, 6.6, 6.8, 7.0, 7.6, 8.0, 9.2, 9.6, 11.0, 18.0), (0.5, 0.6, 0.7, 1.4)),
    "vnni-2": Machine((12.1, 13.0, 13.0, 13.4, 14.5, 15.5, 21.4, 29.4, 31.0, 38.9, 54.3, 108.0), (0.9, 1.1, 1.3, 3.0)),
    "vnni-2-int8": Machine(
        (6.2, 6.7, 7.2, 8.0, 8.9, 10.5, 14.0, 16.0, 17.5, 23.8, 31.6, 63.0), (0.9, 1.1, 1.3, 3.0), dtype="int8"
    ),
    "cascade-lake-2-int8": Machine(
        (6.6, 6.8, 7.1, 7.4, 8.2, 9.1, 11.4, 13.4, 14.0, 18.5, 24.0, 47.0),
        (0.8, 1.1, 1.4, 3.4),
        step=0.9,
        dtype="int8",
    ),
    "avx2-2": Machine((11.9, 12.5, 15.0, 15.7, 20.1, 30.4, 40.2, 55.4, 60.0, 79.8, 110.0, 220.0), (1.2, 1.6, 2.2, 7.0)),
    "n1-2": Machine((22, 23, 26, 33, 50, 66, 99, 132, 140, 198, 264, 528), (2.0, 2.6, 4.0, 14.0)),
}


class Clock:
    """Stands still but for what is spent, and `host` times the processor time of everything but passes."""

    def __init__(self, machine: Machine, host: float = 0.0) -> None:
        self.now = 0.0
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._machine = machine if not host else dataclasses.replace(machine, lookup=0.0, step=0.0)
        self._host = host
        self._free = 0.0
        """Processor time of passes, which take what the machine's take instead."""

    def __call__(self) -> float:
        return self.now + self._host * (thread_time() - self._free if self._host else 0.0)

    def spend(self, what: str, milliseconds: float) -> None:
        self.now += milliseconds / 1e3
        self.spent[what] += milliseconds / 1e3

    def target(self, rows: int) -> float:
        return drawn(ROWS, self._machine.passes, rows)

    def head(self, rows: int) -> float:
        return drawn(HEAD_ROWS, self._machine.head, rows)

    def install(self) -> None:
        """In place of the real one, in this process for good."""
        for name, module in list(sys.modules.items()):
            if name.startswith("outrider.") and "perf_counter" in vars(module):
                replace(module, "perf_counter", self)
        for owner, name in ((NativeDecoder, "forward"), (NativeHead, "forward"), (NativeHead, "rank")):
            self._uncounted(owner, name)
        before(NativeDecoder, "forward", self._target_pass)
        before(NativeHead, "forward", lambda batch: self.spend("head: reading", self.head(total(batch))))
        before(NativeHead, "rank", lambda batch: self.spend("head: drafting", self.head(total(batch))))
        before(SuffixDrafter, "look_up", lambda asked: self.spend("lookup", self._machine.lookup * len(asked)))
        replace(Timer, "seconds", lambda timer, rows, _: (self.head if timer._features else self.target)(rows) / 1e3)
        if self._host:
            self._uncounted(NativeHead, "draft")
            after(NativeHead, "draft", self._drafted)
        else:
            replace(NativeHead, "drafts_trees", False)  # level by level, so that every pass is seen
        replace(Costs, "_path", lambda *_: None)  # nothing measured before is believed, and nothing kept

    def _uncounted(self, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = thread_time()
            try:
                return method(*given, **named)
            finally:
                self._free += thread_time() - began

        replace(owner, name, timed)

    def _drafted(self, batch: Sequence[Rows], wanted: Sequence[WantedTree], drafts: Sequence[Grown]) -> None:
        """Trees that the head grew by itself: a pass a level, of the nodes of the level before."""
        self.spend("head: drafting", self.head(total(batch)))
        for level in range(max(tree.depth for tree in wanted) - 1):
            if rows := sum(depths(Draft(*grown, "head")).count(level) for grown in drafts):
                self.spend("head: drafting", self.head(rows))

    def _target_pass(self, batch: Sequence[Rows]) -> None:
        rows, plain = total(batch), len(batch)
        if batch[0].logits is not None:
            self.spend("prompts", self.target(rows) + self._machine.step)
        else:
            self.spend("passes", self.target(plain) + self._machine.step)
            self.spend("rows of drafts", self.target(rows) - self.target(plain))


def total(batch: Sequence[Rows]) -> int:
    return sum(len(rows.tokens) for rows in batch)


def drawn(at: Sequence[int], known: Sequence[float], rows: int) -> float:
    """Straight between what is known, and on beyond it."""
    right = min(max(bisect_left(at, rows), 1), len(at) - 1)
    slope = (known[right] - known[right - 1]) / (at[right] - at[right - 1])
    return known[right - 1] + slope * (rows - at[right - 1])


def replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def before(owner: type, name: str, spend: Callable[[Any], None]) -> None:
    """`spend` is told of the first argument of every call."""
    method = getattr(owner, name)

    def timed(self: Any, first: Any, *rest: Any, **named: Any) -> Any:
        spend(first)
        return method(self, first, *rest, **named)

    replace(owner, name, timed)


def after(owner: type, name: str, spend: Callable[[Any, Any, Any], None]) -> None:
    """`spend` is told of the first two arguments of every call, and of its result."""
    method = getattr(owner, name)

    def timed(self: Any, first: Any, second: Any, *rest: Any, **named: Any) -> Any:
        result = method(self, first, second, *rest, **named)
        spend(first, second, result)
        return result

    replace(owner, name, timed)


def cell(
    clock: Clock, machine: Machine, concurrency: int, sampling: SamplingMethod, options: argparse.Namespace
) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_batch": concurrency, "max_context": 2048, "dtype": machine.dtype, "device": "cpu"}
    drafter, _, length = (options.fixed or "auto").partition(":")
    drafting: dict[str, Any] = {"drafter": drafter} | ({"draft_length": int(length)} if length else {})
    arms = {"plain": LLM(MODEL, drafter="none", **settings), "drafting": LLM(MODEL, **drafting, **settings)}
    llm = arms["plain"]
    questions = read_questions(options.questions) if options.questions else builtin()
    prompts = [Prompt(q.id, llm.encode_chat([{"role": "user", "content": q.turns[0]}])) for q in interleaved(questions)]
    asked = requests_of(prompts, concurrency, sampling, options.max_tokens, 0)
    ratios: list[float] = []
    requests: list[list[float]] = [[] for _ in asked]
    spent: dict[str, dict[str, float]] = {}
    for round_ in range(options.rounds):
        seconds, answers = {}, {}
        for arm, llm in arms.items():
            clock.spent.clear()
            began = clock()
            begin = begins_with(round_, len(asked))
            answers[arm] = serve(llm, asked, concurrency, str(round_), begin=begin)
            seconds[arm] = clock() - began
            spent[arm] = {what: round(s, 3) for what, s in clock.spent.items()}
        if [a.token_ids for a in answers["plain"]] != [a.token_ids for a in answers["drafting"]]:
            raise SystemExit("the tokens differ")
        ratios.append(seconds["plain"] / seconds["drafting"])
        for each, plain, ours in zip(requests, answers["plain"], answers["drafting"], strict=True):
            each.append((plain.prefill_seconds + plain.decode_seconds) / (ours.prefill_seconds + ours.decode_seconds))
    worst = min(range(len(asked)), key=lambda i: median(requests[i]))
    return {
        "concurrency": concurrency,
        "sampling": sampling.name,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "worst_request": round(median(requests[worst]), 3),
        "worst_question": asked[worst].prompt.question,
        "worst_tokens": asked[worst].sampling.max_tokens,
        "seconds_of_last_round": spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=list(MACHINES), default="amx-4")
    parser.add_argument("--concurrency", type=parse_concurrency, default=(1, 4, 16))
    parser.add_argument("--sampling", type=parse_all, default=parse_all("greedy"))
    parser.add_argument("--fixed", help="DRAFTER:LENGTH instead of auto")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--questions", type=Path, help="in Spec-Bench's format, instead of the built-in suite")
    parser.add_argument("--host", type=float, default=0.0, help="how many times its processor time here counts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = MACHINES[options.machine]
    clock = Clock(machine, options.host)
    clock.install()
    cells = [cell(clock, machine, n, sampling, options) for n in options.concurrency for sampling in options.sampling]
    table = Table("in flight", "sampling", "ratio by round", "worst request", title=f"{options.machine}, virtual time")
    for each in cells:
        ratios = ", ".join(f"{ratio:.2f}" for ratio in each["ratios"])
        worst = f"{each['worst_request']:.2f} ({each['worst_question']}, {each['worst_tokens']} tokens)"
        table.add_row(str(each["concurrency"]), each["sampling"], ratios, worst)
    Console().print(table)
    if options.out:
        found = {"provenance": provenance(), "machine": options.machine, "arm": options.fixed or "auto", "cells": cells}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
