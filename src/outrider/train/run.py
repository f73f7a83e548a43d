"""A whole training run in its folder: data, training, export, card. Every part picks up where a killed run left it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch

from outrider.errors import TrainingError
from outrider.train import card, plot, report, settings
from outrider.train.checkpoint import Checkpoints
from outrider.train.files import explained, replace_text
from outrider.train.loop import DataLoader, Loop, Stop, TrainLimits
from outrider.train.report import Log, Watcher, history
from outrider.train.settings import Asked, Defaults, TrainConfig
from outrider.train.start import look
from outrider.train.student import Evaluation, Student

DATA, CHECKPOINTS = "data", "checkpoints"
_LOCK = ".lock"
_WRITING = 0.4
"""At most this share of a run's minutes goes into writing data."""


class TrainContext(Protocol):
    """What a run needs of its target."""

    def write(self, tell: Tell, stop: Stop, seconds: float | None) -> None:
        """Bring the corpus up to the tokens asked for, or to what `seconds` allow; `stop` ends it early."""
        ...

    @property
    def data(self) -> Mapping[str, Any]:
        """Recipe and counts of the corpus, for the card."""
        ...

    @property
    def start(self) -> Mapping[str, Any] | None:
        """What training started from, for the card; None: from the target's own layers."""
        ...

    def loader(self) -> DataLoader: ...
    def student(self) -> Student: ...


class Tell(Protocol):
    """How far writing is: tokens so far, of how many."""

    def __call__(self, done: int, total: int) -> None: ...


Open = Callable[[TrainConfig, Path, torch.device], TrainContext]
"""Makes the context of a run; the path is where its corpus lies."""


@dataclass(frozen=True, slots=True)
class Outcome:
    folder: Path
    evaluation: Evaluation
    steps: int
    seconds: float


def run(
    asked: Asked,
    folder: Path,
    *,
    device: torch.device,
    resume: bool,
    watcher: Watcher,
    stop: Stop,
    model: str,
    opened: Open,
) -> Outcome:
    """`model`: the target where none is asked for."""
    if asked.data is not None and (asked.prompts is not None or asked.tokens is not None):
        raise TrainingError("--data brings what was written already: leave --prompts and --tokens out")
    chosen = _settled(asked, folder, Defaults.of(model, str(device)), resume)
    # Whatever is wrong with the target or the prompts shows here, before the folder is taken.
    context = opened(chosen, Path(chosen.data) if chosen.data is not None else folder / DATA, device)
    with _alone(folder):
        if not resume:
            _check_free(folder)
            with explained(folder):
                replace_text(folder / settings.FILE, chosen.dumps())
        return _Run(chosen, folder, device, Log(folder / report.FILE, watcher), stop).run(context)


