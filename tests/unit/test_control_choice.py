"""The choice: which rows are verified and how deep is drafted, for all requests of a step together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import pytest
from control_world import PASS, Drafts, Running, World, always, flat, rising
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.choice import chosen
from outrider.control.controller import FixedLength
from outrider.control.together import Prospect, together
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView

LINEAR = [1 + 0.1 * r for r in range(40)]


# -- rows


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
    assert chosen([[0.9] * 9, []], LINEAR, 0.5, [0, 0.01]).sizes == [0, 0]
    assert chosen([[0.9] * 8, []], LINEAR, 0.5, [0, 0.2]).sizes == [2, 0]
    assert chosen([[0.9] * 9, [0.9] * 9], LINEAR, 0.5, [0, 0]).sizes == [9, 9]


def test_rows_go_first_to_who_cannot_bear_the_others_rows() -> None:
    """By what is likeliest alone the impatient one, whose node is the least likely, would stop all of them."""
    chances = [[0.9, 0.8], [0.9, 0.8], [0.7]]
    assert chosen(chances, LINEAR, 1.0, [1, 1, 0.0]).sizes == [2, 2, 1]
    assert chosen(chances, LINEAR, 1.0, [1, 1, -0.5]).sizes == [0, 1, 1]
    assert chosen(chances, LINEAR, 1.0, [1, 1, -0.7]).sizes == [0, 0, 0]


chances = st.lists(st.floats(0.01, 0.99), max_size=5).map(lambda some: sorted(some, reverse=True))
patience = st.floats(-1, 2)


@given(st.lists(st.tuples(chances, patience), min_size=1, max_size=6), st.floats(0.01, 0.5), st.floats(0.1, 1.0))
def test_nobody_bears_more_than_it_can(requests: list[tuple[list[float], float]], row: float, price: float) -> None:
    costs = [1 + row * r for r in range(20)]
    mine = [each for each, _ in requests]
    sizes = chosen(mine, costs, price, [patience for _, patience in requests]).sizes
    added = row * sum(sizes) / costs[len(requests)]
    assert len(requests) + sum(sizes) < len(costs)
    if any(sizes):
        assert all(added <= bears + sum(given[:n]) + 1e-9 for (given, bears), n in zip(requests, sizes, strict=True))
        assert sum(sum(given[:n]) for given, n in zip(mine, sizes, strict=True)) * price > row * sum(sizes)


# -- levels


@dataclass
class Pays:
    """A drafter whose level takes `one` for one request and `more` for each other."""

    one: float
    more: float = 0.0
    fixed: float = 0.0

    def level(self, sharing: float) -> float:
        return self.one + self.more * (sharing - 1)


def alike(requests: int, tokens: list[float], patience: float = 9.0) -> list[Prospect]:
    count = len(tokens)
    return [Prospect(patience, tokens, [1.0] * count, [1.0] * count)] * requests


def test_many_share_what_one_cannot_pay_for() -> None:
    costs = [1 + 0.02 * r for r in range(40)]
    drafter = Pays(0.8, 0.01)
    levels = [together(alike(n, [0.6, 0.3]), costs, 1 / n, drafter, 0.0) for n in (1, 4, 8)]
    assert levels == [[0], [0] * 4, [0] * 8]  # a token is worth the less, the more come with a pass
    levels = [together(alike(n, [0.6, 0.3]), costs, 0.4, drafter, 0.0) for n in (1, 2, 4, 8)]
    assert levels == [[0], [0] * 2, [1] * 4, [1] * 8]


def test_as_deep_as_there_are_rows_to_verify() -> None:
    """Eleven could use four levels each; a step has 32 rows."""
    flat = [1 + 0.001 * r for r in range(33)]
    levels = together(alike(11, [0.9, 0.8, 0.7, 0.6]), flat, 0.1, Pays(0.001), 0.0)
    assert levels == [2] * 11  # one row too many: the least likely node is left out when all are known


def test_one_row_that_costs_nothing_is_used_where_the_next_is_dear() -> None:
    """Kernels that multiply by eights; seven requests."""
    stairs = [1 + 0.5 * ((r - 1) // 8) for r in range(33)]
    assert together(alike(7, [0.7]), stairs, 1 / 7, Pays(0.03), 0.0) == [1] * 7


@pytest.mark.parametrize("requests", [3, 7, 11, 13])
def test_levels_that_fill_the_last_row_to_a_rounding_error(requests: int) -> None:
    flat = [1 + 0.001 * r for r in range(33)]
    mine = alike(requests, [0.9] * 8)[0]._replace(rows=[1.1, 0.7, 1.3, 0.3, 1.7, 0.1, 1.9, 2.3])
    assert together([mine] * requests, flat, 0.5, Pays(0.001), 0.0)[0] > 0


def test_a_row_that_is_dear_alone_is_shared() -> None:
    """The 17th costs a fifth of a pass, those after it nothing: kernels that multiply by sixteens."""
    stairs = [1.0 if r <= 16 else 1.2 for r in range(33)]
    assert together(alike(16, [0.6]), stairs, 1 / 16, Pays(0.05), 0.0) == [1] * 16


def test_passes_that_nobody_could_use_are_not_made() -> None:
    """One of them bears no more, and drafts bring it nothing: whatever was drafted, no row would be verified."""
    flat = [1 + 0.01 * r for r in range(33)]
    gaining, waiting = alike(3, [0.9, 0.8]), Prospect(-0.1)
    assert together([*gaining, waiting], flat, 0.25, Pays(0.01), 0.0) == [0] * 4
    assert together([*gaining, waiting._replace(patience=1.0)], flat, 0.25, Pays(0.01), 0.0) == [2, 2, 2, 0]
    itself = Prospect(-0.1, [0.5], [1.0], [1.0])
    assert together([*gaining, itself], flat, 0.25, Pays(0.01), 0.0) == [2, 2, 2, 1]


def test_what_was_found_is_not_paid_for_again() -> None:
    flat = [1 + 0.001 * r for r in range(33)]
    found = Prospect(9.0, [0.05, 0.1], [0.1, 0.15], [1.0, 1.0])
    assert together([found], flat, 1.0, Pays(0.2), 0.0) == [0]
    assert together([found._replace(tokens=[0.9, 0.8], rows=[1.0, 1.0])], flat, 1.0, Pays(0.2), 0.0) == [2]


def test_a_gain_that_may_be_an_error_is_none() -> None:
    flat = [1 + 0.001 * r for r in range(33)]
    one, many = alike(1, [0.5]), alike(4, [0.5])
    assert together(one, flat, 1.0, Pays(0.35), 0.1) == [1]
    assert together(one, flat, 1.0, Pays(0.45), 0.1) == [0]
    assert together(many, flat, 1.0, Pays(1.7), 0.1) == [1] * 4, "errors of several partly cancel"


def test_catching_up_is_paid_for() -> None:
    flat = [1 + 0.001 * r for r in range(33)]
    late = [each._replace(first=0.4) for each in alike(1, [0.5])]
    assert together(alike(1, [0.5]), flat, 1.0, Pays(0.2), 0.0) == [1]
    assert together(late, flat, 1.0, Pays(0.2), 0.0) == [0]


# -- several requests on machines made up


def sixteens(rows: int) -> float:
    return 1 + 0.01 * rows if rows <= 16 else 1.25 + 0.02 * (rows - 16)


def uneven(request: int, step: int) -> float:
    """Some texts are easy and some are not, and each is easy now and then."""
    return random.Random(request * 1009 + step // 3).choice([0.1, 0.5, 0.8, 0.95]) * (0.75 if request % 4 else 1.0)


MACHINES: dict[str, tuple[Callable[[int], float], int]] = {
    "rows by sixteens, 16 in flight": (sixteens, 16),
    "rows by sixteens, 11 in flight": (sixteens, 11),
    "cheap rows, 4 in flight": (rising(0.03), 4),
    "rows that cost, 4 in flight": (rising(0.1), 4),
}


@pytest.mark.parametrize("name", MACHINES)
def test_several_together_come_close_to_the_best_fixed_length(name: str) -> None:
    """Those who gain little do not keep the others from gaining, nor are they made to wait for long."""
    rows, requests = MACHINES[name]
    shares = []
    for seed in range(2):
        world = World(rows, uneven, per_level=0.08, seed=seed)
        fixed = max(world.run(FixedLength(n), 300, requests).rate for n in (0, 1, 2, 4))
        shares.append(world.run(world.auto(), 300, requests, length=60).rate / fixed)
    assert mean(shares) > 0.95


def test_many_draft_no_more_than_a_step_has_rows_for() -> None:
    """What is drafted takes the host's time, whether it is verified or not."""
    asked: list[int] = []

    class Noting(Drafts):
        def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            asked.extend([budget.nodes for budget in budgets if budget.nodes])
            return super().propose(requests, budgets)

    world = World(flat, always(0.8))
    controller = world.auto(16, 64)
    requests = [Running(i) for i in range(16)]
    for _ in range(50):
        drafts = controller.draft(Noting(world, 0, 16), requests, True, [1000] * 16)
        pairs = zip(requests, drafts, strict=True)
        verified = [VerifiedDraft(r, d, tuple(range(len(d))), (*[7] * len(d), 8)) for r, d in pairs]
        controller.observe(verified, 16 + sum(map(len, drafts)), 0.0, PASS * flat(16 + sum(map(len, drafts))))
    assert asked
    assert max(asked) <= 4
