"""The controller's parts one by one: costs, acceptance, the choice, the ledger."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from control_world import Predicts, Running, World, always, flat, rising
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.acceptance import Acceptance, Calibration, Leaning, verdicts
from outrider.control.auto import AutoLength
from outrider.control.choice import chosen, depth
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.isotonic import isotonic
from outrider.control.ledger import SHARE, Ledger
from outrider.control.levels import Levels, PricedLevels, SeenLevels
from outrider.control.pace import DraftPace, Pace
from outrider.control.paid import PaidDrafters, PaidState
from outrider.control.survey import Survey
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView

# -- costs


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


def paced(cost: Callable[[int], float], sizes: Sequence[int], passes: int, table: CostTable) -> Pace:
    """After noisy passes of random sizes on a machine that drifts and stumbles."""
    draw, pace = random.Random(0), Pace(table, 32)
    for i in range(passes):
        rows = draw.choice(sizes)
        speed = 0.01 * math.exp(0.3 * math.sin(i / 40) + draw.gauss(0, 0.05))
        pace.observe(rows, 0, cost(rows) * speed * (5 if draw.random() < 0.02 else 1))
    return pace


def exact(cost: Callable[[int], float]) -> CostTable:
    line = [cost(r) for r in ROWS]
    return CostTable(ROWS, (0, 1), (line, line))


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
        cost.observe(levels, 1, (0.2 + 0.1 * levels) * math.exp(draw.gauss(0, 0.05)))
    assert cost.fixed == pytest.approx(0.2, abs=0.06)
    assert cost.per_level == pytest.approx(0.1, abs=0.02)


def test_draft_cost_of_many_requests_is_told_from_that_of_one() -> None:
    """Each request's rows add to a pass; what is learned of twelve together holds for one."""
    known = DraftCost(0.02, 0.1, row=0.01)
    cost = DraftPace(known)
    assert cost.level(12) == pytest.approx(cost.level(1) + 11 * 2 * 0.01)
    for levels in (2, 3, 4) * 60:
        cost.observe(levels, 12, 0.05 + levels * 0.2 + (1 + levels) * 11 * 2 * 0.01)
    assert cost.level(1) == pytest.approx(0.2, rel=0.02)
    assert cost.beginning(1) == pytest.approx(0.05, abs=0.01)


def test_draft_cost_of_one_depth_is_right_at_that_depth() -> None:
    cost = DraftPace(DraftCost(0.1, 0.1))
    for _ in range(100):
        cost.observe(4, 1, 0.8)
    assert cost.fixed + 4 * cost.per_level == pytest.approx(0.8, rel=0.05)


class Stopwatch:
    """A model whose passes cost what they are said to."""

    def __init__(self, cost: Callable[[int, int], float]) -> None:
        self._cost, self._draw = cost, random.Random(0)
        self.asked = 0

    def measure(self, rows: int, context: int) -> float:
        self.asked += 1
        return self._cost(rows, context) * math.exp(self._draw.gauss(0, 0.03))


def test_a_survey_goes_on_between_steps_until_the_table_is_complete() -> None:
    target = Stopwatch(lambda rows, context: 0.001 * (1 + 0.1 * rows + 1e-5 * rows * context))
    head = Stopwatch(lambda rows, context: 0.0001)
    kept: list[CostTable] = []
    survey = Survey(target, {"head": head}, 4096, kept.append)
    steps, table = 0, None
    while table is None:
        table = survey.advance(1, 100, 0.00000001)  # no time for more than a piece
        steps += 1
        assert target.asked + head.asked <= steps
    assert kept == [table]
    assert table.pass_seconds(16, 1000)[16] == pytest.approx(0.001 * (1 + 1.6 + 0.16), rel=0.08)
    assert table.drafting["head"].per_level == pytest.approx(0.0001, rel=0.1)


def test_a_restless_survey_is_used_but_not_kept() -> None:
    draw = random.Random(0)
    kept: list[CostTable] = []
    survey = Survey(Stopwatch(lambda rows, context: 0.001 * draw.uniform(0.4, 2)), {}, 4096, kept.append)
    assert survey.advance(1, 100, 10.0) is not None
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


@pytest.mark.parametrize("times", [1, 9])
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
    undisturbed = Survey(target := Stopwatch(lambda rows, context: 0.001 * (1 + 0.1 * rows)), {}, 4096)
    undisturbed.whole()
    assert target.asked == 18, "nothing is measured again without need"


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


# -- acceptance


def test_nodes_of_a_draft_alone() -> None:
    """Whether they are its first ones or not, and whoever proposed them."""
    tree = Draft([1, 2, 3, 4], [-1, -1, 0, 1], [0.5, 0.4, 0.3, 0.2], "x")
    assert tree.only([]) == Draft()
    assert tree.only([0, 1, 2]) == Draft([1, 2, 3], [-1, -1, 0], [0.5, 0.4, 0.3], "x")
    assert tree.only([1, 3]) == Draft([2, 4], [-1, 0], [0.4, 0.2], "x")
    mixed = Draft([1, 2], [-1, 0], [0.5, 0.4], "x+y", sources=["x&y", "y"])
    assert mixed.only([0]) == Draft([1], [-1], [0.5], "x", sources=["x&y"])


