"""What it costs to have a drafter that drafts nothing: steps of the default model with and without one.

    python benchmarks/following.py [--drafter head] [--batches 1,4] [--tokens 128] [--rounds 5]

Plain decoding and an engine whose drafter is given no budget answer the same questions in turns, a round each. A
round's figure is the mean of its steps without prefill, so that nothing done now and then is left out; printed are the
medians of the rounds, and what share of its steps the drafter's own calls take (`propose`, `read`, `observe`). Leave
the machine otherwise idle.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import fmean, median
from time import perf_counter
from typing import Any

from outrider import LLM, SamplingParams
from outrider.bench.questions import builtin, interleaved
from outrider.control.controller import FixedLength

CALLS = ("propose", "read", "observe")


class Clock:
    """The time spent in some calls since it was last asked."""

    def __init__(self) -> None:
        self._spent = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._spent += perf_counter() - start

        return timed

    def lap(self) -> float:
        spent, self._spent = self._spent, 0.0
        return spent


def watched(llm: LLM, steps: list[tuple[float, float]]) -> None:
    """Note of every step of decoding alone how long it took, and how long the drafter did."""
    engine, clock = llm.engine, Clock()
    drafter: Any = engine.drafter
    for name in CALLS:
        if hasattr(drafter, name):
            setattr(drafter, name, clock.wrap(getattr(drafter, name)))
    step = engine.step

    def timed() -> Any:
        clock.lap()
        start = perf_counter()
        chunks = step()
        if chunks and not any(request.num_uncomputed_tokens for request in engine.scheduler.running):
            steps.append((perf_counter() - start, clock.lap()))
        return chunks

    engine.step = timed  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="head")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    params = SamplingParams(max_tokens=options.tokens, temperature=0, ignore_eos=True)
    follower = LLM(drafter=options.drafter, max_batch=max(batches))
    arms = {  # each with a model of its own: a plain one's states are not read
        "plain": LLM(drafter="none", max_batch=max(batches)),
        "follows": follower.with_drafter(follower.drafter, FixedLength(0)),
    }
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for name, llm in arms.items():
        watched(llm, steps[name])
    for batch in batches:
        asked = interleaved(builtin())[:batch]
        prompts = [follower.encode_chat([{"role": "user", "content": question.turns[0]}]) for question in asked]
        rounds: list[tuple[float, float, float]] = []
        for _ in range(options.rounds):
            for name, llm in arms.items():
                steps[name].clear()
                llm.generate(prompts, params)
            means = [fmean(seconds for seconds, _ in noted) for noted in steps.values()]
            rounds.append((means[0], means[1], fmean(spent for _, spent in steps["follows"])))
        plain, follows = (median(each[arm] for each in rounds) for arm in range(2))
        slower = median(follows / plain - 1 for plain, follows, _ in rounds)
        own = median(spent / follows for _, follows, spent in rounds)
        print(
            f"batch {batch}: plain {1e3 * plain:.2f} ms a step, with {options.drafter} {1e3 * follows:.2f} ms "
            f"({100 * slower:+.1f}%), its own calls {100 * own:.2f}% of that"
        )


if __name__ == "__main__":
    main()
