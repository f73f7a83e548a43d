"""What several recordings have in common is recorded once; skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from outrider.models.cuda import graphs as recording
from outrider.models.cuda.graphs import Graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

PART = ("part",)


@pytest.mark.parametrize("possible", [True, False])
def test_a_part_runs_between_what_was_launched_before_and_behind_it(
    possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    x = torch.zeros(8, device="cuda")

    def inner() -> None:
        made.append("inner")
        for _ in range(50):
            x.add_(1)

    def outer(graphs: Graphs, factor: int) -> Callable[[], None]:
        def launches() -> None:
            x.mul_(factor)
            graphs.part(PART, inner)
            x.mul_(2)

        return launches

    if not possible:
        monkeypatch.setattr(recording, "add_child", lambda _: False)
    graphs = Graphs(x.device)
    for each in list(graphs.recordings([((i,), outer(graphs, i)) for i in (3, 4, 5)], [(PART, inner, inner)])):
        each.record()
    # Every kind is launched once before it is recorded.
    assert made == ["inner"] * (5 if possible else 8)
    for i in (3, 4, 5):
        x.fill_(7)
        graphs.run((i,), outer(graphs, i))
        assert x.tolist() == [2.0 * (7 * i + 50)] * 8
    assert graphs.late == 0


def test_a_part_that_was_not_recorded_is_launched() -> None:
    x, graphs = torch.zeros(1, device="cuda"), Graphs(torch.device("cuda"))

    def inner() -> None:
        x.add_(1)

    for value in (1, 2, 3):  # the first time directly, then as recorded
        graphs.run(("late",), lambda: graphs.part(PART, inner))
        assert x.item() == value
