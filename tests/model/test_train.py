"""`outrider train` on a tiny target: it learns, survives a kill, and says what is wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command
from tiny_gguf import BPE_TOKENS, bpe_metadata, write_hf_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.weights import target_ids
from outrider.train import loop
from outrider.train.batch import Texts
from outrider.train.checkpoint import Checkpoints
from outrider.train.corpus import Corpus
from outrider.train.data_loader import CorpusLoader
from outrider.train.head_student import HeadStudent
from outrider.train.report import history
from outrider.train.settings import TrainConfig

ROOT = Path(__file__).parents[2]
BAR, START = 3.5, 1.4
"""Tokens per target pass on held-out text: what the tiny head must come to, and what it starts below."""
QUICK = ("--device", "cpu", "--batch-tokens", "192", "--learning-rate", "0.006")
"""Small batches and large steps: little text is enough to learn from."""
SHORT = (*QUICK, "--epochs", "1", "--layers", "1")
"""Where it matters how a run goes and not what comes of it."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taught in seconds to say a long round of tokens by heart: what comes next can be told, and nothing loops (what a
    random target says greedily is little else than loops, which are not kept)."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(BPE_TOKENS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=128, initializer_range=0.15,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    order = torch.randperm(len(BPE_TOKENS) - 2) + 2  # without the tokens that begin and end a text
    following = torch.zeros(len(BPE_TOKENS), dtype=torch.long)
    following[order] = order.roll(-1)
    descent = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(120):
        tokens = torch.randint(2, len(BPE_TOKENS), (64, 16))
        for place in range(1, 16):
            known = torch.rand(64) < 0.8
            tokens[known, place] = following[tokens[known, place - 1]]
        loss = model(input_ids=tokens, labels=tokens).loss
        descent.zero_grad()
        loss.backward()
        descent.step()
    path = tmp_path_factory.mktemp("target") / "tiny.gguf"
    write_hf_model(path, model, bpe_metadata(), **{"rope.freq_base": 1e4})
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rng = random.Random(0)
    words = ["the", "hell", "in", "tin", "he", "ill", "then", "a", "b", "c", "x"]
    lines = [json.dumps({"prompt": " ".join(rng.choices(words, k=rng.randint(2, 6)))}) for _ in range(600)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(target: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run by the command itself."""
    out = tmp_path_factory.mktemp("run") / "head"
    given = ("--model", str(target), "--prompts", str(prompts), "--tokens", "8000", "--epochs", "2")
    assert command("train", "--out", str(out), *given, *QUICK) == 0
    return out


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def test_learns_and_leaves_everything_behind(trained: Path, prompts: Path) -> None:
    done = events(trained, "done")[0]
    assert done["acceptance_length"] >= BAR
    untrained, *_, last = events(trained, "evaluation")
    assert untrained["step"] == 0
    assert untrained["acceptance_length"] < START
    assert last["loss"] < 0.7 * untrained["loss"]
    for folder in (trained, trained / "compact"):
        head = HeadCheckpoint.read(folder)
        assert head.about["target"] == "tiny.gguf"
        assert head.about["held_out"]["acceptance_length"] == done["acceptance_length"]
    assert (trained / "training.png").stat().st_size > 5000
    card = (trained / "README.md").read_text()
    settings = TrainConfig.load(trained / "settings.json")
    assert settings.command in card
    assert f"{done['acceptance_length']:.2f} tokens per target pass" in card
    assert f"`{prompts.name}` (SHA-256 `{settings.prompts_sha256}`)" in card
    for text in (card, (trained / "config.json").read_text()):
        assert str(prompts.parent) not in text, "no paths of the machine in what is passed on"
    assert not list(trained.rglob("*.part"))


def test_a_finished_run_is_not_trained_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = events(trained, "done")[0]["steps"]
    assert command("train", "--out", str(trained), "--resume", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["event"] == "done"
    assert told[-1]["steps"] == steps
    assert not [line for line in told if line["event"] == "progress"]


def test_a_draft_model_learns_too(trained: Path, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    data = ("--data", str(trained / "data"), "--model", str(target), "--epochs", "1", *QUICK)
    assert command("train", "--out", str(out), "--draft-model", "--layers", "1", *data) == 0
    (done,) = events(out, "done")
    assert done["loss"] < 0.3 * events(out, "evaluation")[0]["loss"]
    assert done["acceptance_length"] > BAR
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    assert "--drafter model:DIR" in (out / "README.md").read_text()

    more = tmp_path / "more"
    assert command("train", "--out", str(more), "--draft-model", "--start-from", str(out), *data) == 0
    assert events(more, "evaluation")[0]["loss"] == pytest.approx(done["loss"], rel=0.1)  # bf16 in between
    assert events(more, "done")[0]["loss"] < done["loss"]
    assert command("train", "--out", str(tmp_path / "new"), "--start-from", str(out), *data) == 2


@pytest.mark.parametrize("form", [".", pytest.param("compact", marks=pytest.mark.slow)])
def test_training_goes_on_from_a_head(trained: Path, target: Path, prompts: Path, tmp_path: Path, form: str) -> None:
    start, out = trained / form, tmp_path / "more"
    given = ("--data", str(trained / "data"), "--model", str(target), "--epochs", "1", *QUICK)
    assert command("train", "--out", str(out), "--start-from", str(start), *given) == 0
    before = events(trained, "done")[0]
    first, *_ = events(out, "evaluation")
    assert first["acceptance_length"] == pytest.approx(before["acceptance_length"], abs=0.3)
    assert first["loss"] == pytest.approx(before["loss"], rel=0.1)
    assert events(out, "done")[0]["loss"] < before["loss"]
    head, settings = HeadCheckpoint.read(out), TrainConfig.load(out / "settings.json")
    assert torch.equal(head.tensors["d2t"], HeadCheckpoint.read(trained).tensors["d2t"])
    digest = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    assert settings.start_from_sha256 == head.about["started_from"]["sha256"] == digest
    assert head.about["started_from"]["command"] == TrainConfig.load(trained / "settings.json").command
    card = (out / "README.md").read_text()
    assert f"Training went on from `{start.name}` (weights SHA-256 `{digest}`)" in card
    assert f"--start-from {start.name}" in settings.command
    assert f"in an earlier run. The prompts are those of `{prompts.name}` (SHA-256 `" in card
    assert str(start) not in card

    assert command("train", "--out", str(out), "--resume", "--start-from", str(start)) == 0
    assert command("train", "--out", str(out), "--resume", "--start-from", "shipped") == 2


OPTIONS = ("--draft-vocab", "64", "--seed", "1", *SHORT)


@pytest.mark.slow
def test_a_head_that_starts_with_more_to_draft_and_read_drafts_as_before(
    trained: Path, target: Path, prompts: Path, tmp_path: Path
) -> None:
    small, grown = tmp_path / "small", tmp_path / "grown"
    given = ("--model", str(target), "--data", str(trained / "data"), *SHORT)
    assert command("train", "--out", str(small), "--draft-vocab", "200", "--taps", "0,2", *given) == 0
    more = ("--start-from", str(small), "--draft-vocab", "240", "--taps", "0,1,2")
    assert command("train", "--out", str(grown), *more, *given) == 0
    before, after = HeadCheckpoint.read(small), HeadCheckpoint.read(grown)
    assert (after.config.draft_vocab, after.config.aux_hidden_layers) == (240, (0, 1, 2))
    ids = set(target_ids(after.tensors["d2t"]).tolist())
    assert ids > set(target_ids(before.tensors["d2t"]).tolist())
    first, best = events(grown, "evaluation")[0], events(small, "done")[0]
    # New tokens begin near where training would have brought them, so nothing is lost and some are right at once.
    assert first["acceptance_length"] > best["acceptance_length"] - 0.05
    assert events(grown, "done")[0]["acceptance_length"] > best["acceptance_length"] + 0.3
    assert TrainConfig.load(grown / "settings.json").command.count("--taps 0,1,2") == 1


def test_killed_stopped_and_resumed(trained: Path, target: Path, tmp_path: Path) -> None:
    """Ctrl-C, then kill -9, then to the end: as if nothing had happened."""
    data = ("--data", str(trained / "data"), "--model", str(target), *OPTIONS)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert command("train", "--out", str(whole), *data) == 0

    with started("--out", str(broken), *data) as process:
        wait_for(lambda: len(list(broken.glob("checkpoints/step-*.pt"))) == 2, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
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
    """The command in a process of its own, saving after every step."""
    code = "from outrider.train import loop; loop.SAVE_EVERY = 0.0; from outrider.cli.main import main; main()"
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
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, read(process)
        assert time.monotonic() < end
        time.sleep(0.05)


def step_of(out: Path) -> int:
    state = Checkpoints(out / "checkpoints").latest()
    return 0 if state is None else int(state["step"])


def planted(monkeypatch: pytest.MonkeyPatch, bad: range) -> None:
    """The loss is no number in these batches."""
    honest = HeadStudent.loss
    batch = iter(range(10**6))

    def loss(student: HeadStudent, texts: Texts) -> tuple[Tensor, dict[str, Tensor]]:
        value, numbers = honest(student, texts)
        return (value * float("nan") if next(batch) in bad else value), numbers

    monkeypatch.setattr(HeadStudent, "loss", loss)


def test_a_few_bad_batches_are_skipped(
    trained: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, range(5, 8))
    data = ("--data", str(trained / "data"), "--model", str(target), *SHORT)
    assert command("train", "--out", str(tmp_path / "run"), *data) == 0
    assert events(tmp_path / "run", "progress")[-1]["skipped"] == 3
    best = Checkpoints(tmp_path / "run" / "checkpoints").best()
    assert best is not None
    assert all(tensor.isfinite().all() for tensor in best["student"].values())


def test_no_finite_loss_ends_the_run_and_keeps_the_checkpoint(
    trained: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    data = ("--data", str(trained / "data"), "--model", str(target), *SHORT)
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
    trained: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    data = ("--data", str(trained / "data"), "--model", str(target), *SHORT)
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


def test_wrong_requests(
    trained: Path, target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "fine"}\n{"question": "not"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    new, model = ("--out", str(tmp_path / "new")), ("--model", str(target))
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
    trained: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, out = HeadCheckpoint.read(trained), tmp_path / "run"
    head.write(tmp_path / "start")
    given = ("--data", str(trained / "data"), "--model", str(target), "--minutes", "0.005", *QUICK)
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


def test_batches_by_position(trained: Path) -> None:
    loader = CorpusLoader(Corpus(trained / "data", len(BPE_TOKENS)), 512, 0)
    epoch = loader.steps(1)
    whole = loader.batches(0)
    expected = [next(whole).tokens for _ in range(epoch + 5)]
    for start in (3, epoch - 1, epoch, epoch + 2):
        for tokens, texts in zip(expected[start:], loader.batches(start), strict=False):
            assert torch.equal(tokens, texts.tokens)
