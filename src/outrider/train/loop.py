"""The training loop: steps, schedule, weight average, evaluations, checkpoints; the same for whatever learns.

The host never waits for a step: losses add up on the device and are read every few seconds. A batch whose loss or
gradient is not finite changes nothing (the optimiser's step is undone on the device) and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Protocol

import torch

from outrider.errors import TrainingError
from outrider.train.batch import Texts
from outrider.train.checkpoint import Checkpoints, State
from outrider.train.metrics import Sums
from outrider.train.optimizer import Optimizer
from outrider.train.prefetch import ahead
from outrider.train.report import Watcher
from outrider.train.student import Evaluation, Student

SAVE_EVERY = 45.0
"""Seconds of training that a kill may lose."""
_READ_EVERY = 2.0
_EVALUATIONS = 10
"""Over the whole run, at even distances."""
_BAD_IN_A_ROW = 3
"""Batches with no finite loss that are skipped; one more ends the run."""
_WARMUP, _LAST = 0.02, 0.1
_CHAIN = 5


class DataLoader(Protocol):
    """The corpus in batches. The batch at a position is always the same one."""

    def steps(self, epochs: int) -> int:
        """How many there are in so many epochs."""
        ...

    def batches(self, start: int) -> Iterator[Texts]:
        """From position `start` on, without end, epoch after epoch."""
        ...

    def held_out(self) -> Iterable[Texts]: ...


@dataclass(frozen=True, slots=True)
class TrainLimits:
    """What ends training. `progress` is the share of it that is used up; the schedule depends on nothing else."""

    steps: int | None
    seconds: float | None

    def progress(self, step: int, seconds: float) -> float:
        used = [0.0]
        if self.steps is not None:
            used.append(step / self.steps)
        if self.seconds is not None:
            used.append(seconds / self.seconds if self.seconds > 0 else 1.0)
        return min(1.0, max(used))


class Stop:
    """Set by Ctrl-C: the run ends at the next whole step, saved."""

    asked = False


def rate(progress: float) -> float:
    """Factor of the learning rate: up over the first steps, then a cosine down to a tenth."""
    if progress < _WARMUP:
        return 0.05 + 0.95 * progress / _WARMUP
    after = (progress - _WARMUP) / (1 - _WARMUP)
    return _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * after))


def _worth(evaluation: Evaluation) -> tuple[float, float]:
    return evaluation.acceptance_length, -evaluation.loss


def chained(shares: Mapping[str, float]) -> float:
    """Tokens per target pass if draft j of a chain of five were right with chance `right<j>`, independently (those not
    given like the one before): a rough guide while training; evaluations replay real chains."""
    length = chance = 1.0
    share = 0.0
    for j in range(1, _CHAIN + 1):
        share = shares.get(f"right{j}", share)
        chance *= share
        length += chance
    return length


class Loop:
    """Holds the whole state of training; `save` and `restore` are each other's inverse."""

    def __init__(
        self,
        student: Student,
        loader: DataLoader,
        limits: TrainLimits,
        checkpoints: Checkpoints,
        watcher: Watcher,
        stop: Stop,
        *,
        learning_rate: float,
        device: torch.device,
    ) -> None:
        self._student, self._loader, self._limits = student, loader, limits
        self._checkpoints, self._watcher, self._stop = checkpoints, watcher, stop
        self._device = device
        self._optimizer = Optimizer(student, learning_rate, device)
        self.step = 0
        """Batches seen, those skipped among them: the position in the corpus too."""
        self.tokens = 0
        self.skipped = 0
        self.evaluations = 0
        self._evaluated: int | None = None
        """The step at which held-out text was looked at last: a slow step may be due for it more than once."""
        self._seconds_before = 0.0
        self._started = monotonic()
        self._sums = Sums(device)
        self._told = 0, 0.0
        """Tokens and seconds when progress was told last."""
        self.best: Evaluation | None = None

    @property
    def seconds(self) -> float:
        """Spent training, before a restart too."""
        return self._seconds_before + monotonic() - self._started

    def run(self) -> Evaluation:
        """Train to the limit; the best evaluation, whose weights the student has afterwards."""
        self._started = monotonic()
        if self.step == 0:
            self._evaluate()  # what training starts from
        read = saved = monotonic()
        batches = ahead(self._loader.batches(self.step), lambda texts: texts.prepare(self._device))
        while (progress := self._limits.progress(self.step, self.seconds)) < 1.0:
            if self._stop.asked:
                self._read()
                self.save()
                raise KeyboardInterrupt
            if progress * _EVALUATIONS >= self.evaluations + 1 and self.step != self._evaluated:
                self._evaluate()
            texts = next(batches)
            self._take(texts, rate(progress))
            self.step += 1
            self.tokens += texts.count
            now = monotonic()
            if now - read > _READ_EVERY or now - saved > SAVE_EVERY:
                self._read()
                read = now
            if now - saved > SAVE_EVERY:
                self.save()
                saved = monotonic()
        self._read()
        if self.step != self._evaluated:
            self._evaluate()
        self.save()
        return self._take_best()

    def _take(self, texts: Texts, factor: float) -> None:
        loss, numbers = self._optimizer.gradients(texts)
        bad = self._optimizer.update(loss, factor, self.step)
        self._sums.add(bad, {"loss": loss, **numbers})

    def _read(self) -> None:
        """Look at what added up on the device, tell it, and stop if nothing can be learned any more."""
        seen = self._sums.read()
        self.skipped += seen.bad
        if seen.bad_in_a_row > _BAD_IN_A_ROW:
            raise TrainingError(
                f"the loss is not a finite number for {seen.bad_in_a_row} batches in a row (step {self.step}); the "
                "last checkpoint is intact: go on from it with --resume, or start anew with a lower --learning-rate"
            )
        if not seen.means:
            return
        seconds, (tokens, since) = self.seconds, self._told
        self._told = self.tokens, seconds
        speed = (self.tokens - tokens) / max(seconds - since, 1e-9)
        progress = self._limits.progress(self.step, seconds)
        left = seconds * (1 - progress) / progress if progress > 0 else None
        self._tell(
            "progress",
            {
                "loss": seen.means.pop("loss"),
                "acceptance_length": chained(seen.means),
                **seen.means,
                "steps": self._limits.steps,
                "tokens": self.tokens,
                "tokens_per_second": speed,
                "progress": progress,
                "seconds_left": left,
                "skipped": self.skipped,
            },
        )

    def _evaluate(self) -> None:
        """By the averaged weights."""
        self._evaluated = self.step
        self.evaluations = int(self._limits.progress(self.step, self.seconds) * _EVALUATIONS + 1e-9)
        with self._optimizer.averaged(), torch.no_grad():
            with self._optimizer.mixed():
                found = self._student.evaluate(self._loader.held_out())
            if not math.isfinite(found.loss):
                raise TrainingError(
                    f"the loss on held-out text is not a finite number at step {self.step}; the last checkpoint is "
                    "intact: go on from it with --resume, or start anew with a lower --learning-rate"
                )
            if self.best is None or _worth(found) > _worth(self.best):
                self.best = found
                self._checkpoints.save_best({"student": dict(self._student.state_dict()), "evaluation": asdict(found)})
        self._tell("evaluation", asdict(found))

    def _take_best(self) -> Evaluation:
        state = self._checkpoints.best()
        if state is None:
            raise TrainingError("the best weights of this run can no longer be read; start anew with another --out")
        self._student.load_state_dict(state["student"])
        return Evaluation(**state["evaluation"])

    def save(self) -> None:
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        self._checkpoints.save(
            self.step,
            {
                "step": self.step,
                "tokens": self.tokens,
                "skipped": self.skipped,
                "evaluations": self.evaluations,
                "seconds": self.seconds,
                "student": dict(self._student.state_dict()),
                "average": self._optimizer.average,
                "optimiser": self._optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "random_cuda": cuda,
            },
        )

    def restore(self, state: State) -> None:
        try:
            self._restore(state)
        except (KeyError, RuntimeError, ValueError) as error:
            raise TrainingError(
                "the checkpoints of this run were written by another version of Outrider; start anew with another "
                "--out (--data takes the text that is written already)"
            ) from error

    def _restore(self, state: State) -> None:
        self.step, self.tokens = state["step"], state["tokens"]
        self.skipped, self.evaluations = state["skipped"], state["evaluations"]
        self._seconds_before = state["seconds"]
        self._told = self.tokens, self._seconds_before
        self._student.load_state_dict(state["student"])
        with torch.no_grad():
            for mine, saved in zip(self._optimizer.average, state["average"], strict=True):
                mine.copy_(saved)
        self._optimizer.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        if self._device.type == "cuda" and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"], self._device)
        best = self._checkpoints.best()
        self.best = None if best is None else Evaluation(**best["evaluation"])

    def _tell(self, event: str, values: Mapping[str, Any]) -> None:
        place = {"event": event, "phase": "train", "step": self.step, "seconds": self.seconds}
        self._watcher.tell({**place, **values})
