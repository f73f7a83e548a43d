"""Where the time of one step goes, by part: batch 1 and 8, greedy and sampled, plain and suffix.

    python benchmarks/step_profile.py [--tokens 96] [--rounds 2] [--out benchmarks/results/step_profile.json]

The engine carries no timers: its parts are wrapped from outside, and a part's time excludes that of the parts it calls.
Overhead is everything but the two models: the target's compiled pass, and the drafter's work (`propose`, and `learn`,
which is its `observe`). The controller (`budgets`, `observe`) is overhead.
Medians over the steps without prefill. Leave the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider import LLM, SamplingParams
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.questions import builtin, interleaved
from outrider.engine import engine as engine_module
from outrider.engine import host_executor as host_module
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.models.checkpoints.progress import SilentProgress
from outrider.sampling.target import TargetRows

MODEL = "smollm2-135m"
MODELS = ("model", "propose", "learn")
PARTS = (*MODELS, "budgets", "pack", "choose", "judge", "commit", "observe", "step", "emit")
"""`pack`: the forward call outside the compiled pass. `choose`: warping and choosing tokens. `step`: the loop itself.
`emit`: from the end of a step to the beginning of the next."""

MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "T=1": {"temperature": 1, "top_p": 1, "top_k": 0},
    "T=0.7 top-p 0.95": {"temperature": 0.7, "top_p": 0.95, "top_k": 0},
    "T=1 penalised": {"temperature": 1, "top_p": 1, "top_k": 0, "repetition_penalty": 1.1},
}
Step = dict[str, float]


class Clock:
    """Self time per part: while a wrapped part runs, the time counts for it and not for its caller."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now: dict[str, int] = defaultdict(int)
        self._part = "emit"
        self._since = perf_counter_ns()

    def wrap(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            caller = self._enter(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._enter(caller)

        return timed

    def wrap_step(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """A step ends where the next begins."""
        timed = self.wrap("step", call)

        def step() -> Any:
            self._enter("emit")
            self.steps.append({part: self._now[part] / 1e6 for part in (*PARTS, "prefill")})
            self._now.clear()
            return timed()

        return step

    def _enter(self, part: str) -> str:
        now = perf_counter_ns()
        self._now[self._part] += now - self._since
        self._since = now
        before, self._part = self._part, part
        return before


class TimedKernels:
    """The compiled library with its pass under the clock."""

    def __init__(self, kernels: Any, clock: Clock) -> None:
        self._kernels = kernels
        self.outrider_forward = clock.wrap("model", kernels.outrider_forward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)


def instrument(llm: LLM, clock: Clock) -> None:
    """Wrap every part of `llm`, once."""
    model: Any = llm.model
    model._kernels = TimedKernels(model._kernels, clock)
    model.forward = clock.wrap("pack", model.forward)
    wrap_engine(llm.engine, clock)
    module: Any = engine_module
    host: Any = host_module
    rows: Any = TargetRows
    module.emit = clock.wrap("commit", module.emit)
    host.target_rows = clock.wrap("choose", host.target_rows)
    rows.choose = clock.wrap("choose", rows.choose)


def wrap_engine(engine: Engine, clock: Clock) -> None:
    parts: list[tuple[Any, str, str]] = [
        (engine.controller, "draft", "budgets"),
        (engine.controller, "observe", "observe"),
        (engine.drafter, "propose", "propose"),
        (engine.drafter, "observe", "learn"),
        (engine.executor, "_keep", "commit"),
    ]
    for owner, method, part in parts:
        setattr(owner, method, clock.wrap(part, getattr(owner, method)))
    assert isinstance(engine.executor, HostExecutor)
    engine.executor.rules = {name: clock.wrap("judge", rule) for name, rule in engine.executor.rules.items()}
    prefill = clock.wrap("prefill", engine._prefill)
    engine._prefill = lambda prompts, begins: prefill(prompts, begins) if prompts else {}  # type: ignore[method-assign]
    engine.step = clock.wrap_step(engine.step)  # type: ignore[method-assign]


def prompts_of(llm: LLM) -> list[list[int]]:
    """Four chat questions and four edits of the built-in suite, in turn."""
    asked = interleaved([question for question in builtin() if question.category in ("chat", "edit")])
    return [llm.encode_chat([{"role": "user", "content": question.turns[0]}]) for question in asked[:8]]


def profile(llm: LLM, clock: Clock, prompts: list[list[int]], manner: str, suffix: bool, tokens: int) -> list[Step]:
    """The steps of decoding `prompts` as one batch, less the first (prefills) and the last (requests end)."""
    params = [
        SamplingParams(max_tokens=tokens, ignore_eos=True, seed=i, **MANNERS[manner]) for i in range(len(prompts))
    ]
    clock.steps.clear()
    ends: list[int] = []
    for chunk in llm.stream(prompts, params, speculate=suffix):
        if chunk.completion is not None:
            ends.append(len(clock.steps))
    first = 1 + max((i for i, step in enumerate(clock.steps) if step["prefill"]), default=0)
    return clock.steps[first : min(ends)]  # entry i + 1 holds step i


def summarise(steps: list[Step]) -> dict[str, Any]:
    total = [sum(step.values()) for step in steps]
    overhead = [t - sum(step[part] for part in MODELS) for step, t in zip(steps, total, strict=True)]
    return {
        "steps": len(steps),
        "total_ms": statistics.median(total),
        **{f"{part}_ms": statistics.median(step[part] for step in steps) for part in PARTS},
        "overhead_ms": statistics.median(overhead),
        "overhead_share": statistics.median(o / t for o, t in zip(overhead, total, strict=True)),
        "overhead_share_with_drafter": statistics.median(
            1 - step["model"] / t for step, t in zip(steps, total, strict=True)
        ),
        "overhead_share_of_all_time": sum(overhead) / sum(total),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    llm = LLM(MODEL, drafter="suffix", max_batch=8, dtype="bf16", device="cpu")
    assert llm.model.runner is not None
    threads = llm.model.runner.threads
    origin = MeasuredModel(MODEL, "bf16", "cpu", None, SilentProgress()).provenance(threads)
    clock = Clock()
    instrument(llm, clock)
    ids = prompts_of(llm)
    profile(llm, clock, ids[:1], "T=1", True, 16)  # warm up
    found: dict[tuple[int, str, bool], list[Step]] = defaultdict(list)
    for i in range(options.rounds):  # arms interleaved: the machine's speed drifts
        for manner in MANNERS:
            for suffix in (False, True):
                for prompts in (ids, ids[2 * i : 2 * i + 1], ids[2 * i + 1 : 2 * i + 2]):
                    key = (len(prompts), manner, suffix)
                    found[key] += profile(llm, clock, prompts, manner, suffix, options.tokens)
    table = Table("batch", "sampling", "drafter", "step ms", "overhead", *PARTS, title="median ms per step")
    results = []
    for (batch, manner, suffix), steps in sorted(found.items()):
        row = {"batch": batch, "sampling": manner, "drafter": "suffix" if suffix else "none", **summarise(steps)}
        results.append(row)
        table.add_row(
            str(batch), manner, row["drafter"], f"{row['total_ms']:.2f}", f"{100 * row['overhead_share']:.1f}%",
            *(f"{row[f'{part}_ms']:.3f}" for part in PARTS),
        )  # fmt: skip
    Console(width=180).print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"provenance": origin, "profile": results}, indent=1))


if __name__ == "__main__":
    main()
