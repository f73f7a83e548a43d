"""The controller where what it was told is wrong: costs, clocks, drafters, luck. It loses little, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from control_world import PASS, Ran, Stopwatch, World, always, exact, flat, rising
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.control.acceptance import Acceptance
from outrider.control.auto import AutoLength
from outrider.control.choice import kept
from outrider.control.costs import ROWS, CostTable, DraftCost, assumed
from outrider.control.ledger import Ledger, lend
from outrider.control.pace import DraftPace, DraftRun, Pace
from outrider.control.paid import PaidDrafters
from outrider.control.paid_state import Candidate, PaidState
from outrider.control.prices import Prices
from outrider.control.survey import Survey
from outrider.control.thrift import Thrift
from outrider.control.together import Prospect, together
from outrider.core.draft import Draft


def measured(rows: Callable[[int], float], level: float = 0.005, resume: float = 0.0) -> CostTable:
    """What a survey has found, be it true or not."""
    line = [PASS * rows(r) for r in ROWS]
    return CostTable(ROWS, (0, 1), (line, line), drafting={"world": DraftCost(0.0, PASS * level, PASS * resume)})


def times_plain(world: World, ran: Ran, since: int = 0, requests: int = 1) -> float:
    return ran.since(since) / world.plain(2, requests)


# -- costs that are not as they were measured


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("free", [False, True])
def test_rows_dearer_than_measured_are_found_out_soon(free: bool, requests: int) -> None:
    """What a few plain steps among the others tell: the drafts made until then are all that is lost."""
    world = World(rising(0.4), always(0.5), free=free, table=measured(flat))
    ran = world.run(world.auto(), 500, requests)
    assert times_plain(world, ran, 60, requests) > 0.96


@pytest.mark.parametrize("free", [False, True])
def test_rows_cheaper_than_measured_are_found_out(free: bool) -> None:
    world = World(flat, always(0.8), free=free, table=measured(rising(1.0)))
    assert times_plain(world, world.run(world.auto(), 900), 700) > 1.5


@pytest.mark.parametrize("level", [1.0, 5.0])
def test_a_drafter_of_which_nothing_is_known_may_be_very_slow(level: float) -> None:
    line = [PASS * flat(r) for r in ROWS]
    world = World(flat, always(0.6), per_level=level, table=CostTable(ROWS, (0, 1), (line, line)))
    ran = world.run(world.auto(), 500)
    assert sum(ran.costs) - sum(map(sum, ran.tokens)) * flat(1) < 12 + 4 * level  # passes


def test_a_drafter_cheaper_than_measured_is_found_out() -> None:
    world = World(flat, always(0.8), table=measured(flat, 1.0))
    assert times_plain(world, world.run(world.auto(), 700), 500) > 2


def test_what_takes_as_long_twice_running_is_no_hiccup() -> None:
    cost = DraftPace(DraftCost(0.0, 0.01))
    for _ in range(3):
        cost.observe(DraftRun(1, 1), 2.0)
    assert cost.level(1) < 0.02
    cost.observe(DraftRun(1, 1), 2.0)
    assert cost.fixed + cost.level(1) > 0.3


@pytest.mark.parametrize("every", [2, 3, 7])
def test_what_takes_long_now_and_then_takes_so_long_on_average(every: int) -> None:
    cost, believed = DraftPace(DraftCost(0.0, 0.1)), []
    for draft in range(40 * every):
        cost.observe(DraftRun(1, 1), 0.0 if draft % every else 1.0)
        believed.append(cost.seconds(DraftRun(1, 1)))
    assert sum(believed[-every:]) / every == pytest.approx(1 / every, rel=0.1)


@pytest.mark.parametrize("requests", [1, 4])
def test_a_drafter_every_other_draft_of_which_is_dear_costs_little(requests: int) -> None:
    world = World(flat, always(0.5), besides=lambda draft: 4.0 * (draft % 2))
    ran = world.run(world.auto(), 500, requests)
    assert times_plain(world, ran, 60, requests) > 0.95


def test_a_drafter_that_hung_for_a_while_is_asked_again() -> None:
    """By answers none of which lives long enough to bear what it is taken to cost by then."""
    world = World(flat, always(0.8), per_level=0.05, besides=lambda draft: 100.0 if draft in (20, 21) else 0.0)
    ran = world.run(world.auto(), 1200, length=100)
    assert sum(map(bool, ran.levels[30:250])) < 10
    assert times_plain(world, ran, 1000) > 2


@pytest.mark.parametrize("requests", [1, 4])
def test_a_drafter_that_has_become_good_is_asked_by_answers_however_short(requests: int) -> None:
    """Each ends before it would have been without drafts for long."""
    world = World(flat, lambda _, step: 0.02 if step < 300 else 0.8, per_level=0.05)
    ran = world.run(world.auto(), 3000, requests, 8)
    assert times_plain(world, ran, 2000, requests) > 2


def test_rows_that_are_no_longer_run_cost_at_last_what_was_measured() -> None:
    """Wide drafts hung, and all that is tried since is narrow."""
    cost = DraftPace(DraftCost(0.0, 0.05, 0.05, 0.001))
    for seconds in (0.1, 0.1, 50.0, 50.0):
        cost.observe(DraftRun(2, 20), seconds)
    assert cost.row > 0.1
    for _ in range(300):
        cost.observe(DraftRun(1, 1), 0.05, behind=15)
    assert cost.row == pytest.approx(0.001, rel=0.5)


DRAFTS = st.tuples(st.integers(1, 16), st.integers(0, 200), st.floats(0.0, 1e5), st.integers(0, 300))


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.tuples(*[st.floats(0.0, 1e4)] * 4), st.lists(DRAFTS, max_size=60))
def test_nothing_costs_less_than_nothing_whatever_drafts_took(
    known: tuple[float, float, float, float], drafts: list[tuple[int, int, float, int]]
) -> None:
    cost = DraftPace(DraftCost(*known))
    for levels, more, seconds, behind in drafts:
        cost.observe(DraftRun(levels, levels + more), seconds, behind)
        parts = (cost.fixed, cost.per_level, cost.row, cost.catching_up(behind))
        assert all(0 <= part < float("inf") for part in parts), parts


def test_levels_alone_take_less_where_beginning_a_draft_takes_nothing() -> None:
    """Drafts of a single level are all there is: none of what they take less may count for the others' worse."""
    cost = DraftPace(DraftCost(0.0, 1.0))
    for _ in range(20):
        cost.observe(DraftRun(1, 1), 0.01)
    assert cost.fixed + cost.level(1) < 0.5


