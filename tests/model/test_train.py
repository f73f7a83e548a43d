"""`outrider train` on a tiny target: it learns, and goes on from what was trained before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from commands import command
from tiny_gguf import BPE_TOKENS
from tiny_training import QUICK, SHORT, events

from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.weights import target_ids
from outrider.train.corpus import Corpus
from outrider.train.data_loader import CorpusLoader
from outrider.train.settings import TrainConfig

BAR, START = 3.5, 1.4
"""Tokens per target pass on held-out text: what the tiny head must come to, and what it starts below."""


def test_learns_and_leaves_everything_behind(trained: Path, asked: Path) -> None:
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
    assert f"`{asked.name}` (SHA-256 `{settings.prompts_sha256}`)" in card
    for text in (card, (trained / "config.json").read_text()):
        assert str(asked.parent) not in text, "no paths of the machine in what is passed on"
    assert not list(trained.rglob("*.part"))


def test_a_finished_run_is_not_trained_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = events(trained, "done")[0]["steps"]
    assert command("train", "--out", str(trained), "--resume", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["event"] == "done"
    assert told[-1]["steps"] == steps
    assert not [line for line in told if line["event"] == "progress"]


def test_a_draft_model_learns_too(trained: Path, taught: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    data = ("--data", str(trained / "data"), "--model", str(taught), "--epochs", "1", *QUICK)
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
def test_training_goes_on_from_a_head(trained: Path, taught: Path, asked: Path, tmp_path: Path, form: str) -> None:
    start, out = trained / form, tmp_path / "more"
    given = ("--data", str(trained / "data"), "--model", str(taught), "--epochs", "1", *QUICK)
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
    assert f"in an earlier run. The prompts are those of `{asked.name}` (SHA-256 `" in card
    assert str(start) not in card

    assert command("train", "--out", str(out), "--resume", "--start-from", str(start)) == 0
    assert command("train", "--out", str(out), "--resume", "--start-from", "shipped") == 2


@pytest.mark.slow
def test_a_head_that_starts_with_more_to_draft_and_read_drafts_as_before(
    trained: Path, taught: Path, asked: Path, tmp_path: Path
) -> None:
    small, grown = tmp_path / "small", tmp_path / "grown"
    given = ("--model", str(taught), "--data", str(trained / "data"), *SHORT)
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


def test_batches_by_position(trained: Path) -> None:
    loader = CorpusLoader(Corpus(trained / "data", len(BPE_TOKENS)), 512, 0)
    epoch = loader.steps(1)
    whole = loader.batches(0)
    expected = [next(whole).tokens for _ in range(epoch + 5)]
    for start in (3, epoch - 1, epoch, epoch + 2):
        for tokens, texts in zip(expected[start:], loader.batches(start), strict=False):
            assert torch.equal(tokens, texts.tokens)
