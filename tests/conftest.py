"""The real default model, for every test that wants one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import interpreter
import pytest
import torch
from hypothesis import HealthCheck, settings
from pace import CUT_VOCABULARY, Pace, cut_model

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs are then run by Python; read when they are imported
    interpreter.hasten()

from outrider.core.model import Rows
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.load import load_model, placement

pytest.register_assert_rewrite("any_order", "device_faults", "enumeration", "live_server", "tiny_engine", "toy")

collect_ignore = ["clients"]  # theirs is another environment: `make test-clients`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every test at its full size, however slow the machine")


def pytest_configure(config: pytest.Config) -> None:
    """Examples are not timed: what takes long does so on a busy machine. They are the same every time, unless `--full`
    is to look further."""
    settings.register_profile(
        "here",
        deadline=None,
        derandomize=not config.getoption("--full"),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test draws does not depend on what ran before it in this process, which is another thing each time."""
    torch.manual_seed(crc32(item.nodeid.encode()))


LONG = (
    "cli",
    "train_faults",
    "playground",
    "conformance",
    "bench_run",
    "grammar",
    "lanes_any_order",
    "gpu_wide",
    "gpu_lookup",
    "server_openai",
    "train",
    "decoder",
    "gpu_kernels",
    "gpu_steps",
    "head_drafter",
    "rejection_statistics",
    "twin",
    "equality",
    "bitwise",
    "playground_axe",
)
"""Files that take longest. They are begun first, or one of them would still run when all else has ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return LONG.index(name) if name in LONG else len(LONG)

    items.sort(key=place)


@pytest.fixture(scope="session")
def pace(pytestconfig: pytest.Config) -> Pace:
    return Pace(full=pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def default_checkpoint() -> Checkpoint:
    """The default model, fetched on first use."""
    return open_checkpoint("smollm2-135m", SilentProgress())


@pytest.fixture(scope="session")
def default_model_dir(default_checkpoint: Checkpoint) -> Path:
    return default_checkpoint.path


@pytest.fixture(scope="session")
def truncated_model_dir(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real draft model that shares the tokenizer: the default model's first twenty layers."""
    return cut_model(default_checkpoint, tmp_path_factory.mktemp("truncated"), layers=20)


@pytest.fixture(scope="session")
def sixteen_rows(default_checkpoint: Checkpoint) -> Callable[[], None]:
    """A pass of sixteen rows through the default model: what this machine is measured by."""
    place = placement(device="cpu", dtype="bf16", bitwise=None, threads=None, max_batch=1, max_context=64)
    model = load_model(default_checkpoint, place)
    slot = model.open()

    def run() -> None:
        model.forward([Rows.chain(slot, range(16))])
        model.commit(slot, [])

    return run


@pytest.fixture(scope="session")
def cut_layers(pace: Pace, sixteen_rows: Callable[[], None]) -> int:
    """How many of the default model's layers tests of thousands of rows can afford."""
    return pace.fit(sixteen_rows, 0.15, least=2, most=30)


@pytest.fixture(scope="session")
def cut_checkpoint(
    default_checkpoint: Checkpoint, cut_layers: int, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """The default model's first layers, with its first tokens alone unless it has all layers: a real model that
    thousands of rows can be run through on any machine."""
    vocabulary = CUT_VOCABULARY if cut_layers < 30 else None
    folder = cut_model(default_checkpoint, tmp_path_factory.mktemp("cut"), cut_layers, vocabulary)
    return open_checkpoint(str(folder), SilentProgress())