def test_catching_up_is_learned() -> None:
    cost = DraftPace(DraftCost(0.0, 0.1))
    assert cost.catching_up(32) == 0
    for _ in range(30):
        cost.observe(DraftRun(1, 1), 1.1, behind=32)
    assert cost.catching_up(32) == pytest.approx(1.0, rel=0.05)
    assert cost.level(1) == pytest.approx(0.1)


def test_catching_up_for_many_is_none_of_their_levels() -> None:
    """Newcomers come one after the other, whose prompts were not read: before each first draft 32 rows are run."""
    cost = DraftPace(DraftCost(0.0, 0.1, 0.42, 0.01))
    for step in range(200):
        newcomers = step % 3
        seconds = 0.2 + 8 * 0.01 + newcomers * 0.42
        cost.observe(DraftRun(2, 10), seconds, behind=32 * newcomers)
    assert cost.row == pytest.approx(0.01, rel=0.5)
    assert cost.fixed + 2 * cost.level(5) == pytest.approx(0.28, rel=0.1)
    assert cost.catching_up(64) == pytest.approx(0.84, rel=0.1)


def test_the_same_surprise_twice_is_the_tables_fault() -> None:
    pace = Pace(exact(flat), 16)
    for i in range(24):
        rows = 1 if i % 8 == 0 else 9
        pace.observe(rows, 0, rising(0.4)(rows))
    costs = pace.costs(0)
    assert costs[9] / costs[1] == pytest.approx(rising(0.4)(9), rel=0.15)
    assert costs[4] / costs[1] == pytest.approx(rising(0.4)(4), rel=0.35), "as wrong as its neighbours"


def test_one_disturbed_pass_of_rows_nobody_measured_is_taken_for_no_more_than_its_rows() -> None:
    pace = Pace(assumed(0.02), 32)
    for rows, seconds in ((1, 1.0), (9, 1000.0), (1, 1.0), (1, 1.0)):
        pace.observe(rows, 0, seconds)
    costs = pace.costs(0)
    assert costs[9] / costs[1] == pytest.approx(9)
    assert pace.level * costs[1] == pytest.approx(1.0)


def test_where_nothing_was_measured_the_first_draft_may_take_very_long() -> None:
    """A kernel is compiled for so many rows: others are tried, and turn out to be cheap."""
    first: list[int] = []

    def rows(count: int) -> float:
        if count > 1 and not first:
            first.append(count)
            return 1000.0
        return flat(count)

    world = World(rows, always(0.8), free=True)
    assert times_plain(world, world.run(AutoLength(), 900), 750) > 2


