"""The controller's costs: the table, the survey that fills it, and the pace that keeps it true."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import ClassVar, cast

import pytest
from control_world import Predicts, Running, Stopwatch, World, always, exact, flat, rising

from outrider.control.auto import AutoLength
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.pace import DraftPace, DraftRun, Pace
from outrider.control.survey import STEADY, Survey
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import LanguageModel
from outrider.core.request import RequestView
from outrider.engine.costs import Costs


def stairs(rows: int) -> float:
    return math.ceil(rows / 8)


@pytest.mark.parametrize("shape", [flat, rising(0.2), stairs])
def test_a_table_says_what_was_measured_and_rises(shape: Callable[[int], float]) -> None:
    near, far = [shape(r) for r in ROWS], [shape(r) + 0.01 * r for r in ROWS]
    table = CostTable(ROWS, (100, 1100), (near, far), 0.5)
    for context, more in ((100, 0.0), (600, 0.005), (2100, 0.02)):
        line = table.pass_seconds(40, context)
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


def test_a_survey_goes_on_between_steps_until_the_table_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a rough table soon, for as long as a pass takes; the rest takes a twenty-fifth of the steps at most."""
    now = 0.0

    def spend(seconds: float) -> float:
        nonlocal now
        now += seconds / 10  # only a part is timed
        return seconds

    monkeypatch.setattr("outrider.control.survey.perf_counter", lambda: now)
    target = Stopwatch(lambda rows, context: spend(0.001 * (1 + 0.1 * rows + 1e-5 * rows * context)))
    head = Stopwatch(lambda rows, context: spend(0.0001))
    kept: list[CostTable] = []
    survey = Survey(target, {"head": head}, 4096, kept.append)
    steps, table = 0, None
    while table is None:
        table = survey.advance(1, 1, 100, 0.00000001)  # no time for more than a piece
        steps += 1
        assert target.asked + head.asked <= steps
    assert now < 0.0015
    assert kept == []
    rough = table.pass_seconds(16, 64)
    assert rough[16] / rough[1] == pytest.approx(2.6 / 1.1, rel=0.1)
    assert rough[12] / rough[1] == pytest.approx(2.2 / 1.1, rel=0.1)
    spent, steps = now, 0
    while not survey.over:
        table = survey.advance(1, 1, 100, 0.0012)
        steps += 1
        assert now - spent <= 0.04 * steps * 0.0012 + 0.0005, "and the piece that was begun"
    assert table is not None
    assert kept == [table]
    costs = table.pass_seconds(16, 1000)
    assert costs[16] / costs[1] == pytest.approx((1 + 1.6 + 0.16) / (1 + 0.1 + 0.01), rel=0.15)
    assert table.drafting["head"].per_level == pytest.approx(0.0001, rel=0.1)


def test_what_is_left_of_a_survey_can_be_done_while_nobody_waits() -> None:
    kept: list[CostTable] = []
    survey = Survey(Stopwatch(lambda rows, context: 0.001), {}, 4096, kept.append)
    survey.finish(10.0)
    assert kept == [], "before anything was asked there is no rough one"
    for _ in range(9):
        survey.advance(1, 1, 100, 0.00000001)
    survey.finish(0.0)
    assert kept == []
    survey.finish(10.0)
    assert len(kept) == 1
    assert survey.advance(1, 1, 100, 0.00000001) is not None
    assert survey.over


def test_a_survey_tells_a_past_from_the_rows_that_attend_to_it() -> None:
    """Behind 1,000 tokens more a request costs half a pass more, and each of its rows a twentieth. Plain steps of four
    requests are timed meanwhile: they have four pasts, and an overhead of half a pass."""

    def seconds(rows: int, context: int, requests: int = 1) -> float:
        return 0.001 * (1 + 0.1 * rows + (0.5 * requests + 0.05 * rows) * (context - 64) / 1000)

    survey, table = Survey(Stopwatch(seconds), {}, 4096), None
    while not survey.over:
        table = survey.advance(4, 4, 1064, seconds(4, 1064, 4) + 0.0005)
    assert table is not None
    assert table.overhead == pytest.approx(0.0005, rel=0.5)
    for context, requests, rows in ((64, 1, 8), (1064, 1, 16), (1064, 4, 16), (2064, 8, 8)):
        step = table.pass_seconds(32, context)[rows] + (requests - 1) * table.further_request(context)
        assert step == pytest.approx(seconds(rows, context, requests) + 0.0005, rel=0.1)


