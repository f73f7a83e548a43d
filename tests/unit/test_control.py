"""The controller on synthetic machines whose best answer is known. No model runs here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest
from control_world import PASS, Drafts, Finder, Predicts, Running, World, always, flat, rising

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import ROWS, CostTable, DraftCost, assumed
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.errors import InvalidRequest

pytestmark = pytest.mark.long

# -- the controller: it drafts what pays

PAYS = {
    "cheap rows, good drafts": World(flat),
    "cheap rows, poor drafts": World(flat, always(0.2)),
    "dear rows": World(rising(0.05), always(0.5)),
    "very dear rows, excellent drafts": World(rising(0.5), always(0.9)),
    "a drafter that is a model": World(flat, always(0.7), per_level=0.3),
    "a good drafter that is a model": World(flat, always(0.9), per_level=0.1),
    "a drafter too modest": World(rising(0.05), always(0.9), claim=lambda chance: 0.6),
    "the 17th row doubles the cost": World(lambda rows: 1.0 if rows <= 16 else 2.0, always(0.9)),
    "lookup, cheap rows": World(flat, always(0.6), per_level=0.0, free=True),
    "lookup, dear rows": World(rising(0.25), always(0.7), per_level=0.0, free=True),
    "perfect": World(rising(0.3), always(0.99)),
}


@pytest.mark.parametrize("free", [False, True])
def test_the_best_fixed_length_is_that_of_runs(free: bool) -> None:
    """What the tests below compare with is reckoned, for speed: here it is run."""
    world = World(rising(0.03), lambda request, step: 0.95 if step // 7 % 5 == 0 else 0.1, free=free, thinking=0.01)
    for n in (0, 1, 6, 16):
        assert world.best_fixed(200, [n]) == pytest.approx(world.run(FixedLength(n), 200).rate)


@pytest.mark.parametrize("name", PAYS)
def test_comes_close_to_the_best_fixed_length(name: str) -> None:
    """On average of three runs: with dear rows one differs from the next by a tenth, by luck."""
    worlds = [replace(PAYS[name], seed=seed) for seed in range(3)]
    shares = [world.run(world.auto(), 1000, length=150).rate / world.best_fixed(1000) for world in worlds]
    assert mean(shares) > 0.88


@pytest.mark.parametrize("free", [False, True])
def test_beats_every_fixed_length_where_drafts_differ(free: bool) -> None:
    """One step in five begins a copy; the drafter knows which, and says so. With the luck of four."""
    world = World(rising(0.03), lambda request, step: 0.95 if step // 7 % 5 == 0 else 0.1, free=free)
    worlds = [replace(world, seed=seed) for seed in range(4)]
    assert mean(each.run(each.auto(), 1200).rate / each.best_fixed(1200) for each in worlds) > 1.15


def test_stops_short_of_the_row_that_doubles_the_cost() -> None:
    world = PAYS["the 17th row doubles the cost"]
    ran = world.run(world.auto(), 600)
    assert [nodes for (nodes,) in ran.drafted[300:]].count(15) > 270


# -- ... and (almost) nothing where nothing pays

DOES_NOT_PAY = {
    "never right": World(flat, always(0.0), claim=lambda chance: 0.7, per_level=0.02),
    "seldom right, dear rows": World(rising(0.3), always(0.2)),
    "exaggerates, dear rows": World(rising(0.1), always(0.05), claim=lambda chance: 0.9),
    "excellent, but every row costs a pass": World(rising(1.0), always(0.9)),
    "a slow model, seldom right": World(flat, always(0.1), per_level=0.3),
    "a very slow model": World(flat, always(0.5), per_level=0.6),
    "lookup, never right": World(rising(0.3), always(0.0), claim=lambda chance: 0.8, free=True),
}


@pytest.mark.parametrize("name", DOES_NOT_PAY)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("requests", [1, 4])
def test_is_never_slower_than_plain(name: str, seed: int, requests: int) -> None:
    world = replace(DOES_NOT_PAY[name], seed=seed)
    plain = world.plain(20, requests)
    assert world.run(world.auto(), 1000, requests, length=200).rate > 0.97 * plain


WRONG_TABLES = {
    "rows are said to be free": World(rising(0.4), always(0.3), table=assumed(0.0)),
    "nothing was measured": World(rising(0.4), always(0.3), table=assumed(0.02)),
    "rows are said to be dear": World(flat, always(0.8), table=assumed(0.5)),
}


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_the_ledger_holds_where_the_table_is_wrong(name: str) -> None:
    world = WRONG_TABLES[name]
    assert world.run(world.auto(), 2000, length=400).rate > 0.95 * world.plain(2000)


def test_probes_are_rare_but_go_on() -> None:
    world = DOES_NOT_PAY["a slow model, seldom right"]
    ran = world.run(world.auto(), 4000)
    asked = [step for step, levels in enumerate(ran.levels) if levels and step > 500]
    assert 5 < len(asked) < 0.08 * 3500
    assert max(b - a for a, b in pairwise(asked)) < 600


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("per_level", [0.005, 0.3])
def test_recovers_when_acceptance_comes_back(per_level: float, free: bool) -> None:
    world = World(
        rising(0.1),
        lambda request, step: 0.0 if step < 1000 else 0.85,
        claim=lambda chance: 0.5,
        per_level=0.0 if free else per_level,
        free=free,
    )
    ran = world.run(world.auto(), 2500)
    later = World(rising(0.1), always(0.85), per_level=0.0 if free else per_level)
    assert ran.since(1600) > 0.9 * later.best_fixed(1000)


@pytest.mark.parametrize("known", [0.0, 1.0])
def test_a_drafter_known_to_be_never_or_always_right_is_no_trouble(known: float) -> None:
    world = World(flat, always(0.8))
    table = CostTable(ROWS, (0, 1), ([PASS * flat(r) for r in ROWS],) * 2, 0.0, {"world": DraftCost(0.0, 0.005 * PASS)})
    ran = world.run(AutoLength(table=table, acceptance={"world": [known] * 16}), 1500)
    assert ran.since(1000) > 0.85 * world.best_fixed(1000)


def test_stops_again_when_acceptance_goes_away() -> None:
    world = World(rising(0.1), lambda request, step: 0.85 if step < 600 else 0.0, claim=lambda chance: 0.8)
    ran = world.run(world.auto(), 1500)
    assert ran.since(650) > 0.95


def test_a_verdict_on_one_drafter_does_not_silence_another() -> None:
    """A head that is never right beside a lookup that often is: the lookup is used as if it were alone."""

    class Both(Finder):
        def paid(self, request: RequestView) -> str | None:
            return "head"

        def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            self.levels = max((b.depth for b in budgets if b.nodes), default=0)
            return [Draft([9], [-1], [0.9], "head") if b.nodes else Draft() for b in budgets]

        def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            return Drafts(self._world, self._step, self._requests).propose(requests, budgets)

    world = World(rising(0.2), always(0.8), per_level=0.2)
    alone = replace(world, per_level=0.0, free=True)
    controller, draw, cost, tokens = world.auto(), random.Random(0), 0.0, 0
    request = Running(0)
    for step in range(600):
        both = Both(world, step, 1)
        (draft,) = controller.draft(both, [request], True, [100])
        right = 0
        while draw.random() < 0.8:
            right += 1
        found = [7] * right + [8]
        path, node = [], -1
        for token in found:
            below = [i for i in draft.children(node) if draft.tokens[i] == token]
            if not below:
                break
            path.append(node := below[0])
        spent = world.rows(1 + len(draft))
        outcome = VerifiedDraft(request, draft, tuple(path), tuple(found[: len(path) + 1]))
        controller.observe([outcome], 1 + len(draft), 0.2 * both.levels * PASS, spent * PASS)
        cost, tokens = cost + spent + 0.2 * both.levels, tokens + len(path) + 1
    assert tokens / cost > 0.93 * alone.run(alone.auto(), 600).rate


def test_a_head_goes_on_right_after_what_a_lookup_had() -> None:
    """Every third step a lookup knows what follows, and nobody is paid; in those between, the head is."""

    class Both(Finder):
        def paid(self, request: RequestView) -> str | None:
            return "world"

        def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
            sure = Draft([7] * 8, range(-1, 7), [0.99] * 8, "suffix")
            return [Draft() if self._step % 3 else sure for _ in requests]

    world = World(flat, always(0.7), per_level=0.1)
    controller, draw, request, asked = world.auto(), random.Random(0), Running(0), [0, 0, 0]
    for step in range(300):
        both = Both(world, step, 1)
        (draft,) = controller.draft(both, [request], True, [100])
        right = 8 if step % 3 == 0 else 0
        while right < 8 and draw.random() < 0.7:
            right += 1
        taken = min(right, len(draft))
        outcome = VerifiedDraft(request, draft, tuple(range(taken)), (*[7] * taken, 7 if right > taken else 8))
        controller.observe([outcome], 1 + len(draft), 0.1 * both.levels * PASS, flat(1 + len(draft)) * PASS)
        asked[step % 3] += both.levels > 0
    assert asked[0] < 20
    assert min(asked[1:]) > 80


def test_no_request_pays_much_for_the_drafts_of_another() -> None:
    """One of four copies; rows are dear. The others' steps may take about a tenth longer, not more."""
    world = World(rising(0.15), lambda request, step: 0.9 if request == 0 else 0.0)
    ran = world.run(world.auto(), 1000, requests=4)
    assert sum(ran.costs) / len(ran.costs) < 1.12 * world.rows(4)