def test_a_machine_that_changes_its_speed_between_is_not() -> None:
    pace = Pace(exact(flat), 16)
    for i in range(48):
        pace.observe(1 if i % 8 == 7 else 9, 0, 1.0 if i < 7 or 15 <= i < 31 else 3.0)
    costs = pace.costs(0)
    assert costs[9] / costs[1] == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_nor_one_that_swings(period: int) -> None:
    """Three times as slow every few passes: whatever is compared, others around it took as long."""
    pace = Pace(exact(flat), 16)
    for i in range(400):
        pace.observe(1 if i % 9 == 8 else 9, 0, 3.0 if i // period % 2 else 1.0)
        costs = pace.costs(0)
        assert costs[9] / costs[1] < 1.5


def test_plain_steps_come_often_until_they_tell_nothing_new() -> None:
    def due(cost: Callable[[int], float]) -> list[int]:
        prices = Prices(32, exact(flat), None)
        found = []
        for step in range(500):
            plain = prices.plain_due()
            prices.observe(1, 1 if plain else 9, 0, cost(1) if plain else cost(9))
            found += [step] if plain else []
        return found

    assert due(flat) == [0, 9, 26, 59, 124, 253, 382]
    assert due(rising(0.4))[:3] == [0, 9, 18]


# -- the survey, and thinking, disturbed


def test_a_survey_by_a_clock_that_stands_still() -> None:
    survey = Survey(Stopwatch(lambda rows, context: 0.0), {}, 4096)
    assert survey.advance(1, 1, 100, 1.0) is not None


def test_a_step_that_was_disturbed_is_no_overhead() -> None:
    """The machine slept through one: there was time for everything after it."""
    no_time, long = 1e-8, 3600.0  # for one piece, and for all of them
    for steps in ((no_time, long), (no_time, no_time, long), (long, long), (long, no_time, long)):
        kept_tables: list[CostTable] = []
        survey, table = Survey(Stopwatch(lambda rows, context: 0.001), {}, 4096, kept_tables.append), None
        for seconds in steps:
            table = survey.advance(1, 1, 100, seconds) or table
        assert table is not None
        assert no_time not in steps or table.overhead == 0
        assert len(kept_tables) == (survey.over and len(steps) > 2), "not where it rests on so few"


def test_steps_that_draft_say_nothing_of_a_plain_one() -> None:
    survey, table = Survey(Stopwatch(lambda rows, context: 0.001), {}, 4096), None
    for rows in (1, *[4] * 9, 1):
        table = survey.advance(rows, 1, 100, 0.0012 if rows == 1 else 0.001) or table
    assert table is not None
    assert table.overhead == pytest.approx(0.0002, abs=0.0001)


@pytest.mark.parametrize("seconds", [3600.0, 0.5, -1.0])
@pytest.mark.parametrize("silent", [False, True])
def test_a_thought_that_was_disturbed_changes_little(seconds: float, silent: bool) -> None:
    """A long one is no reason to think no more; nor is a clock that was set back one never to think again."""
    thrift = Thrift()
    thrift.observe(seconds, 0.01)
    rested = []
    for _ in range(300):
        rested.append(thrift.rests(silent))
        if not rested[-1]:
            thrift.observe(0.00001, 0.01)
    assert not any(rested[200 if silent else 0 :])


# -- one among others


def test_who_was_unlucky_is_lent_what_others_have_gained() -> None:
    ledgers = [Ledger() for _ in range(4)]
    for ledger in ledgers[1:]:
        ledger.step(0.0, 6, 0.0)
    ledgers[0].step(2.5, 0, 0.0)
    assert not ledgers[0].affords(0.0)
    lend(ledgers)
    assert ledgers[0].affords(1.0)
    assert not ledgers[0].affords(2.0)
    for ledger in ledgers:
        ledger.left = -0.1
    lend(ledgers)
    assert not any(ledger.affords(0.0) for ledger in ledgers), "where all lose, nobody lends"


def test_one_out_of_luck_does_not_keep_the_others_from_drafting() -> None:
    """Its first drafts are wrong, and from then on it is as good as any."""
    world = World(
        rising(0.05), lambda request, step: 0.0 if not request and step < 6 else 0.7, lambda chance: 0.7, per_level=0.1
    )
    ran = world.run(world.auto(), 150, 4)
    assert times_plain(world, ran, 20, 4) > 1.25


def prices_of(rows: Callable[[int], float], requests: int) -> Prices:
    prices = Prices(32, measured(rows), None)
    prices.step(requests, 0)
    return prices


def candidates(requests: int, left: float, drafter: str | None = "world") -> list[Candidate]:
    found = [Candidate(PaidState(), Ledger(), drafter, 16, Draft(), (), False) for _ in range(requests)]
    for candidate in found:
        candidate.ledger.left = left
    return found


def test_nothing_is_paid_for_that_a_ledger_lets_nobody_verify() -> None:
    """A level costs each an eighth of a token, and a row a third."""
    paid = PaidDrafters(measured(rising(0.1), 0.15), 16, 64, Acceptance(), {"world": [0.95] * 16})
    for left, drafts in ((0.3, False), (1.0, True)):
        budgets, _ = paid._budgets(candidates(4, left), prices_of(rising(0.1), 4), True)
        assert any(budget.nodes for budget in budgets) is drafts


def test_whoever_has_no_drafter_need_not_be_thought_of() -> None:
    paid = PaidDrafters(measured(flat, 5.0), 16, 64, Acceptance(), {})
    mixed = [*candidates(2, 2.0), *candidates(2, 2.0, None)]
    paid._budgets(mixed, prices_of(flat, 4), True)
    assert [paid.rests([each.state for each in mixed]) for _ in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(("requests", "resume"), [(1, 0.5), (4, 0.5), (12, 0.3)])
def test_many_short_answers_end_a_silence_too(requests: int, resume: float) -> None:
    """A head that is taken to be useless and is not, by answers of 60 tokens: a try costs many a request's tokens each,
    and none lives to see the day it can pay for one alone."""
    table = measured(flat, 0.15, resume)
    world = World(flat, always(0.9), per_level=0.15)
    ran = world.run(AutoLength(table=table, acceptance={"world": [0.0] * 16}), 400, requests, length=60)
    assert times_plain(world, ran, 300, requests) > 1.3


def test_a_try_is_paid_for_by_all_who_wait_for_it() -> None:
    world = World(flat, always(0.0), claim=lambda chance: 0.5, per_level=0.5)
    controller = AutoLength(table=measured(flat, 0.5), acceptance={"world": [0.0] * 16})
    ran = world.run(controller, 300, 8)
    assert 2 < sum(levels > 0 for levels in ran.levels) < 12
    left = [state.ledger.left for state in controller._states]
    assert max(left) - min(left) < 1.0
    assert times_plain(world, ran, 0, 8) > 0.97


def test_what_could_not_pay_were_it_always_right_is_hardly_tried() -> None:
    """Each row costs what a token does, among four: there is nothing to find out but costs."""
    table = measured(rising(1.0), 0.05)
    world = World(rising(1.0), always(0.9), per_level=0.05, table=table)
    ran = world.run(AutoLength(table=table, acceptance={"world": [0.0] * 16}), 600, 4)
    assert 1 <= sum(levels > 0 for levels in ran.levels) <= 3


# -- shapes of costs


class Pays:
    fixed = 0.0

    def level(self, sharing: float) -> float:
        return 0.02


def test_a_step_up_in_the_cost_does_not_hide_what_lies_behind_it() -> None:
    stairs = [1.0 if r <= 2 else 2.0 for r in range(33)]
    tokens = [0.95**k for k in range(1, 17)]
    one = Prospect(9.0, tokens, [1.0] * 16, [1.0] * 16)
    assert together([one], stairs, 0.5, Pays(), 0.0) == [16]


def test_more_that_was_drawn_than_there_are_rows_leaves_none() -> None:
    """Drafts that were drawn are verified whole; beside them nothing that the step has no room for."""
    whole: Any = object()
    drawn = Draft([5] * 13, range(-1, 12), [0.9] * 13, "head", whole)
    found = Draft([7] * 8, range(-1, 7), [0.9] * 8, "suffix")
    drafts, costs = [drawn, drawn, drawn, found], [1 + 0.001 * r for r in range(33)]
    chances = [draft.confidence for draft in drafts]
    nodes, _ = kept(drafts, chances, [16] * 4, [0] * 4, costs, 0.25, [Ledger() for _ in drafts])
    assert [len(mine) for mine in nodes] == [13, 13, 13, 0]


@pytest.mark.parametrize(("begin", "least"), [(0.5, 6.0), (1.5, 4.0), (2.0, 3.0)])
def test_a_drafter_that_is_dear_to_begin_and_nearly_always_right_is_not_starved(begin: float, least: float) -> None:
    """What a single draft may stake is of its levels: one alone would never be reached beside a dear beginning."""
    world = World(flat, always(0.999), per_level=0.02, besides=lambda draft: begin)
    line = [PASS * flat(r) for r in ROWS]
    cost = DraftCost(PASS * begin, PASS * 0.02, PASS * begin)
    world.table = CostTable(ROWS, (0, 1), (line, line), 0.0, {"world": cost})
    ran = world.run(world.auto(), 1500)
    assert ran.rate > least * world.plain(1500)


@pytest.mark.parametrize("level", [0.4, 0.8])
def test_a_useless_dear_drafter_costs_little_in_short_answers(level: float) -> None:
    world = World(flat, always(0.0), per_level=level, claim=lambda chance: 0.8)
    ran = world.run(world.auto(), 1000, length=40)
    assert ran.rate > 0.96 * world.plain(1000)
