"""`outrider train` on a tiny target: it survives a kill, bad numbers and a full disk, and says what is wrong."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import command
from tiny_training import QUICK, SHORT, events, step_of
from torch import Tensor

from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.train import loop
from outrider.train.batch import Texts
from outrider.train.checkpoint import Checkpoints
from outrider.train.head_student import HeadStudent
from outrider.train.report import history

ROOT = Path(__file__).parents[2]
OPTIONS = ("--draft-vocab", "64", "--seed", "1", *SHORT)


def test_killed_stopped_and_resumed(trained: Path, taught: Path, tmp_path: Path) -> None:
    """Ctrl-C, then kill -9, then to the end: as if nothing had happened."""
    data = ("--data", str(trained / "data"), "--model", str(taught), *OPTIONS)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert command("train", "--out", str(whole), *data) == 0

    with started("--out", str(broken), *data) as process:
        wait_for(lambda: len(list(broken.glob("checkpoints/step-*.pt"))) == 2, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 130
        assert f"go on with: outrider train --out {broken} --resume" in read(process)
    stopped = step_of(broken)
    with started("--out", str(broken), "--resume") as process:
        wait_for(lambda: step_of(broken) > stopped + 3, process)
        process.kill()
        process.wait(60)
    killed = step_of(broken)
    assert 0 < stopped < killed < events(whole, "done")[0]["steps"]

    assert command("train", "--out", str(broken), "--resume") == 0
    expected, found = (events(out, "done")[-1] for out in (whole, broken))
    assert found["steps"] == expected["steps"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert [line["step"] for line in history(broken / "log.jsonl")] == sorted(
        line["step"] for line in history(broken / "log.jsonl")
    )


def started(*arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, saving after every step, and in no hurry to end before it is stopped."""
    code = """
import time
from outrider.cli.main import main
from outrider.train import loop
from outrider.train.head_student import HeadStudent

loop.SAVE_EVERY, honest = 0.0, HeadStudent.loss

def slowly(*given):
    time.sleep(0.2)
    return honest(*given)

HeadStudent.loss = slowly
main()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, "train", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def read(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.read()


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, read(process)
        assert time.monotonic() < end
        time.sleep(0.05)


def planted(monkeypatch: pytest.MonkeyPatch, bad: range) -> None:
    """The loss is no number in these batches."""
    honest = HeadStudent.loss
    batch = iter(range(10**6))

    def loss(student: HeadStudent, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        value, numbers = honest(student, texts)
        return (value * float("nan") if next(batch) in bad else value), numbers

    monkeypatch.setattr(HeadStudent, "loss", loss)


def test_a_few_bad_batches_are_skipped(
    trained: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, range(5, 8))
    data = ("--data", str(trained / "data"), "--model", str(taught), *SHORT)
    assert command("train", "--out", str(tmp_path / "run"), *data) == 0
    assert events(tmp_path / "run", "progress")[-1]["skipped"] == 3
    best = Checkpoints(tmp_path / "run" / "checkpoints").best()
    assert best is not None
    assert all(tensor.isfinite().all() for tensor in best["student"].values())


def test_no_finite_loss_ends_the_run_and_keeps_the_checkpoint(
    trained: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    data = ("--data", str(trained / "data"), "--model", str(taught), *SHORT)
    with monkeypatch.context() as planting:
        planting.setattr(loop, "SAVE_EVERY", 0.0)
        planted(planting, range(10, 10**6))
        assert command("train", "--out", str(out), *data) == 2
    said = capsys.readouterr().err
    assert "the loss is not a finite number for 4 batches in a row" in said
    assert "--resume" in said
    state = Checkpoints(out / "checkpoints").latest()
    assert state is not None
    assert 10 <= state["step"] <= 13
    assert all(tensor.isfinite().all() for tensor in (*state["student"].values(), *state["average"]))
    assert command("train", "--out", str(out), "--resume") == 0
    assert events(out, "done")[0]["loss"] < events(out, "evaluation")[0]["loss"]


def test_disk_full(
    trained: Path, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    data = ("--data", str(trained / "data"), "--model", str(taught), *SHORT)
    calls = iter(range(10**6))
    honest = os.fsync

    def full(handle: int) -> None:
        if next(calls) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(handle)

    with monkeypatch.context() as planting:
        planting.setattr(loop, "SAVE_EVERY", 0.0)
        planting.setattr(os, "fsync", full)
        assert command("train", "--out", str(out), *data) == 2
    said = capsys.readouterr().err
    assert "is full; what was saved before is intact" in said
    assert not list(out.rglob("*.part"))
    assert step_of(out) > 3
    assert command("train", "--out", str(out), "--resume") == 0


def test_wrong_requests(trained: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "fine"}\n{"question": "not"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    new, model = ("--out", str(tmp_path / "new")), ("--model", str(taught))
    head = HeadCheckpoint.read(trained)
    replace(head, about={**head.about, "vocabulary": "of another tokenizer"}).write(tmp_path / "other")
    replace(head, config=replace(head.config, target_layers=9)).write(tmp_path / "deep")
    cases = {
        (*new, *model, "--prompts", str(tmp_path / "none.txt")): "cannot be read",
        (*new, *model, "--prompts", str(bad)): "line 2 of",
        (*new, *model, "--loss", "best"): "--loss must be one of ce, kl",
        (*new, *model, "--data", str(tmp_path / "none")): "is no folder that a run wrote its data to",
        (*new, *model, "--data", str(trained / "data"), "--tokens", "9"): "leave --prompts and --tokens out",
        (*new, *model, "--minutes", "0"): "--minutes must be above 0",
        (*new, *model, "--start-from", str(trained), "--layers", "1"): "has --layers 2, not 1; leave --layers out",
        (*new, *model, "--start-from", str(trained), "--draft-vocab", "9"): "--draft-vocab 266, not 9",
        (*new, *model, "--start-from", str(trained), "--taps", "1,2"): "has --taps 0,1,2, not 1,2",
        (*new, *model, "--taps", "1,9"): "not layers of a target that has 2",
        (*new, *model, "--taps", "low"): "--taps must be numbers of layers",
        (*new, *model, "--taps", "1", "--draft-model"): "a draft model reads nothing",
        (*new, *model, "--start-from", str(tmp_path / "none")): "no head in",
        (*new, *model, "--start-from", "shipped"): "comes with Outrider; name a folder",
        (*new, *model, "--start-from", str(tmp_path / "deep")): "made for another target",
        (*new, *model, "--start-from", str(tmp_path / "other")): "for a target with another vocabulary",
        (*new, *model, "--start-from", str(trained), "--draft-model"): "holds a head; leave --draft-model out",
        (*new, "--resume"): "there is no run in",
        ("--out", str(trained), *model): "holds a run already; go on with it by --resume",
        ("--out", str(trained), "--resume", "--tokens", "5"): "was started with --tokens 8000, not 5",
        ("--out", str(tmp_path / "full"), *model): "is not an empty folder",
    }
    for arguments, sentence in cases.items():
        assert command("train", "--device", "cpu", *arguments) == 2, arguments
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_target_without_states(default_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A family that only transformers runs."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "gpt2" / name).write_bytes((default_model_dir / name).read_bytes())
    arguments = ("--out", str(tmp_path / "new"), "--model", str(tmp_path / "gpt2"), "--device", "cpu")
    assert command("train", *arguments) == 2
    assert "cannot be read" in (said := capsys.readouterr().err)
    assert "own decoder" in said


def test_a_start_that_changed_is_not_gone_on_from(
    trained: Path, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, out = HeadCheckpoint.read(trained), tmp_path / "run"
    head.write(tmp_path / "start")
    given = ("--data", str(trained / "data"), "--model", str(taught), "--minutes", "0.005", *QUICK)
    assert command("train", "--out", str(out), "--start-from", str(tmp_path / "start"), *given) == 0
    replace(head, tensors={**head.tensors, "norm.weight": head.tensors["norm.weight"] + 1}).write(tmp_path / "start")
    assert command("train", "--out", str(out), "--resume") == 2
    assert "has changed since this run began" in capsys.readouterr().err


def test_one_process_per_folder(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    with (trained / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert command("train", "--out", str(trained), "--resume") == 2
    assert "another process is training in" in capsys.readouterr().err