def test_a_restless_survey_is_used_but_not_kept() -> None:
    draw = random.Random(0)
    kept: list[CostTable] = []
    survey = Survey(Stopwatch(lambda rows, context: 0.001 * draw.uniform(0.2, 4)), {}, 4096, kept.append)
    for _ in range(4):
        assert survey.advance(1, 1, 100, 10.0) is not None or survey.over
    assert survey.over
    assert kept == []


def test_until_costs_are_known_decoding_is_plain() -> None:
    survey = Survey(Stopwatch(lambda rows, context: 0.001), {}, 4096)
    controller, world = AutoLength(survey=survey), World(flat, always(0.9), noise=0.0)
    ran = world.run(controller, 60)
    assert not any(map(any, ran.drafted[:2])), "nor is the first token kept waiting"
    assert any(map(any, ran.drafted[40:]))


def test_a_pass_that_was_disturbed_does_not_make_wider_ones_dear() -> None:
    """Twelve rows happen to take thrice as long, once."""
    survey = Survey(Stopwatch(lambda rows, context: 0.001 * rows * (3 if rows == 12 else 1)), {}, 4096)
    costs = survey.whole().pass_seconds(32, 64)
    assert costs[16] == pytest.approx(0.016, rel=0.15)
    assert costs[12] <= costs[16]


@pytest.mark.parametrize("times", [1, 99])
def test_wide_passes_that_were_disturbed_are_measured_again(times: int) -> None:
    """Something else runs while passes of six rows and more are timed, so that all of them look dear: the first time,
    or always."""
    asked: dict[int, int] = {}

    def seconds(rows: int, context: int) -> float:
        asked[rows] = asked.get(rows, 0) + 1
        return 0.001 * (1 + 0.1 * rows) * (6 if rows >= 6 and context == 64 and asked[rows] <= times else 1)

    costs = Survey(Stopwatch(seconds), {}, 4096).whole().pass_seconds(32, 64)
    for rows in (6, 8, 16):
        right = 0.001 * (1 + 0.1 * rows)
        assert costs[rows] == pytest.approx(right, rel=0.1) if times == 1 else right <= costs[rows] < 3.6 * right


