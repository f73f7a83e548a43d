"""The run itself: every question to every arm in turn, and what is finished is kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from outrider.bench.bystanders import Bystanders
from outrider.bench.concurrency import Prompt
from outrider.bench.endpoint import EndpointArm
from outrider.bench.names import ArmName, pairs
from outrider.bench.ours import OurArm
from outrider.bench.peer import PeerArm
from outrider.bench.provenance import provenance
from outrider.bench.questions import Question, interleaved
from outrider.bench.reading import Arm, ArmUnavailable, Sampling
from outrider.bench.results import Measurement, Results, finished, finished_rounds
from outrider.bench.rounds import measure_cells
from outrider.bench.target import Target
from outrider.bench.twin import twin_shape
from outrider.bench.waves import Cell, Wave
from outrider.errors import InvalidRequest
from outrider.models.checkpoints.progress import Progress

_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    model: str
    arms: Sequence[ArmName]
    questions: Sequence[Question]
    suite: str
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    dtype: str = "bf16"
    device: str = "cpu"
    threads: int | None = None
    endpoint: str | None = None
    twin: str | None = None
    """Measure the model's cost twin of this shape instead of the model."""
    synthetic_acceptance: float | None = None
    """Accept drafts by the die so that a step gains so many tokens; what is written is then not the model's text."""
    one_by_one: bool = True
    """Ask every arm every question, one at a time."""
    cells: Sequence[Cell] = ()
    """Several requests at a time, of our own arms alone: each cell is a concurrency and a way to sample."""
    cell_questions: Sequence[Question] | None = None
    """Whose first turns those requests are; None: of all `questions`."""
    rounds: int = 5
    """Of every cell."""


def run(plan: Plan, progress: Progress, keep: Callable[[Results], None], earlier: Results | None = None) -> Results:
    """Measure; `keep` is given the results after every question and every round, and is the place to save them.

    Ctrl-C ends the run after the last finished question or round: the results come back with `complete` false. What
    `earlier` has finished is not measured again.
    """
    _check(plan)
    target = Target(plan.model, plan.dtype, plan.device, plan.threads, progress, twin=plan.twin)
    target.max_context = _context(plan, target)
    target.max_batch = max((cell.concurrency for cell in plan.cells), default=1)
    threads = plan.threads or torch.get_num_threads()
    results = Results(_settings(plan), provenance(target, threads), [arm.text for arm in plan.arms])
    # An impossible arm fails here, before any work.
    ours = {name: OurArm(name, target, plan.synthetic_acceptance) for name in plan.arms if name.is_ours}
    arms = [ours[name] if name.is_ours else _other_arm(name, target, plan, threads) for name in plan.arms]
    try:
        with _prepared(arms, results, progress) as ready:
            done = _taken(earlier, results, plan)
            if plan.one_by_one:
                _measure(plan, target, ready, results, done, progress, keep)
            if plan.cells:
                others = Bystanders([pid for arm in ready for pid in arm.pids])
                _measure_cells(plan, target, list(ours.values()), results, others, progress, keep)
            results.complete = True
    except KeyboardInterrupt:
        _forget_unfinished(plan, results)
    return results


