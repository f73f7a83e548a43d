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
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.names import ArmName, pairs
from outrider.bench.ours import OurArm
from outrider.bench.peer import PeerArm
from outrider.bench.questions import Question, interleaved
from outrider.bench.results import Measurement, Results, finished, finished_rounds
from outrider.bench.rounds import measure_cells
from outrider.bench.timing import Arm, ArmUnavailable, Sampling
from outrider.bench.twin import twin_shape
from outrider.bench.waves import Cell, Wave
from outrider.errors import InvalidRequest
from outrider.models.checkpoints.progress import Progress

_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class BenchConfig:
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


def run(
    config: BenchConfig, progress: Progress, keep: Callable[[Results], None], earlier: Results | None = None
) -> Results:
    """Measure; `keep` is given the results after every question and every round, and is the place to save them.

    Ctrl-C ends the run after the last finished question or round: the results come back with `complete` false. What
    `earlier` has finished is not measured again.
    """
    _check(config)
    target = MeasuredModel(config.model, config.dtype, config.device, config.threads, progress, twin=config.twin)
    target.max_context = _context(config, target)
    target.max_batch = max((cell.concurrency for cell in config.cells), default=1)
    threads = config.threads or torch.get_num_threads()
    results = Results(_settings(config), target.provenance(threads), [arm.text for arm in config.arms])
    # An impossible arm fails here, before any work.
    ours = {name: OurArm(name, target, config.synthetic_acceptance) for name in config.arms if name.is_ours}
    arms = [ours[name] if name.is_ours else _other_arm(name, target, config, threads) for name in config.arms]
    try:
        with _prepared(arms, results, progress) as ready:
            done = _taken(earlier, results, config)
            if config.one_by_one:
                _measure(config, target, ready, results, done, progress, keep)
            if config.cells:
                others = Bystanders([pid for arm in ready for pid in arm.pids])
                _measure_cells(config, target, list(ours.values()), results, others, progress, keep)
            results.complete = True
    except KeyboardInterrupt:
        _forget_unfinished(config, results)
    return results