@pytest.mark.parametrize(("row", "dear"), [(0.01, False), (1.0, True)])
def test_a_survey_times_more_often_what_takes_little(row: float, dear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it more than twice where rows cost next to nothing, and no more where each costs as much again."""
    now = 0.0
    asked: Counter[tuple[int, int]] = Counter()

    def seconds(rows: int, context: int) -> float:
        nonlocal now
        asked[rows, context] += 1
        now += 0.0001 * (1 + row * rows)  # a part of a pass
        return 0.001 * (1 + row * rows)

    monkeypatch.setattr("outrider.control.survey.perf_counter", lambda: now)
    Survey(Stopwatch(seconds), {}, 4096).whole()
    near = [asked[rows, 64] for rows in ROWS]
    assert min(near) >= 2, "the first of so many rows takes longer"
    assert median(near) == 2 if dear else min(near) > 2, "some had been timed once for the rough table"
    assert max(near) == 3 or not dear
    assert asked[16, 1024] >= 2


def test_a_noisy_machine_is_surveyed_as_it_is() -> None:
    """Timings on a machine where others run, each up to half too long and one in ten three times too long: still a
    pass of sixteen rows costs a third more than one of one, and a row behind a long context a little."""
    found = []
    for seed in range(20):
        draw = random.Random(seed)

        def seconds(rows: int, context: int, draw: random.Random = draw) -> float:
            disturbed = 1 + 0.5 * draw.random() ** 3 + (2 if draw.random() < 0.1 else 0)
            return 0.01 * (1 + 0.02 * (rows - 1) + 2e-5 * context * rows) * disturbed

        costs = Survey(Stopwatch(seconds), {}, 4096).whole().pass_seconds(32, 64)
        found.append(costs[16] / costs[1])
    assert max(abs(ratio - 1.3) for ratio in found) < 0.12


@pytest.mark.parametrize(("noise", "steady"), [(0.02, True), (1.5, False)])
def test_a_table_says_how_well_it_was_seen(noise: float, steady: bool) -> None:
    draw = random.Random(1)
    watch = Stopwatch(lambda rows, context: 0.001 * (1 + 0.1 * rows) * math.exp(noise * draw.gauss(0, 1)))
    table = Survey(watch, {}, 4096).whole()
    assert (table.spread <= STEADY) == steady
    assert CostTable.from_json(table.to_json()).spread == table.spread


def test_a_prediction_during_the_survey_pays_nobody() -> None:
    """What a head costs is not known yet: it is not asked, and what is assumed meanwhile does not stay."""

    class Both(Predicts):
        def paid(self, request: RequestView) -> str | None:
            return "head"

        def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            self.levels = max(b.depth for b in budgets)
            return super().propose(requests, budgets)

        def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            return Predicts(self._world, self._step, self._requests).propose(requests, budgets)

    survey = Survey(Stopwatch(lambda rows, context: 0.001), {"head": Stopwatch(lambda rows, context: 0.0003)}, 4096)
    controller, both = AutoLength(survey=survey), Both(World(), 0, 1)
    told = Running(0, speculation=Speculation(prediction=(5, 6)))
    (draft,) = controller.draft(both, [told], True, [100])
    assert len(draft) == 2
    assert both.levels == 0
    for _ in range(99):
        controller.observe([VerifiedDraft(told, Draft(), (), (1,))], 1, 0.0, 0.001)
    assert controller.belief.known
    controller.draft(both, [Running(1)], True, [100])
    assert controller.belief.drafting["head"] == pytest.approx(0.3, rel=0.1)


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


def test_a_survey_that_was_interrupted_goes_on_with_the_same_piece() -> None:
    """Ctrl-C anywhere: what was being timed is timed again, and a table comes as soon as it would have."""

    class Interrupted(Stopwatch):
        def __init__(self, when: int) -> None:
            super().__init__(lambda rows, context: 0.001 * rows)
            self.when: int | None = when

        def measure(self, rows: int, context: int) -> float:
            if self.asked == self.when:
                self.when = None
                raise KeyboardInterrupt
            return super().measure(rows, context)

    for when in range(5):
        watch, tables, steps = Interrupted(when), 0, 0
        survey = Survey(watch, {}, 4096)
        while not tables:
            steps += 1
            try:
                tables += survey.advance(1, 1, 100, 1e-8) is not None
            except KeyboardInterrupt:
                continue
        assert watch.when is None
        assert steps <= 7


def test_a_table_is_kept_for_the_drafters_and_contexts_it_was_measured_with(tmp_path: Path) -> None:
    """A small draft model says nothing of a large one, nor a context of 40 tokens of one of 4,096."""
    found = set()
    for key, context in product(("small", "large"), (40, 4096)):
        network, model = Network(key, 4096), Network("target", context)
        found.add(Costs(tmp_path, {})._path(cast("LanguageModel", model), cast("Drafter", Drafts({"model": network}))))
    assert len(found) == 4


def test_costs_hold_nobody_who_is_gone(tmp_path: Path) -> None:
    costs, model = Costs(tmp_path, {}), Network("target", 4096)
    controller = costs.controller(cast("LanguageModel", model), cast("Drafter", Drafts({})))
    gone = weakref.ref(model)
    costs.finish(1.0)
    del controller, model
    gc.collect()
    assert gone() is None
    costs.finish(1.0)


class Network(Stopwatch):
    measurable = True

    def __init__(self, key: str, max_context: int) -> None:
        super().__init__(lambda rows, context: 0.001)
        self.cost_key, self.max_context = key, max_context


class Drafts:
    acceptance: ClassVar[Mapping[str, Sequence[float]]] = {}

    def __init__(self, networks: Mapping[str, Network]) -> None:
        self.networks = networks
