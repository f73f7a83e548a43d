"""`outrider train`: make a drafter for a target. Thin: the work is in `outrider.train`."""

from __future__ import annotations

import json as as_json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.options import DEFAULT_MODEL
from outrider.cli.screen import note, notes

if TYPE_CHECKING:
    from outrider.train.loop import Stop
    from outrider.train.run import Outcome

_what = partial(typer.Option, rich_help_panel="What is trained")
_how = partial(typer.Option, rich_help_panel="How long, and on what")
_output = partial(typer.Option, rich_help_panel="Output")
_EVERY = 10.0
"""Seconds between two lines where stderr is no terminal."""


def train(
    out: Annotated[Path, _output("--out", metavar="DIR", help="A new folder for the run and what comes of it.")],
    model: Annotated[
        str | None,
        _what(
            "--model",
            "-m",
            metavar="MODEL",
            help=f"The target: known name, model folder, GGUF file or hub id; {DEFAULT_MODEL} if not given.",
        ),
    ] = None,
    draft_model: Annotated[
        bool, _what("--draft-model", help="Distil a small stand-alone model instead of a head.")
    ] = False,
    layers: Annotated[
        int | None, _what("--layers", min=1, metavar="N", help="Layers of what is trained; 2 if not given.")
    ] = None,
    draft_vocab: Annotated[
        int | None,
        _what("--draft-vocab", min=2, metavar="N", help="Tokens a head can draft: the N the target writes most."),
    ] = None,
    taps: Annotated[
        str | None,
        _what("--taps", metavar="N,N,…", help="Layers after which a head reads the target's state, as 2,15,27."),
    ] = None,
    start_from: Annotated[
        str | None,
        _what(
            "--start-from",
            metavar="DIR",
            help="Train the head (or draft model) in DIR further, or with `shipped` the head that comes with the"
            " package; begins with the target's own layers if not given.",
        ),
    ] = None,
    loss: Annotated[
        str | None, _what("--loss", metavar="NAME", help="What is minimised: ce, kl, tv, kl+ce or kl+tv.")
    ] = None,
    prompts: Annotated[
        Path | None,
        _how(
            "--prompts",
            metavar="FILE",
            help="Prompts to answer beside those the target invents: a line each, or JSON lines with prompt or turns.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        _how("--data", metavar="DIR", help="Learn from what an earlier run wrote (its data folder); write nothing."),
    ] = None,
    tokens: Annotated[
        int | None, _how("--tokens", min=1, metavar="N", help="Tokens of text to have the target write.")
    ] = None,
    minutes: Annotated[
        float | None,
        _how(
            "--minutes",
            min=0.0,
            metavar="N",
            help="Train for so long, at most 40% of it spent on writing; loading comes on top.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        _how("--epochs", min=1, metavar="N", help="End after N passes over the text, or after --minutes."),
    ] = None,
    learning_rate: Annotated[
        float | None, _how("--learning-rate", min=0.0, metavar="X", help="At its highest.")
    ] = None,
    batch_tokens: Annotated[int | None, _how("--batch-tokens", min=16, metavar="N", help="Tokens per step.")] = None,
    seed: Annotated[int | None, _how("--seed", metavar="N", help="Fixes the randomness; 0 if not given.")] = None,
    device: Annotated[str, _how("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    resume: Annotated[
        bool,
        _output("--resume", help="Go on with the run in DIR, as it began; at most the last minute is done again."),
    ] = False,
    json: Annotated[bool, _output("--json", help="Print one JSON object per event on stdout.")] = False,
) -> None:
    """Train a drafter for MODEL on text that MODEL writes: a head that reads its hidden states, or a small model."""
    from outrider.cli.progress import RichProgress
    from outrider.models.load import placement
    from outrider.train.context import opener
    from outrider.train.run import run
    from outrider.train.settings import Asked

    place = placement(device=device, dtype="auto", bitwise=None, threads=None, max_batch=1, max_context=None)
    asked = Asked(
        model=model,
        draft_model=draft_model or None,
        start_from=start_from,
        prompts=None if prompts is None else str(prompts),
        data=None if data is None else str(data),
        tokens=tokens,
        minutes=minutes,
        epochs=epochs,
        layers=layers,
        draft_vocab=draft_vocab,
        taps=taps,
        loss=loss,
        learning_rate=learning_rate,
        batch_tokens=batch_tokens,
        seed=seed,
    )
    with _watching(json) as watcher, _stopping() as stop:
        try:
            outcome = run(
                asked,
                out,
                device=place.device,
                resume=resume,
                watcher=watcher,
                stop=stop,
                model=DEFAULT_MODEL,
                opened=opener(RichProgress()),
            )
        except KeyboardInterrupt:
            if (out / "settings.json").is_file():
                note(f"stopped and saved; go on with: outrider train --out {out} --resume")
            raise
    if not json:
        _say(outcome, draft_model)


def _say(outcome: Outcome, draft_model: bool) -> None:
    found = outcome.evaluation
    shares = ", ".join(f"{share:.0%}" for share in found.per_position)
    note(f"{found.acceptance_length:.2f} tokens per target pass on held-out text; accepted by position: {shares}")
    note(f"use it with: --drafter {'model' if draft_model else 'head'}:{outcome.folder} (see README.md there)")


@contextmanager
def _stopping() -> Iterator[Stop]:
    """Ctrl-C, or a polite kill, ends the run at the next whole step; a second one ends it at once."""
    from outrider.train.loop import Stop

    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        note("stopping after this step; once more stops at once")

    before: dict[signal.Signals, Any] = {}
    for each in (signal.SIGINT, signal.SIGTERM):
        try:
            before[each] = signal.signal(each, ask)
        except ValueError:  # not in the main thread: whoever runs us decides
            break
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _watching(json: bool) -> Iterator[_Plain | _Json | _Line]:
    if json:
        yield _Json()
    elif not sys.stderr.isatty():
        yield _Plain()
    else:
        from rich.status import Status

        with Status("starting", console=notes()) as status:
            yield _Line(status)


class _Json:
    def tell(self, event: Mapping[str, Any]) -> None:
        print(as_json.dumps(dict(event)), flush=True)


class _Plain:
    """For a log file: progress now and then, everything else as it comes."""

    def __init__(self) -> None:
        self._said = 0.0

    def tell(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress":
            if monotonic() - self._said < _EVERY:
                return
            self._said = monotonic()
        if text := describe(event):
            print(text, file=sys.stderr, flush=True)


class _Line:
    """One line that is always the newest; evaluations and notes stay above it."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def tell(self, event: Mapping[str, Any]) -> None:
        text = describe(event)
        if event["event"] in ("progress", "phase"):
            self._status.update(text)
        elif text:
            self._status.console.print(text)


def describe(event: Mapping[str, Any]) -> str:
    """An event in a line; empty where there is nothing to say."""
    match event["event"]:
        case "phase":
            return {"write": "writing text", "train": "training", "export": "exporting"}[event["phase"]] + " …"
        case "note":
            return str(event["text"])
        case "evaluation":
            return (
                f"step {event['step']}, held-out: loss {event['loss']:.4f}, "
                f"{event['acceptance_length']:.3f} tokens per target pass"
            )
        case "progress":
            return _progress(event)
        case _:
            return ""


def _progress(event: Mapping[str, Any]) -> str:
    if event["phase"] == "write":
        parts = [f"writing text: {event['tokens']:,} of {event['of']:,} tokens"]
    else:
        steps = f" of {event['steps']}" if event["steps"] is not None else ""
        parts = [
            f"training: step {event['step']}{steps}",
            f"loss {event['loss']:.4f}",
            f"about {event['acceptance_length']:.2f} tokens per target pass",
        ]
        if event["skipped"]:
            parts.append(f"{event['skipped']} bad batches skipped")
    parts.append(f"{event['tokens_per_second']:,.0f} tokens/s")
    if event["seconds_left"] is not None:
        parts.append(f"{_duration(event['seconds_left'])} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