# -- batches


def test_a_batch_shares_the_rows() -> None:
    world = World(flat, lambda request, step: 0.8)
    ran = world.run(world.auto(nodes=16, rows=32), 300, requests=6)
    totals = [sum(drafted) for drafted in ran.drafted]
    assert max(totals) <= 32 - 6
    assert sum(total >= 15 for total in totals[100:]) > 180
    assert ran.rate > 0.95 * max(world.run(FixedLength(n), 300, 6).rate for n in range(5))


def test_rows_go_to_the_sequences_that_use_them() -> None:
    world = World(flat, lambda request, step: 0.9 if request < 2 else 0.0, claim=lambda chance: 0.5)
    ran = world.run(world.auto(nodes=16, rows=16), 400, requests=4)
    good = sum(nodes for drafted in ran.drafted[200:] for nodes in drafted[:2])
    bad = sum(nodes for drafted in ran.drafted[200:] for nodes in drafted[2:])
    assert good > 5 * bad


def test_a_batch_as_large_as_the_rows_decodes_plainly() -> None:
    world = World(flat)
    assert not any(map(any, world.run(world.auto(rows=4), 10, requests=5).drafted))


@pytest.mark.parametrize("make", [lambda world: world.auto(8), lambda _: FixedLength(6)], ids=["auto", "fixed"])
@pytest.mark.parametrize("tree", [True, False])
def test_the_room_is_kept(make: Callable[[World], Controller], tree: bool) -> None:
    world = World(flat, always(0.9))
    controller = make(world)
    world.run(controller, 60, requests=3)
    for room in ([0, 1, 5], [3, 0, 100]):
        for _ in range(40):
            requests = [Running(100 + i) for i in range(3)]
            drafts = controller.draft(Drafts(world, 0, 3), requests, tree, room)
            assert all(len(draft) <= most for draft, most in zip(drafts, room, strict=True))
            verified = [VerifiedDraft(s, Draft(), (), (1,)) for s in requests]
            controller.observe(verified, 3, 0.0, 0.013)