class _Run:
    def __init__(self, chosen: TrainConfig, folder: Path, device: torch.device, log: Log, stop: Stop) -> None:
        self._settings, self._folder, self._device, self._log, self._stop = chosen, folder, device, log, stop

    def run(self, context: TrainContext) -> Outcome:
        s = self._settings
        checkpoints = Checkpoints(self._folder / CHECKPOINTS)
        state = checkpoints.latest()
        # Once training has begun the corpus stays as it is: positions in it must keep their meaning.
        writing = self._write(context) if state is None else self._written_before()
        torch.manual_seed(s.seed)
        loader, student = context.loader(), context.student()
        limits = TrainLimits(
            steps=None if s.epochs is None else loader.steps(s.epochs),
            seconds=None if s.minutes is None else max(0.0, s.minutes * 60 - writing),
        )
        loop = Loop(
            student,
            loader,
            limits,
            checkpoints,
            self._log,
            self._stop,
            learning_rate=s.learning_rate,
            device=self._device,
        )
        self._phase("train", parameters=sum(p.numel() for p in student.parameters()), steps=limits.steps)
        if state is not None:
            loop.restore(state)
            self._note(f"going on at step {loop.step}")
        evaluation = loop.run()
        self._phase("export")
        facts = card.about(s, student.kind, context.start, context.data, self._trained(loop, writing), evaluation)
        self._export(student, facts, loader)
        outcome = Outcome(self._folder, evaluation, loop.step, writing + loop.seconds)
        self._log.tell(
            {
                "event": "done",
                "out": str(self._folder),
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "loss": evaluation.loss,
                "acceptance_length": evaluation.acceptance_length,
                "per_position": evaluation.per_position,
            }
        )
        return outcome

    def _write(self, context: TrainContext) -> float:
        """Seconds spent writing, in killed runs too."""
        if self._settings.data is not None:
            return 0.0
        before = self._written_before()
        minutes = self._settings.minutes
        allowed = None if minutes is None else max(0.0, minutes * 60 * _WRITING - before)
        started = told = monotonic()
        first: int | None = None

        def tell(done: int, total: int) -> None:
            nonlocal told, first
            now = monotonic()
            first = done if first is None else first
            if now - told < 2.0 and done < total:
                return
            told = now
            speed = (done - first) / max(now - started, 1e-9)
            allowed_yet = None if allowed is None else allowed - (now - started)
            self._log.tell(
                {
                    "event": "progress",
                    "phase": "write",
                    "tokens": done,
                    "of": total,
                    "tokens_per_second": speed,
                    "seconds": before + now - started,
                    "seconds_left": writing_left(total - done, speed, allowed_yet),
                    "progress": min(1.0, done / total),
                }
            )

        self._phase("write", tokens=self._settings.tokens)
        context.write(tell, self._stop, allowed)
        if self._stop.asked:
            raise KeyboardInterrupt
        seconds = before + monotonic() - started
        self._log.tell({"event": "written", "phase": "write", "seconds": seconds})
        return seconds

    def _written_before(self) -> float:
        events = report.events(self._folder / report.FILE)
        return max((float(e["seconds"]) for e in events if e.get("phase") == "write" and "seconds" in e), default=0.0)

    def _trained(self, loop: Loop, writing: float) -> dict[str, Any]:
        where = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else platform.machine()
        return {
            "steps": loop.step,
            "tokens": loop.tokens,
            "skipped batches": loop.skipped,
            "minutes of training": round(loop.seconds / 60, 2),
            "minutes of writing": round(writing / 60, 2),
            "device": where,
        }

    def _export(self, student: Student, facts: Mapping[str, Any], loader: DataLoader) -> None:
        course = history(self._folder / report.FILE)
        with explained(self._folder):
            student.export(self._folder, facts, loader.held_out())
            replace_text(self._folder / card.FILE, card.page(self._settings, facts, course, plot.possible()))
        if plot.possible():
            title = f"{facts['kind']} for {facts['target']}"
            plot.draw(course, title, self._folder / plot.FILE)
        else:
            self._note('no plot: matplotlib is missing; install it with: pip install "outrider[bench]"')

    def _phase(self, name: str, **values: Any) -> None:
        self._log.tell({"event": "phase", "phase": name, **values})

    def _note(self, text: str) -> None:
        self._log.tell({"event": "note", "text": text})


def writing_left(tokens: int, speed: float, seconds: float | None) -> float | None:
    """Seconds until so many tokens are written, or the `seconds` there are for it are over; None: nobody knows yet."""
    ends = [tokens / speed] if speed > 0 else []
    if seconds is not None:
        ends.append(max(0.0, seconds))
    return min(ends, default=None)


def _settled(asked: Asked, folder: Path, defaults: Defaults, resume: bool) -> TrainConfig:
    """The settings of the run in `folder`: those it began with, or new ones."""
    file = folder / settings.FILE
    if resume:
        if not file.is_file():
            raise TrainingError(f"there is no run in {folder} to go on with; leave --resume out to start one")
        stored = TrainConfig.load(file)
        stored.agree(asked)
        if stored.start_from is not None:
            found = look(stored.start_from, stored.model, stored.draft_model)
            if found.sha256 != stored.start_from_sha256:
                raise TrainingError(f"{stored.start_from} has changed since this run began; put it back, or start anew")
        return stored
    _check_free(folder)
    if asked.start_from is None:
        return TrainConfig.settle(asked, defaults)
    start = look(asked.start_from, asked.model or defaults.model, bool(asked.draft_model))
    return TrainConfig.settle(asked, defaults, start)


def _check_free(folder: Path) -> None:
    if (folder / settings.FILE).is_file():
        raise TrainingError(f"{folder} holds a run already; go on with it by --resume, or choose another --out")
    if folder.exists() and (not folder.is_dir() or any(each.name != _LOCK for each in folder.iterdir())):
        raise TrainingError(f"{folder} is not an empty folder; choose another --out")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process per run; the lock goes with the process, however it ends."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with explained(folder):
        file = (folder / _LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainingError(f"another process is training in {folder}; wait for it, or stop it") from error
        yield
