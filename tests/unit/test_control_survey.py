"""The survey that fills the cost table, and where tables are kept."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import ClassVar, cast

import pytest
from control_world import Predicts, Running, Stopwatch, World, always, flat

from outrider.control.auto import AutoLength
from outrider.control.costs import ROWS, CostTable
from outrider.control.survey import STEADY, Survey
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import LanguageModel
from outrider.core.request import RequestView
from outrider.engine.costs import Costs


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
        assert now - spent <= 0.04 * steps * 0.0012 + 0.001, "and the piece that was begun"
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
    assert table.overhead == pytest.approx(0.0005, abs=0.0003), "of passes of 4 ms, timed with noise"
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
        controller.draft(both, [told], True, [0])
    assert controller.belief.known
    controller.draft(both, [Running(1)], True, [100])
    assert controller.belief.drafting["head"] == pytest.approx(0.3, rel=0.1)


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
