"""Parts of training that need no target: batches made ahead, checkpoints, the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outrider.errors import TrainingError
from outrider.train import loop
from outrider.train.checkpoint import Checkpoints
from outrider.train.prefetch import ahead
from outrider.train.run import writing_left
from outrider.train.student import Evaluation


def test_batches_made_ahead_are_the_same_and_so_are_errors() -> None:
    def items() -> Iterator[list[int]]:
        yield from ([1], [2], [3])
        raise OSError("gone")

    taken = []
    with pytest.raises(OSError, match="gone"):  # noqa: PT012
        for item in ahead(items(), lambda item: item.append(0)):
            taken.append(item)
    assert taken == [[1, 0], [2, 0], [3, 0]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"step": 1, "weights": torch.ones(10)})
    (tmp_path / "step-000000002.pt.part").symlink_to("/dev/full")
    with pytest.raises(TrainingError, match="is full"):
        checkpoints.save(2, {"step": 2, "weights": torch.ones(1 << 20)})
    state = checkpoints.latest()
    assert state is not None
    assert state["step"] == 1


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, {"step": step, "weights": torch.ones(1000)})
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["step-000000002.pt", "step-000000003.pt"]
    (tmp_path / kept[1]).write_bytes((tmp_path / kept[1]).read_bytes()[:500])
    state = checkpoints.latest()
    assert state is not None
    assert state["step"] == 2
    (tmp_path / kept[0]).write_bytes(b"")
    with pytest.raises(TrainingError, match=r"no checkpoint in .* can be read"):
        checkpoints.latest()


def test_schedule() -> None:
    limits = loop.TrainLimits(steps=100, seconds=50.0)
    assert limits.progress(10, 20.0) == 0.4
    assert limits.progress(60, 20.0) == 0.6
    assert limits.progress(0, 60.0) == 1.0
    rates = [loop.rate(i / 1000) for i in range(1001)]
    top = rates.index(max(rates))
    assert rates[0] < 0.1
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("tokens", "speed", "seconds", "left"),
    [
        (400, 10.0, None, 40.0),
        (400, 10.0, 24.0, 24.0),  # the minutes are used up before
        (400, 100.0, 24.0, 4.0),
        (400, 0.0, 24.0, 24.0),
        (400, 0.0, None, None),
        (400, 10.0, -1.0, 0.0),
    ],
)
def test_what_is_left_of_writing_ends_with_the_minutes(
    tokens: int, speed: float, seconds: float | None, left: float | None
) -> None:
    assert writing_left(tokens, speed, seconds) == left


class Pupil(torch.nn.Linear):
    """Learns nothing to speak of."""

    kind = "none"
    vocabulary = torch.zeros(0)

    def loss(self, texts: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = self(torch.ones(1, 4)).square().sum()
        return found, {"right1": found.detach()}

    def evaluate(self, batches: Any) -> Evaluation:
        return Evaluation(1.0, 1.0, [0.0])


def test_held_out_text_is_looked_at_once_a_step(tmp_path: Path) -> None:
    """Also where looking at it takes so long that it would be due again."""
    shares = iter([0.0, 0.3, 0.4, 0.4, 0.5, 1.0])
    asked: Any = SimpleNamespace(progress=lambda step, seconds: next(shares, 1.0), steps=None)
    told: list[Any] = []
    loader: Any = SimpleNamespace(
        batches=lambda start: repeat(SimpleNamespace(count=1, prepare=lambda device: None)), held_out=list
    )
    watcher: Any = SimpleNamespace(tell=told.append)
    pupil: Any = Pupil(4, 4)
    learning = loop.Loop(
        pupil, loader, asked, Checkpoints(tmp_path), watcher, loop.Stop(), learning_rate=0.1, device=torch.device("cpu")
    )
    learning.run()
    steps = [event["step"] for event in told if event["event"] == "evaluation"]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    assert steps[-1] == learning.step > 0
