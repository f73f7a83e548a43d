"""The real default model, for every test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.progress import SilentProgress


@pytest.fixture(scope="session")
def default_checkpoint() -> Checkpoint:
    """The default model, fetched on first use."""
    return open_checkpoint("smollm2-135m", SilentProgress())


@pytest.fixture(scope="session")
def default_model_dir(default_checkpoint: Checkpoint) -> Path:
    return default_checkpoint.path
