"""The controller's parts one by one: acceptance, what levels bring, the ledger."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.acceptance import Acceptance, Calibration, Leaning, verdicts
from outrider.control.choice import kept
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.isotonic import isotonic
from outrider.control.ledger import SHARE, Ledger
from outrider.control.levels import Levels, PricedLevels, SeenLevels
from outrider.control.paid import PaidDrafters
from outrider.control.paid_state import PaidState
from outrider.control.widths import Widths, followed_up
from outrider.core.draft import Draft

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


def test_however_a_request_leans_no_node_is_likelier_than_its_parent() -> None:
    """Not by a rounding: what is certain where its parent is right would be kept without it."""
    path = Draft([1, 2, 3, 4], [-1, 0, 1, 2], [0.7] * 4, "own")
    for wrong in range(1, 40):
        leaning = Leaning()
        leaning.observe(wrong, 0.97 * wrong, 0)
        chances = Acceptance().chances([path], [{"own": leaning}])[0]
        assert chances == sorted(chances, reverse=True), leaning.odds
        assert Acceptance().along(path, {"own": leaning}) == chances
        for room in range(1, 5):
            ((nodes,), _) = kept([path], [chances], [room], [room], [1.0] * 9, 1.0, [Ledger()])
            assert path.only(sorted(nodes)).fault(5, tree=True) is None


def test_a_request_may_lean_to_either_side() -> None:
    leaning = Leaning()
    assert leaning.odds == 1
    for i in range(40):
        leaning.observe(1, 0.6, i % 5 == 0)
    assert 0.2 / 0.8 / (0.6 / 0.4) < leaning.odds < 0.5
    for i in range(40):
        leaning.observe(1, 0.6, i % 5 != 0)
    assert 1.5 < leaning.odds < 3


def test_no_luck_makes_a_path_certain() -> None:
    """Claims of 0.6 and 0.9 mean 0.75 and 0.95 for this request. Scaled until the mean is right, 0.9 would be 1, and so
    would any path of it be, however long."""
    acceptance, leaning, draw = Acceptance(), Leaning(), random.Random(0)
    believed = []
    for i in range(400):
        meant, true = (0.6, 0.75) if i % 2 else (0.9, 0.95)
        leaning.observe(1, meant, draw.random() < true)
        path = Draft([7] * 8, range(-1, 7), [0.9**k for k in range(1, 9)], "suffix")
        believed.append(acceptance.chances([path], [{"suffix": leaning}])[0][-1])
    assert 0.9**8 < sum(believed) / len(believed) < 0.95**8
    assert max(believed) < 0.8


def test_levels_follow_what_happens_and_the_rest_is_guessed() -> None:
    levels = Levels([0.66**k for k in range(1, 7)], 0.66, 0.02, 8)
    for i in range(400):
        right = 2 if i % 4 == 0 else 1 if i % 2 == 0 else 0
        levels.observe([float(k < right) for k in range(2)], float(right > 0))
    assert levels.expected(4) == pytest.approx([0.5, 0.25, 0.125, 0.0625], rel=0.15)


# -- what drafters that make passes bring


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
        paid, state = PaidDrafters(table, 4, 64, Acceptance(), {}), PaidState()
        for _ in range(50):
            state.drafter, state.levels, state.passes = "head", 2, 1
            paid.rate(state, Draft([7], [-1], [0.9], sources=[label]), [0.9], [0])
        gains = state.gains["head"]
        rated.append((gains.expected(2, 0.0), gains.runs(2)))
    assert rated[0] == rated[1]
    assert rated[0][0] == pytest.approx([0.9, 0.0], abs=0.03)
    assert rated[0][1] == pytest.approx([1.0, 0.0], abs=0.03)
    assert rated[2][0] == pytest.approx([0.0, 0.0], abs=0.03)


def test_passes_are_as_wide_as_what_they_are_worth() -> None:
    widths = Widths()
    for _ in range(500):
        for claims in followed_up([0, 0, 0, 1, 1, 2], [0.7, 0.15, 0.03, 0.5, 0.3, 0.4], passes=3):
            widths.observe(claims)
    assert widths.at(0.01) == pytest.approx(2.5, abs=0.05)
    assert widths.at(0.1) == pytest.approx(2.0, abs=0.05)
    assert widths.at(0.4) == pytest.approx(1.0, abs=0.05)
    assert widths.at(0.9) == widths.at(0.4)


# -- the ledger


def test_a_ledger_lets_nobody_lose_more_than_its_share() -> None:
    """Whoever drafts whenever it may, always for nothing, loses little more than the share of plain time."""
    ledger, spent = Ledger(), 0.0
    for _ in range(1000):
        charge = 0.3 if ledger.affords(0.3) else 0.0
        ledger.step(charge, 0, -charge)
        spent += charge
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


@pytest.mark.parametrize(("requests", "each"), [(1, 1), (4, 4), (5, 3), (16, 4), (64, 4)])
def test_a_few_of_many_teach_one_after_the_other(requests: int, each: int) -> None:
    line = [1.0 + 0.01 * rows for rows in ROWS]
    paid = PaidDrafters(CostTable(ROWS, (64, 1024), (line, line)), 16, 64, Acceptance(), {})
    taught = set[int]()
    for _ in range(-(-requests // 4)):
        teachers = {place for place in range(requests) if paid.teaches(place, requests)}
        assert len(teachers) <= each
        taught |= teachers
        paid.tick()
    assert taught == set(range(requests)), "everybody, in as few steps"