def _measure(
    config: BenchConfig,
    target: MeasuredModel,
    arms: list[Arm],
    results: Results,
    done: set[str],
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    """Questions are asked in a fixed order, by all arms before the next; who goes first changes every time."""
    todo = [(i, q) for i, q in enumerate(interleaved(config.questions)) if q.id not in done]
    total = sum(len(question.turns) for _, question in todo) * len(arms)
    others = Bystanders([pid for arm in arms for pid in arm.pids])
    with progress.task(f"Measuring {len(arms)} arms", total) as advance:
        for index, question in todo:
            sampling = Sampling(config.max_tokens, config.temperature, config.seed + index)
            conversation: list[dict[str, str]] = []
            for turn, text in enumerate(question.turns):
                conversation.append({"role": "user", "content": text})
                prompt = target.encode(conversation)
                first = (index + turn) % len(arms)
                for arm in [*arms[first:], *arms[:first]]:
                    others.start()
                    try:
                        timing = arm.run(prompt, sampling)
                    except ArmUnavailable as failure:
                        results.drop(arm.name, f"{failure} (question {question.id})")
                        arms.remove(arm)
                        if not arms:
                            raise InvalidRequest(f"every arm failed; the last one: {failure}") from failure
                        continue
                    # An endpoint's server may be on this machine: its work is not other work.
                    disturbance = None if isinstance(arm, EndpointArm) else others.processors()
                    results.measurements.append(
                        Measurement(arm.name, question.id, question.category, turn, len(prompt), timing, disturbance)
                    )
                    advance(1)
                # Whoever answers, later turns follow the first arm's words, so that all arms are asked the same.
                conversation.append({"role": "assistant", "content": _answer(results, target, question.id, turn)})
            keep(results)


def _measure_cells(
    config: BenchConfig,
    target: MeasuredModel,
    arms: Sequence[OurArm],
    results: Results,
    others: Bystanders,
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    """Every cell by all our own arms, on the questions' first turns."""
    prompts = [
        Prompt(question.id, target.encode([{"role": "user", "content": question.turns[0]}]))
        for question in interleaved(config.questions if config.cell_questions is None else config.cell_questions)
    ]
    measure_cells(
        arms,
        config.cells,
        prompts,
        results,
        rounds=config.rounds,
        max_tokens=config.max_tokens,
        seed=config.seed,
        others=others,
        progress=progress,
        keep=keep,
    )


def _answer(results: Results, target: MeasuredModel, question: str, turn: int) -> str:
    for arm in results.arms:
        for each in results.measurements:
            if (each.arm, each.question, each.turn) == (arm, question, turn) and each.timing.token_ids is not None:
                return target.decode(each.timing.token_ids)
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


def _check(config: BenchConfig) -> None:
    others = [arm.text for arm in config.arms if not arm.is_ours]
    if config.twin:
        twin_shape(config.twin)
    if others and config.twin:
        raise InvalidRequest(f"twin: only arms of ours can run a cost twin, not {others[0]}")
    if others and config.synthetic_acceptance is not None:
        raise InvalidRequest(f"synthetic acceptance: only arms of ours can be told what to accept, not {others[0]}")
    if config.cells and not config.one_by_one and others:
        raise InvalidRequest(f"concurrency: only arms of ours can be asked several things at a time, not {others[0]}")
    if config.cells and config.synthetic_acceptance is not None:
        raise InvalidRequest("synthetic acceptance: it writes other tokens than plain; leave --concurrency out")
    if config.cells and not pairs([arm.text for arm in config.arms]):
        raise InvalidRequest("concurrency: give plain and an arm to hold against it, as in --arms plain,auto")


def _other_arm(name: ArmName, target: MeasuredModel, config: BenchConfig, threads: int) -> Arm:
    if name.program == "endpoint":
        if config.endpoint is None:
            raise InvalidRequest("arms: endpoint needs --endpoint URL")
        return EndpointArm(name.text, config.endpoint, target.checkpoint.tokenizer)
    told: dict[str, Any] = {
        "folder": str(target.folder) if target.folder else None,
        "gguf": str(target.gguf) if target.gguf else None,
        "dtype": target.dtype,
        "device": target.device,
        "threads": threads,
        "max_context": target.max_context,
    }
    return PeerArm(name, told)


def _taken(earlier: Results | None, results: Results, config: BenchConfig) -> set[str]:
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
    done = finished(earlier, {question.id: len(question.turns) for question in config.questions})
    results.measurements = [each for each in earlier.measurements if each.question in done]
    results.waves = _whole_rounds(config, earlier)
    results.provenance["resumed_from"] = earlier.provenance
    return done


def _forget_unfinished(config: BenchConfig, results: Results) -> None:
    done = finished(results, {question.id: len(question.turns) for question in config.questions})
    results.measurements = [each for each in results.measurements if each.question in done]
    results.waves = _whole_rounds(config, results)


def _whole_rounds(config: BenchConfig, results: Results) -> list[Wave]:
    """Without those of rounds that some arm has not finished."""
    done = finished_rounds(results.waves, [arm.text for arm in config.arms if arm.is_ours])
    return [wave for wave in results.waves if (wave.cell, wave.round) in done]


def _settings(config: BenchConfig) -> dict[str, Any]:
    return {
        "model": config.model,
        "suite": config.suite,
        "questions": len(config.questions),
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "seed": config.seed,
        "dtype": config.dtype,
        "device": config.device,
        "threads": config.threads,
        "twin": config.twin,
        "synthetic_acceptance": config.synthetic_acceptance,
        "arms": [arm.text for arm in config.arms],
        "one_by_one": config.one_by_one,
        "cells": [cell.name for cell in config.cells],
        "rounds": config.rounds,
    }


def _context(config: BenchConfig, target: MeasuredModel) -> int:
    """Room for the longest conversation; requests of a cell are first turns alone."""
    longest = 0
    for question in config.questions:
        turns = question.turns if config.one_by_one else question.turns[:1]
        conversation = [
            message
            for text in turns
            for message in ({"role": "user", "content": text}, {"role": "assistant", "content": ""})
        ]
        # Decoding an answer and encoding it again may cost a few tokens more than it had.
        longest = max(longest, len(target.encode(conversation[:-1])) + (config.max_tokens + 32) * len(turns))
    return -(-longest // _CONTEXT_STEP) * _CONTEXT_STEP
