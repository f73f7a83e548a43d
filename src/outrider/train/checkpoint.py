"""The state of a run on disk: the last two whole ones, and the best weights so far."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.errors import TrainingError
from outrider.train.files import explained, replace

_KEEP = 2
_BEST = "best.pt"

State = Mapping[str, Any]
"""Tensors, numbers, texts, and lists and dicts of them."""


class Checkpoints:
    """A kill at any moment leaves at least the newest whole checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, step: int, state: State) -> None:
        self._write(f"step-{step:09d}.pt", state)
        for old in self._steps()[_KEEP:]:
            old.unlink(missing_ok=True)

    def latest(self) -> State | None:
        """The newest that can be read; None where a run was stopped before its first."""
        found = self._steps()
        for path in found:
            state = _read(path)
            if state is not None:
                return state
        if found:
            raise TrainingError(f"no checkpoint in {self._folder} can be read; start anew with another --out")
        return None

    def save_best(self, state: State) -> None:
        self._write(_BEST, state)

    def best(self) -> State | None:
        return _read(self._folder / _BEST)

    def _write(self, name: str, state: State) -> None:
        with explained(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace(self._folder / name, lambda file: torch.save(dict(state), file))

    def _steps(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob("step-*.pt"), reverse=True)


def _read(path: Path) -> State | None:
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        return None  # a disk that lost power may keep the name and not the bytes: the one before is whole
    return state
