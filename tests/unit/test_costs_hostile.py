"""A cost table in the cache that no machine can have measured: it is measured again, and nobody notices."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.control.auto import AutoLength
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.drafters.none import NoDrafter
from outrider.engine.costs import Costs

LINES = ([0.001 * (1 + 0.02 * r) for r in ROWS], [0.001 * (1 + 0.03 * r) for r in ROWS])
GOOD = CostTable(ROWS, (64, 1024), LINES, 0.0001, {"model": DraftCost(0.0001, 0.0001, 0.001)})
N = len(ROWS)


class Guesses(Drafter):
    name = "model"

    def propose(self, requests: Sequence[Any], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            Draft([5] * b.nodes, range(-1, b.nodes - 1), [0.8 ** (k + 1) for k in range(b.nodes)], "model")
            if b.nodes
            else Draft()
            for b in budgets
        ]


class Kept(Costs):
    def _path(self, model: object, drafter: object) -> Path | None:
        assert self._folder is not None
        return self._folder / "table.json"


def drafted(table: CostTable | None, count: int) -> int:
    controller, drafter = AutoLength(table=table), Guesses()
    requests: list[Any] = [
        SimpleNamespace(
            id=i,
            tokens=[1, 2, 3],
            prompt_length=3,
            reused=0,
            speculation=Speculation(),
            params=SimpleNamespace(verify="coupled", grammar=None),
            walk=None,
        )
        for i in range(count)
    ]
    total = 0
    for _ in range(60):
        controller.pays(requests, count)
        chosen: Any = drafter
        drafts = controller.draft(chosen, requests, True, [50] * count)
        total += sum(map(len, drafts))
        verified = [
            VerifiedDraft(s, d, tuple(range(len(d))), (5,) * (len(d) + 1))
            for s, d in zip(requests, drafts, strict=True)
        ]
        controller.observe(verified, sum(len(d) + 1 for d in drafts), 0.001, 0.003)
        assert controller.belief is None or controller.belief.why
    return total


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"seconds": [[math.nan] * N] * 2},
        {"seconds": [[math.inf] * N] * 2},
        {"seconds": [[0.0] * N] * 2, "overhead": 0.0},
        {"seconds": [[-1.0] * N] * 2},
        {"seconds": [[1e308] * N] * 2, "overhead": 1e308},
        {"contexts": [64, 10**400]},
        {"contexts": [1e-320, 2e-320]},
        {"contexts": [64, math.inf]},
        {"overhead": -1.0},
        {"attending": -1.0},
        {"attending": math.nan},
        {"attending": "much"},
        {"spread": -0.1},
        {"rows": [1] * N},
        {"rows": [1], "seconds": [[1.0], [1.0]]},
        {"rows": list(ROWS)[::-1]},
        {"drafting": {"model": {"fixed": "a", "per_level": "b"}}},
        {"drafting": {"model": {"fixed": None, "per_level": None}}},
        {"drafting": {"model": {"fixed": math.nan, "per_level": math.nan}}},
    ],
    ids=lambda change: " ".join(f"{name}={value}" for name, value in change.items())[:40] or "good",
)
def test_a_table_that_cannot_be_is_measured_again(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(json.loads(GOOD.to_json()) | change))
    model: Any = SimpleNamespace(measurable=True, measure=lambda rows, context: 1.0, max_context=4096)
    table = Kept(tmp_path, {}).load(model, NoDrafter())
    assert (table is None) == bool(change)
    for count in (1, 3):
        assert drafted(table, count)


def test_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("[" * 100_000)
    model: Any = SimpleNamespace(measurable=True, measure=lambda rows, context: 1.0, max_context=4096)
    assert Kept(tmp_path, {}).load(model, NoDrafter()) is None


def test_a_folder_in_the_tables_place_leaves_nothing_behind(tmp_path: Path) -> None:
    model: Any = SimpleNamespace(measurable=True, max_context=4096)
    (tmp_path / "table.json").mkdir()
    Kept(tmp_path, {}).save(model, NoDrafter(), GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