def test_a_prediction_is_tried_once_whatever_is_believed() -> None:
    """In the very first step of all, after drafts have never paid, and where a batch has no rows to spare."""
    hopeless = World(rows=rising(1.0), chance=lambda request, step: 0.0)
    for steps, others in ((0, 0), (300, 40)):
        controller = hopeless.auto()
        hopeless.run(controller, steps)
        told = Running(10**6, speculation=Speculation(prediction=(1, 2, 3)))
        running = [Running(10**6 + 1 + i) for i in range(others)] + [told]
        drafts = Predicts(hopeless, 0, 1)
        first, second = (controller.draft(drafts, running, True, [1000] * len(running)) for _ in range(2))
        assert [len(draft) for draft in first] == [0] * others + [2]
        assert not any(map(len, second)), "from then on it has to pay"
        tight = hopeless.auto().draft(drafts, [told, replace(told, id=7)], True, [1, 0])
        assert [len(draft) for draft in tight] == [1, 0]


def test_ended_sequences_are_forgotten() -> None:
    world = World(flat)
    controller = world.auto()
    world.run(controller, 100, requests=2, length=10)
    assert controller.held == 2


def test_a_fixed_length_is_fixed() -> None:
    world = World(flat, always(0.9))
    drafts = FixedLength(5).draft(Drafts(world, 0, 2), [Running(0), Running(1)], False, [3, 9])
    assert [len(draft) for draft in drafts] == [3, 5]


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="draft length"):
        FixedLength(-1)
    with pytest.raises(InvalidRequest, match="rows"):
        AutoLength(rows=1)