def test_drafts_are_held_against_the_tokens_that_came() -> None:
    tree = Draft([1, 2, 3, 4, 5], [-1, -1, 0, 2, 1], [0.5] * 5, "x")
    # Nothing is said of what follows a wrong token, nor of what lies beyond those that came.
    assert verdicts(tree, [1, 3]) == [(0, True), (1, False), (2, True)]
    assert verdicts(tree, [1, 3, 4]) == [(0, True), (1, False), (2, True), (3, True)]
    assert verdicts(tree, [9]) == [(0, False), (1, False)]
    assert verdicts(tree, [1]) == [(0, True), (1, False)]
    assert verdicts(tree, []) == []


def calibrated(truth: Callable[[float], float], drafts: int, least: float = 0.0) -> Calibration:
    draw, calibration = random.Random(0), Calibration()
    for _ in range(drafts):
        claim = draw.uniform(least, 1)
        calibration.observe(claim, draw.random() < truth(claim))
        calibration.tick()
    return calibration


def test_honest_claims_are_believed_before_and_after_evidence() -> None:
    for calibration in (Calibration(), calibrated(lambda claim: claim, 3000)):
        for wanted in (0.05, 0.2, 0.5, 0.8):
            assert calibration.acceptance(wanted) == pytest.approx(wanted, abs=0.08)


def test_exaggeration_is_found_out() -> None:
    calibration = calibrated(lambda claim: claim / 3, 3000)
    assert calibration.truth <= 1
    assert calibration.acceptance(0.6) == pytest.approx(0.2, abs=0.05)


def test_modesty_is_found_out_below_what_was_seen() -> None:
    calibration = calibrated(lambda claim: 0.95, 300, least=0.5)
    assert calibration.acceptance(0.3) > 0.45
    assert calibration.truth > 1.2


def test_what_is_no_longer_seen_fades_back_to_the_claim() -> None:
    calibration = calibrated(lambda claim: 0.0, 500, least=0.5)
    assert calibration.acceptance(0.7) < 0.2
    for _ in range(2000):
        calibration.tick()
    assert calibration.acceptance(0.7) > 0.5


def test_a_request_may_lean_to_either_side() -> None:
    leaning = Leaning()
    assert leaning.ratio == 1
    for _ in range(40):
        leaning.observe(1.0, 0.2)
    assert leaning.ratio == pytest.approx(0.35, abs=0.1)
    for _ in range(40):
        leaning.observe(1.0, 1.5)
    assert leaning.ratio > 1.2


def test_levels_follow_what_happens_and_the_rest_is_guessed() -> None:
    levels = Levels([0.66**k for k in range(1, 7)], 0.66, 0.02, 8)
    for i in range(400):
        right = 2 if i % 4 == 0 else 1 if i % 2 == 0 else 0
        levels.observe([float(k < right) for k in range(2)], float(right > 0))
    assert levels.expected(4) == pytest.approx([0.5, 0.25, 0.125, 0.0625], rel=0.15)


# -- the choice


def test_rows_go_to_what_brings_most() -> None:
    good, bad = [0.9, 0.8, 0.7, 0.6], [0.3, 0.1, 0.03, 0.01]
    linear = [1 + 0.2 * r for r in range(40)]
    assert chosen([good, bad], linear, 1.0, [9, 9]).sizes == [4, 1]
    assert chosen([good, bad], linear[:6], 1.0, [9, 9]).sizes == [3, 0]
    assert chosen([good, bad], linear, 0.2, [9, 9]).sizes == [0, 0]
    assert chosen([good, bad], linear, 1.0, [9, 9]).row == pytest.approx(0.2)


def test_a_step_in_the_cost_is_crossed_only_for_enough() -> None:
    stairs = [1.0 if r <= 4 else 2.0 for r in range(40)]
    assert chosen([[0.3] * 6], stairs, 1.0, [9]).sizes == [3]
    assert chosen([[0.3] * 9], stairs, 1.0, [9]).sizes == [9]


def test_who_gains_nothing_waits_no_longer_than_patience_allows() -> None:
    linear = [1 + 0.1 * r for r in range(40)]
    assert chosen([[0.9] * 9, []], linear, 0.5, [0, 0.01]).sizes == [0, 0]
    assert chosen([[0.9] * 9, []], linear, 0.5, [0, 0.1]).sizes == [1, 0]
    assert chosen([[0.9] * 9, [0.9] * 9], linear, 0.5, [0, 0]).sizes == [9, 9]


