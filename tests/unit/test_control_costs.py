"""The controller's costs: the table, and the pace that keeps it true."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from control_world import World, always, exact, flat, rising

from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.pace import DraftPace, DraftRun, Pace


def stairs(rows: int) -> float:
    return math.ceil(rows / 8)


@pytest.mark.parametrize("shape", [flat, rising(0.2), stairs])
def test_a_table_says_what_was_measured_and_rises(shape: Callable[[int], float]) -> None:
    near, far = [shape(r) for r in ROWS], [shape(r) + 0.01 * r for r in ROWS]
    table = CostTable(ROWS, (100, 1100), (near, far), 0.5)
    for context, more in ((100, 0.0), (600, 0.005), (2100, 0.02)):
        line = table.pass_seconds(ROWS[-1], context)
        assert line == sorted(line)
        assert [line[r] for r in ROWS] == pytest.approx([shape(r) + more * r + 0.5 for r in ROWS])
    assert CostTable.from_json(table.to_json()).pass_seconds(40, 700) == table.pass_seconds(40, 700)


def test_a_past_is_read_once_for_all_rows_of_a_request() -> None:
    """Rows cost 2 and 10 tokens of a past together 0.1: four requests have four pasts, whatever their rows."""
    near, far = [2.0 * r for r in ROWS], [2.0 * r + 10 for r in ROWS]
    table = CostTable(ROWS, (100, 1100), (near, far), 0.5, attending=10.0)
    for context, past in ((100, 0.0), (600, 5.0), (2100, 20.0)):
        assert table.further_request(context) == pytest.approx(past)
        pace = Pace(CostTable.from_json(table.to_json()), 32)
        for rows, requests in ((1, 1), (8, 1), (4, 4), (16, 4)):
            assert pace.costs(context, requests)[rows] == pytest.approx(2 * rows + requests * past + 0.5)
    assert table.further_request(10) == 0


def test_how_many_requests_share_a_step_is_no_slower_machine_and_no_dearer_row() -> None:
    table = CostTable(ROWS, (0, 1000), ([1 + 0.1 * r for r in ROWS], [2 + 0.1 * r for r in ROWS]), attending=1.0)
    pace = Pace(table, 32)
    for rows, requests in ((1, 1), (8, 8), (8, 1), (16, 8)) * 20:
        pace.observe(rows, 1000, 1 + 0.1 * rows + requests, requests)
    assert pace.level == pytest.approx(1)
    assert pace.costs(1000, 8)[16] == pytest.approx(10.6)


def paced(cost: Callable[[int], float], sizes: Sequence[int], passes: int, table: CostTable) -> Pace:
    """After noisy passes of random sizes on a machine that drifts and stumbles."""
    draw, pace = random.Random(0), Pace(table, 32)
    for i in range(passes):
        rows = draw.choice(sizes)
        speed = 0.01 * math.exp(0.3 * math.sin(i / 40) + draw.gauss(0, 0.05))
        pace.observe(rows, 0, cost(rows) * speed * (5 if draw.random() < 0.02 else 1))
    return pace


def test_a_true_table_stays_as_it_is() -> None:
    costs = paced(rising(0.1), [1, 4, 8, 16, 32], 400, exact(rising(0.1))).costs(0)
    for rows in (4, 8, 16, 32):
        assert costs[rows] / costs[1] == pytest.approx(rising(0.1)(rows), rel=0.04)
    assert list(costs) == sorted(costs)


def test_a_wrong_table_is_corrected() -> None:
    costs = paced(rising(0.1), [1, 4, 8, 16, 32], 400, exact(rising(0.05))).costs(0)
    for rows in (4, 8, 16, 32):
        assert costs[rows] / costs[1] == pytest.approx(rising(0.1)(rows), rel=0.12)


def test_a_slower_machine_is_not_a_dearer_row() -> None:
    pace = Pace(exact(rising(0.1)), 16)
    for rows in (1, 16) * 10:
        pace.observe(rows, 0, rising(0.1)(rows))
    before = pace.costs(0)[16] / pace.costs(0)[1]
    for i in range(100):
        pace.observe(16, 0, rising(0.1)(16) * (1 + i / 50))  # three times slower in the end, wide passes only
    assert pace.costs(0)[16] / pace.costs(0)[1] == pytest.approx(before, rel=0.02)
    assert pace.level == pytest.approx(3, rel=0.1)


def test_one_disturbed_pass_changes_nothing() -> None:
    pace = Pace(exact(flat), 16)
    for _ in range(8):
        pace.observe(1, 0, flat(1))
    pace.observe(8, 0, 5.0)
    assert pace.costs(0)[8] == pytest.approx(flat(8), rel=0.06)
    assert pace.level == pytest.approx(1, rel=0.01)


def test_draft_cost_is_corrected_by_drafts_of_any_depths() -> None:
    draw, cost = random.Random(0), DraftPace(DraftCost(0.0, 0.01))
    for _ in range(200):
        levels = draw.randrange(1, 9)
        cost.observe(DraftRun(levels, levels), (0.2 + 0.1 * levels) * math.exp(draw.gauss(0, 0.05)))
    assert cost.fixed == pytest.approx(0.2, abs=0.06)
    assert cost.per_level == pytest.approx(0.1, abs=0.02)


def test_draft_cost_of_many_rows_is_told_from_that_of_one() -> None:
    """Twice as much as the table reckons with, here, and four times."""
    cost = DraftPace(DraftCost(0.02, 0.1, row=0.01))
    assert cost.level(12) == pytest.approx(0.1 + 11 * 0.01)
    for levels, rows in ((2, 12), (3, 4), (4, 12), (3, 1), (1, 4), (2, 1)) * 30:
        cost.observe(DraftRun(levels, levels * rows), 0.05 + levels * (0.2 + (rows - 1) * 0.04))
    assert cost.level(1) == pytest.approx(0.2, rel=0.02)
    assert cost.level(12) == pytest.approx(0.2 + 11 * 0.04, rel=0.02)
    assert cost.fixed == pytest.approx(0.05, abs=0.01)


def test_draft_cost_of_as_many_requests_is_right_for_as_many() -> None:
    cost = DraftPace(DraftCost(0.02, 0.1, row=0.01))
    for levels in (2, 3, 4) * 60:
        cost.observe(DraftRun(levels, levels * 12), 0.05 + levels * 0.6)
    assert cost.fixed + 3 * cost.level(12) == pytest.approx(0.05 + 3 * 0.6, rel=0.02)


def test_a_first_draft_and_a_hiccup_do_not_make_a_drafter_dear() -> None:
    """One that looks too dear is not asked again, and would stay so."""
    cost = DraftPace(DraftCost(0.02, 0.1))
    cost.observe(DraftRun(2, 2), 5.0)
    assert (cost.fixed, cost.per_level) == (0.02, 0.1)
    cost.observe(DraftRun(2, 2), 5.0)
    assert cost.fixed + 2 * cost.per_level < 1.3 * (0.02 + 2 * 0.1)


def test_draft_cost_of_one_depth_is_right_at_that_depth() -> None:
    cost = DraftPace(DraftCost(0.1, 0.1))
    for _ in range(100):
        cost.observe(DraftRun(4, 4), 0.8)
    assert cost.fixed + 4 * cost.per_level == pytest.approx(0.8, rel=0.05)


def test_one_draft_without_luck_leaves_something_for_the_next() -> None:
    """Of a drafter that claims to be always right: the first draft of a request costs little, however deep it looks
    best, and one that has earned may draft deep."""
    world = World(rows=rising(0.05), per_level=0.15, chance=lambda request, step: 0.0, claim=lambda chance: 0.9)
    ran = world.run(world.auto(), 40)
    drafts = [cost for cost, drafted in zip(ran.costs, ran.drafted, strict=True) if any(drafted)]
    assert len(drafts) >= 2
    assert max(drafts) < 1 + 0.5 * 2.0
    lucky = World(rows=rising(0.05), per_level=0.15, chance=always(0.9))
    assert max(sum(drafted) for drafted in lucky.run(lucky.auto(), 60).drafted) >= 6


def test_a_table_of_times_that_nothing_takes_is_none() -> None:
    table = CostTable(ROWS, (64, 1024), ([1e-3] * len(ROWS), [1e-3] * len(ROWS)), 0.0, {"head": DraftCost(0.0, 1e-4)})
    assert CostTable.from_json(table.to_json()).first == 1e-3
    for small in (replace(table, seconds=([5e-324] * len(ROWS),) * 2), replace(table, overhead=5e-324)):
        with pytest.raises(ValueError, match=r"time"):
            CostTable.from_json(small.to_json())