def _measure(
    plan: Plan,
    target: Target,
    arms: list[Arm],
    results: Results,
    done: set[str],
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    """Questions are asked in a fixed order, by all arms before the next; who goes first changes every time."""
    todo = [(i, q) for i, q in enumerate(interleaved(plan.questions)) if q.id not in done]
    total = sum(len(question.turns) for _, question in todo) * len(arms)
    others = Bystanders([pid for arm in arms for pid in arm.pids])
    with progress.task(f"Measuring {len(arms)} arms", total) as advance:
        for index, question in todo:
            sampling = Sampling(plan.max_tokens, plan.temperature, plan.seed + index)
            conversation: list[dict[str, str]] = []
            for turn, text in enumerate(question.turns):
                conversation.append({"role": "user", "content": text})
                prompt = target.encode(conversation)
                first = (index + turn) % len(arms)
                for arm in [*arms[first:], *arms[:first]]:
                    others.start()
                    try:
                        reading = arm.run(prompt, sampling)
                    except ArmUnavailable as failure:
                        results.drop(arm.name, f"{failure} (question {question.id})")
                        arms.remove(arm)
                        if not arms:
                            raise InvalidRequest(f"every arm failed; the last one: {failure}") from failure
                        continue
                    # An endpoint's server may be on this machine: its work is not other work.
                    disturbance = None if isinstance(arm, EndpointArm) else others.processors()
                    results.measurements.append(
                        Measurement(arm.name, question.id, question.category, turn, len(prompt), reading, disturbance)
                    )
                    advance(1)
                # Whoever answers, later turns follow the first arm's words, so that all arms are asked the same.
                conversation.append({"role": "assistant", "content": _answer(results, target, question.id, turn)})
            keep(results)


def _measure_cells(
    plan: Plan,
    target: Target,
    arms: Sequence[OurArm],
    results: Results,
    others: Bystanders,
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    """Every cell by all our own arms, on the questions' first turns."""
    prompts = [
        Prompt(question.id, target.encode([{"role": "user", "content": question.turns[0]}]))
        for question in interleaved(plan.questions if plan.cell_questions is None else plan.cell_questions)
    ]
    measure_cells(
        arms,
        plan.cells,
        prompts,
        results,
        rounds=plan.rounds,
        max_tokens=plan.max_tokens,
        seed=plan.seed,
        others=others,
        progress=progress,
        keep=keep,
    )


def _answer(results: Results, target: Target, question: str, turn: int) -> str:
    for arm in results.arms:
        for each in results.measurements:
            if (each.arm, each.question, each.turn) == (arm, question, turn) and each.reading.token_ids is not None:
                return target.decode(each.reading.token_ids)
    return ""


@contextmanager
def _prepared(arms: Sequence[Arm], results: Results, progress: Progress) -> Iterator[list[Arm]]:
    """The arms that can run here; the others are named under `skipped`."""
    with ExitStack() as stack:
        ready: list[Arm] = []
        with progress.task("Preparing", len(arms)) as advance:
            for arm in arms:
                stack.callback(arm.close)
                try:
                    arm.prepare()
                except ArmUnavailable as why:
                    results.drop(arm.name, str(why))
                else:
                    ready.append(arm)
                    results.provenance["arms"][arm.name] = arm.versions
                advance(1)
        if not ready:
            raise InvalidRequest("arms: none of them can run here: " + "; ".join(results.skipped.values()))
        gc.collect()  # as `outrider serve` does: all this stays
        gc.freeze()
        stack.callback(gc.unfreeze)
        yield ready


def _check(plan: Plan) -> None:
    others = [arm.text for arm in plan.arms if not arm.is_ours]
    if others and plan.twin:
        raise InvalidRequest(f"twin: only arms of ours can run a cost twin, not {others[0]}")
    if others and plan.synthetic_acceptance is not None:
        raise InvalidRequest(f"synthetic acceptance: only arms of ours can be told what to accept, not {others[0]}")
    if plan.twin:
        twin_shape(plan.twin)
    if plan.cells and not plan.one_by_one and others:
        raise InvalidRequest(f"concurrency: only arms of ours can be asked several things at a time, not {others[0]}")
    if plan.cells and plan.synthetic_acceptance is not None:
        raise InvalidRequest("synthetic acceptance: it writes other tokens than plain; leave --concurrency out")
    if plan.cells and not pairs([arm.text for arm in plan.arms]):
        raise InvalidRequest("concurrency: give plain and an arm to hold against it, as in --arms plain,auto")


def _other_arm(name: ArmName, target: Target, plan: Plan, threads: int) -> Arm:
    if name.program == "endpoint":
        if plan.endpoint is None:
            raise InvalidRequest("arms: endpoint needs --endpoint URL")
        return EndpointArm(name.text, plan.endpoint, target.checkpoint.tokenizer)
    config: dict[str, Any] = {
        "folder": str(target.folder) if target.folder else None,
        "gguf": str(target.gguf) if target.gguf else None,
        "dtype": target.dtype,
        "device": target.device,
        "threads": threads,
        "max_context": target.max_context,
    }
    return PeerArm(name, config)


def _taken(earlier: Results | None, results: Results, plan: Plan) -> set[str]:
    """Take over what an earlier run has finished, if it was the same run."""
    if earlier is None:
        return set()
    for name, value in results.settings.items():
        if earlier.settings.get(name) != value:
            was = earlier.settings.get(name)
            raise InvalidRequest(f"resume: that run had {name} {was!r}, this one has {value!r}; give the same options")
    if earlier.arms != results.arms:
        raise InvalidRequest(
            f"resume: that run measured {', '.join(earlier.arms)}, this one would measure {', '.join(results.arms)}; "
            "arms compare only when measured together"
        )
    done = finished(earlier, {question.id: len(question.turns) for question in plan.questions})
    results.measurements = [each for each in earlier.measurements if each.question in done]
    results.waves = _whole_rounds(plan, earlier)
    results.provenance["resumed_from"] = earlier.provenance
    return done


def _forget_unfinished(plan: Plan, results: Results) -> None:
    done = finished(results, {question.id: len(question.turns) for question in plan.questions})
    results.measurements = [each for each in results.measurements if each.question in done]
    results.waves = _whole_rounds(plan, results)


def _whole_rounds(plan: Plan, results: Results) -> list[Wave]:
    """Without those of rounds that some arm has not finished."""
    done = finished_rounds(results.waves, [arm.text for arm in plan.arms if arm.is_ours])
    return [wave for wave in results.waves if (wave.cell, wave.round) in done]


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "model": plan.model,
        "suite": plan.suite,
        "questions": len(plan.questions),
        "max_tokens": plan.max_tokens,
        "temperature": plan.temperature,
        "seed": plan.seed,
        "dtype": plan.dtype,
        "device": plan.device,
        "threads": plan.threads,
        "twin": plan.twin,
        "synthetic_acceptance": plan.synthetic_acceptance,
        "arms": [arm.text for arm in plan.arms],
        "one_by_one": plan.one_by_one,
        "cells": [cell.name for cell in plan.cells],
        "rounds": plan.rounds,
    }


def _context(plan: Plan, target: Target) -> int:
    """Room for the longest conversation; requests of a cell are first turns alone."""
    longest = 0
    for question in plan.questions:
        turns = question.turns if plan.one_by_one else question.turns[:1]
        conversation = [
            message
            for text in turns
            for message in ({"role": "user", "content": text}, {"role": "assistant", "content": ""})
        ]
        # Decoding an answer and encoding it again may cost a few tokens more than it had.
        longest = max(longest, len(target.encode(conversation[:-1])) + (plan.max_tokens + 32) * len(turns))
    return -(-longest // _CONTEXT_STEP) * _CONTEXT_STEP
