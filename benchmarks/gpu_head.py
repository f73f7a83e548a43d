"""A drafting head on one GPU.

    python benchmarks/gpu_head.py [--out benchmarks/results/gpu_head.json]
        [--head DIR --questions FILE --model MODEL --seconds 90 --lengths 4,tree16]

Always: the 8B shape with random weights and a random head of the shape such models usually have (one layer as wide as
the target's, 32,000 draft ids), chains of 4, acceptance length set to 3.0; 256 random tokens in, 256 out.

With a head: the 8B cost twin of its target with the head grown alike. What steps take of each length, drafting and the
rest, with nothing in the cache. Then real text: chains and trees against plain decoding, greedy and T=1, interleaved
question by question for so many seconds. Every answer is checked to be plain decoding's, token by token. A first round
over a short and a long question records everything and is not counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from gpu_speed import GPU, decoder, rate

from outrider.bench.forced import ForcedStepper
from outrider.bench.head_shapes import random_head
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.names import parse
from outrider.bench.ours import OurArm
from outrider.bench.questions import Question, interleaved, read_questions
from outrider.bench.shapes import SHAPES
from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.timing import Sampling, Timing
from outrider.control.controller import FixedLength
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import Manner, StepShape, tree_of
from outrider.drafters.head import HeadDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.cuda.head import CudaHead
from outrider.models.head.config import HeadConfig
from outrider.models.head.load import place_head
from outrider.provenance import provenance

LENGTHS = "4,5,tree8,tree16,tree32"
STEPS = 20
NEW = 128
CONTEXT = 1536


class Timed(FixedLength):
    """Notes how long the halves of each step took on the device."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, tree=False)
        self.steps: list[tuple[float, float]] = []

    def observe(
        self, verified: Sequence[VerifiedDraft], rows: int, draft_seconds: float, target_seconds: float
    ) -> None:
        self.steps.append((draft_seconds * 1e3, target_seconds * 1e3))


def synthetic(batches: Sequence[int]) -> list[dict[str, Any]]:
    big = decoder("8b", max(batches))
    head = place_head(random_head(HeadConfig.beside(SHAPES["8b"], 32_000, 1), GPU, torch.bfloat16, 0), big)
    assert isinstance(head, CudaHead)
    found = []
    for batch in batches:
        found.append(asdict(rate("8b plain", Engine(big, NoDrafter(), FixedLength(0)), batch)))
        controller, drafter, acceptance = Timed(4), HeadDrafter(head, big.vocab_size), SyntheticAcceptance(4, 3.0)
        host = HostExecutor(big, drafter, controller, acceptance.rules())
        stepper = ForcedStepper(big, head, acceptance, big.vocab_size)
        engine = Engine(big, drafter, controller, executor=DeviceExecutor(stepper, host, drafter.device_part))
        result = asdict(rate("8b + head, K=4, L=3.0", engine, batch))
        drafting, rest = (statistics.median(times) for times in zip(*controller.steps, strict=True))
        print(f"    drafting {drafting:.3f} ms, the rest {rest:.3f} ms a step", flush=True)
        found.append({**result, "draft_ms": drafting, "target_ms": rest})
    return found


def shape_of(length: str) -> StepShape:
    """As an arm's name spells it."""
    return tree_of(int(length[4:])) if length.startswith("tree") else StepShape(int(length), int(length))


def steps(target: MeasuredModel, head: Path, lengths: Sequence[str]) -> list[dict[str, Any]]:
    """Milliseconds of steps of one request, drafting and the rest."""
    llm = target.load(None)
    stepper = llm.model.stepper(target.head(str(head), None, llm))
    assert stepper is not None
    found: list[dict[str, Any]] = []
    for length in ("0", *lengths):
        for manner in (Manner.GREEDY, Manner.DRAWN):
            outcomes = []
            for _ in range(STEPS):
                stepper.launch(1, shape_of(length), manner)
                outcomes.append(stepper.collect())
            drafting = statistics.median(outcome.draft_seconds for outcome in outcomes) * 1e3
            rest = statistics.median(outcome.target_seconds for outcome in outcomes) * 1e3
            print(f"{length:7} {manner.name:7} drafting {drafting:6.3f} ms, the rest {rest:6.3f} ms", flush=True)
            found.append({"length": length, "manner": manner.name, "draft_ms": drafting, "target_ms": rest})
    return found