def test_a_drafter_may_pay_for_one_request_and_not_for_many() -> None:
    """Rows cost nothing up to 8, and then as much as a first one."""
    line = [1.0 if rows <= 8 else rows / 8 for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.05)})
    controller = AutoLength(table=table)
    assert [controller.pays(requests, 0) for requests in (1, 2, 4, 12, 24)] == [True, True, True, False, False]


def test_prompts_are_read_only_for_answers_that_bring_it_in() -> None:
    """Reading a token takes a hundredth of a pass, and drafts save half of one in a step."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.1, 0.02 + 32 * 0.01)})
    paid = PaidDrafters(table, 16, Acceptance(), {})
    assert [paid.pays(1.0, 1, prompt) for prompt in (100, 2000, 30_000)] == [True, True, False]
    for _ in range(100):
        paid.ended(8)
    assert [paid.pays(1.0, 1, prompt) for prompt in (100, 2000, 30_000)] == [True, False, False]


def test_now_and_then_a_prompt_is_read_all_the_same() -> None:
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.9)})
    paid = PaidDrafters(table, 16, Acceptance(), {})
    assert 2 <= sum(paid.pays(1.0, 1, 100) for _ in range(100)) <= 5


def test_what_levels_bring_holds_at_any_price_of_a_row() -> None:
    """Two nodes were kept of each level where rows cost nothing; where they are dear, the likelier one alone pays."""
    levels = PricedLevels.hoped((), 4, 0.1, 1)
    for _ in range(100):
        levels.observe(SeenLevels([0.6, 0.4], [0.8, 0.5], [2, 2], [1, 1], 0.6))
    assert levels.expected(2, 0.0) == pytest.approx([0.8, 0.5], abs=0.01)
    assert levels.expected(2, 0.1) == pytest.approx([0.6, 0.3], abs=0.01)
    assert levels.expected(2, 0.5) == pytest.approx([0.1, 0.0], abs=0.01)


def test_a_drafter_that_agrees_with_a_lookup_is_no_worse_for_it() -> None:
    """What it brings is the same whether or not others propose it too; what is left to bring is asked elsewhere."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.1)})
    rated = []
    for label in ("head", "suffix&head", "suffix"):
        paid, state = PaidDrafters(table, 4, Acceptance(), {}), PaidState()
        for _ in range(50):
            state.drafter, state.levels, state.passes = "head", 2, 1
            paid.rate(state, Draft([7], [-1], [0.9], sources=[label]), [0.9], [0])
        gains = state.gains["head"]
        rated.append((gains.expected(2, 0.0), gains.runs(2)))
    assert rated[0] == rated[1]
    assert rated[0][0] == pytest.approx([0.9, 0.0], abs=0.03)
    assert rated[0][1] == pytest.approx([1.0, 0.0], abs=0.03)
    assert rated[2][0] == pytest.approx([0.0, 0.0], abs=0.03)


def test_depth_pays_for_what_drafting_costs() -> None:
    gains = [0.6, 0.36, 0.2, 0.1]
    assert depth(gains, 0.0, [0.25] * 4) == 2
    assert depth(gains, 0.0, [0.25, 0.25, 0.1, 0.1]) == 3  # levels that are seldom run cost less
    assert depth(gains, 0.5, [0.25] * 4) == 0
    assert depth(gains[:1], 0.0, [0.0]) == 1
    assert depth([], 0.0, []) == 0


# -- the ledger


def test_a_ledger_lets_nobody_lose_more_than_its_share() -> None:
    """Whoever drafts whenever it may, always for nothing, loses little more than the share of plain time."""
    ledger, spent = Ledger(), 0.0
    for _ in range(1000):
        charge = 0.3 if ledger.affords(0.3) else 0.0
        ledger.step(charge, 0, -charge)
        spent += charge
    assert spent == ledger.lost
    assert spent < SHARE * 1000 + 2.3  # and the two passes it may begin with


def test_earlier_gains_do_not_pay_for_long_losses() -> None:
    ledger = Ledger()
    for _ in range(100):
        ledger.step(0.5, 3, 2.5)
    lost = 0
    while ledger.affords(1.0):
        ledger.step(1.0, 0, -1.0)
        lost += 1
    assert lost <= 7


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 9)), min_size=1, max_size=20))
def test_isotonic_is_the_closest_non_decreasing_sequence(points: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in points], [w for _, w in points]
    fitted = isotonic(values, weights)
    assert all(a <= b + 1e-9 for a, b in pairwise(fitted))

    def distance(other: Sequence[float]) -> float:
        return sum(w * (v - x) ** 2 for v, w, x in zip(values, weights, other, strict=True))

    rivals = [sorted(values), [sum(values) / len(values)] * len(values)]
    running, most = [], -math.inf
    for value in values:
        most = max(most, value)
        running.append(most)
    assert all(distance(fitted) <= distance(rival) + 1e-6 for rival in [*rivals, running])
