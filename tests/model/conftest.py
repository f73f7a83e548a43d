"""What several files test over: a tiny model, with a decoder of it that has few slots and reads prompts in pieces, for
engines; a tiny run of `outrider train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import command
from tiny_engine import small_decoder
from tiny_models import reference
from tiny_training import QUICK, write_prompts, write_target

from outrider.models.native.decoder import NativeDecoder


@pytest.fixture(scope="module")
def source() -> Any:
    return reference("llama")


@pytest.fixture
def model(source: Any) -> NativeDecoder:
    made = small_decoder(source)
    made.chunk = 24  # prompts take several steps
    return made


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of that run."""
    path = tmp_path_factory.mktemp("target") / "tiny.gguf"
    write_target(path)
    return path


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_prompts(path)
    return path


@pytest.fixture(scope="session")
def trained(taught: Path, asked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command has left a whole run."""
    out = tmp_path_factory.mktemp("run") / "head"
    given = ("--model", str(taught), "--prompts", str(asked), "--tokens", "8000", "--epochs", "2")
    assert command("train", "--out", str(out), *given, *QUICK) == 0
    return out