def real(head: Path, questions: list[Question], model: str, seconds: float, lengths: Sequence[str]) -> dict[str, Any]:
    target = MeasuredModel(model, "bf16", "cuda", None, SilentProgress(), max_context=CONTEXT, twin="8b")
    measured = steps(target, head, lengths)
    arms = [OurArm(parse(name), target) for name in ("plain", *(f"head:{head}:{length}" for length in lengths))]
    names = ["plain", *(f"head:{length}" for length in lengths)]
    started = perf_counter()
    for arm in arms:
        arm.prepare()
    prompts = [(q, target.encode([{"role": "user", "content": q.turns[0]}])) for q in interleaved(questions)]
    prompts = [(q, prompt) for q, prompt in prompts if len(prompt) + NEW <= CONTEXT]
    sizes = [len(prompt) for _, prompt in prompts]
    warm = [prompts[sizes.index(min(sizes))][1], prompts[sizes.index(max(sizes))][1]]
    warm += [prompt for _, prompt in prompts if 512 <= len(prompt) + NEW <= 900][:1]
    for prompt in warm:
        for temperature in (0.0, 1.0):
            for arm in arms:
                arm.run(prompt, Sampling(NEW, temperature, 0))
    print(f"twin prepared in {perf_counter() - started:.1f} s", flush=True)
    timings: dict[tuple[str, float], list[tuple[str, Timing]]] = {}
    deadline, asked = perf_counter() + seconds, 0
    for question, prompt in prompts:
        if perf_counter() > deadline:
            break
        for temperature in (0.0, 1.0):
            shift = asked % len(arms)
            for name, arm in [*zip(names, arms, strict=True)][shift:] + [*zip(names, arms, strict=True)][:shift]:
                timing = arm.run(prompt, Sampling(NEW, temperature, asked))
                timings.setdefault((name, temperature), []).append((question.category, timing))
        asked += 1
    return {
        "model": f"8b cost twin of {model}",
        "head": head.name,
        "questions": asked,
        "max_tokens": NEW,
        "steps": measured,
        "arms": [
            _arm(name, temperature, timings[name, temperature], timings["plain", temperature])
            for temperature in (0.0, 1.0)
            for name in names
        ],
    }


def _arm(
    name: str, temperature: float, mine: list[tuple[str, Timing]], plain: list[tuple[str, Timing]]
) -> dict[str, Any]:
    def totals(timings: list[Timing]) -> tuple[float, float]:
        """Tokens a second, tokens a pass."""
        seconds = sum(r.decode_seconds for r in timings)
        return sum(r.decode_tokens for r in timings) / seconds, sum(r.tokens for r in timings) / sum(
            len(r.passes or ()) for r in timings
        )

    speed, length = totals([r for _, r in mine])
    reference, _ = totals([r for _, r in plain])
    found = {
        "arm": name,
        "temperature": temperature,
        "tokens_per_second": speed,
        "speedup": speed / reference,
        "speedup_median": statistics.median(
            r.decode_rate / p.decode_rate for (_, r), (_, p) in zip(mine, plain, strict=True)
        ),
        "acceptance_length": length,
        "identical_to_plain": sum(r.token_ids == p.token_ids for (_, r), (_, p) in zip(mine, plain, strict=True)),
        "answers": len(mine),
        "acceptance_by_category": {
            category: totals([r for c, r in mine if c == category])[1] for category in sorted({c for c, _ in mine})
        },
    }
    print(
        f"{name:12} T={temperature:g}  {speed:7.1f} tok/s  {found['speedup']:.2f}x  "
        f"{length:.2f} tokens a pass  identical {found['identical_to_plain']}/{len(mine)}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--head", type=Path, help="a head's folder")
    parser.add_argument("--questions", type=Path, help="in Spec-Bench's format")
    parser.add_argument("--model", default="smollm2-135m", help="the head's target")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--lengths", default=LENGTHS, help="of the head's drafts: chains, and trees of so many nodes")
    options = parser.parse_args()
    result: dict[str, Any] = {"provenance": provenance()}

    def keep() -> None:
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1))

    if options.batches:
        result["synthetic"] = synthetic([int(batch) for batch in options.batches.split(",")])
        keep()
        gc.collect()
        torch.cuda.empty_cache()
    if options.head:
        if options.questions is None:
            parser.error("--head needs --questions")
        questions, lengths = read_questions(options.questions), options.lengths.split(",")
        result["real"] = real(options.head, questions, options.model, options.seconds, lengths)
        keep()


if __name__ == "__main__":
    main()
