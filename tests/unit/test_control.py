"""The controller on synthetic machines whose best answer is known, and its parts one by one. No model runs here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.acceptance import Calibration, Leaning, truths
from outrider.control.auto import AutoLength
from outrider.control.choice import chosen, depth
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import ROWS, CostTable, DraftCost, assumed
from outrider.control.isotonic import isotonic
from outrider.control.ledger import SHARE, Ledger
from outrider.control.levels import Levels
from outrider.control.pace import DraftPace, Pace
from outrider.control.survey import Survey
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Commit, Drafter
from outrider.core.request import RequestView
from outrider.core.step import StepShape
from outrider.errors import InvalidRequest

NO_DRAFTS = FixedLength(0)
PASS = 0.013
"""Seconds of a pass of one row, when the machine is at its usual speed."""


@dataclass
class Params:
    verify: str = "coupled"
    grammar: None = None


@dataclass
class Running:
    """A request, as far as a controller looks at it."""

    id: int
    tokens: list[int] = field(default_factory=lambda: [0] * 100)
    prompt_length: int = 0
    speculation: Speculation = field(default_factory=Speculation)
    params: Params = field(default_factory=Params)
    forced: None = None


@dataclass
class World:
    """A target and a drafter with known costs (in passes of one row) and known acceptance.

    The drafter proposes one chain; `chance(request, step)` is the true chance of each further token and `claim` what
    the drafter says it is. `free`: it is a lookup, else every level takes it `per_level`. Measured times are noisy and
    drift; `spent` counts the true costs. The table given to the controller is the truth, unless `table` says otherwise.
    """

    rows: Callable[[int], float] = lambda rows: 1.0
    chance: Callable[[int, int], float] = lambda request, step: 0.8
    claim: Callable[[float], float] = lambda chance: chance
    per_level: float = 0.005
    free: bool = False
    noise: float = 0.08
    drift: float = 1.7
    seed: int = 0
    table: CostTable | None = None
    thinking: float = 0.0
    """What looking up takes the host, whatever is found."""

    def auto(self, nodes: int = 16, rows: int = 32) -> AutoLength:
        line = [PASS * self.rows(r) for r in ROWS]
        cost = DraftCost(0.0, PASS * self.per_level)
        return AutoLength(nodes, rows, table=self.table or CostTable(ROWS, (0, 1), (line, line), 0.0, {"world": cost}))

    def run(self, controller: Controller, steps: int, requests: int = 1, length: int = 10**9) -> Ran:
        draw = random.Random(self.seed)
        ran = Ran()
        running = [Running(i) for i in range(requests)]
        for step in range(steps):
            if step and step % length == 0:
                for old in running:
                    controller.forget(old)  # type: ignore[arg-type]
                running = [Running(s.id + requests) for s in running]
            drafter = (Finder if self.free else Drafts)(self, step, requests)
            drafts = controller.draft(drafter, running, True, [1000] * requests)  # type: ignore[arg-type]
            commits = []
            for request, draft in zip(running, drafts, strict=True):
                chance = self.chance(request.id % requests, step)
                right = 0
                while draw.random() < chance:
                    right += 1
                taken = min(right, len(draft))
                tokens = (*[7] * taken, 7 if right > taken else 8)  # the drafter says 7, the target 8 where it is wrong
                commits.append(Commit(request, draft, tuple(range(taken)), tokens))  # type: ignore[arg-type]
            rows = requests + sum(len(d) for d in drafts)
            target, drafting = self.rows(rows), self.per_level * drafter.levels + self.thinking * drafter.thoughts
            # The speed of the machine swings by `drift`, with hiccups on top.
            speed = PASS * math.exp(math.log(self.drift) * math.sin(step / 90) / 2 + draw.gauss(0, self.noise))
            hiccup = 4.0 if draw.random() < 0.01 else 1.0
            controller.observe(commits, rows, drafting * speed, target * speed * hiccup)
            ran.note(
                target + drafting, [len(c.tokens) for c in commits], [len(draft) for draft in drafts], drafter.levels
            )
        return ran

    def best_fixed(self, steps: int, requests: int = 1) -> float:
        return max(self.run(FixedLength(n), steps, requests).rate for n in (0, 1, 2, 3, 4, 6, 8, 11, 15, 16))

    def plain(self, steps: int, requests: int = 1) -> float:
        return self.run(NO_DRAFTS, steps, requests).rate


class Drafts(Drafter):
    """The world's drafter in one step, and how many levels it was asked for."""

    name = "world"

    def __init__(self, world: World, step: int, requests: int) -> None:
        self._world, self._step, self._requests = world, step, requests
        self.levels = self.thoughts = 0

    def propose(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = []
        for request, budget in zip(requests, budgets, strict=True):
            claim = self._world.claim(self._world.chance(request.id % self._requests, self._step))
            claims = [claim ** (k + 1) for k in range(min(budget.nodes, budget.depth))]
            kept = [c for c in claims if c >= budget.floor]
            self.levels = max(self.levels, min(len(claims), len(kept) + 1))  # the one below the floor was drafted, too
            drafts.append(Draft([7] * len(kept), range(-1, len(kept) - 1), kept, "world"))
        return drafts


class Finder(Drafts):
    """The same as a lookup."""

    looks_up = True

    def look_up(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
        found = self.propose(requests, budgets)
        self.levels, self.thoughts = 0, 1
        return found

    def paid(self, request: RequestView) -> str | None:
        return None


@dataclass
class Ran:
    """What a run came to, step by step."""

    costs: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    drafted: list[list[int]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)

    def note(self, cost: float, tokens: list[int], drafted: list[int], levels: int = 0) -> None:
        self.costs.append(cost)
        self.tokens.append(tokens)
        self.drafted.append(drafted)
        self.levels.append(levels)

    @property
    def rate(self) -> float:
        return self.since(0)

    def since(self, step: int) -> float:
        """Tokens per unit of cost from `step` on."""
        return sum(map(sum, self.tokens[step:])) / sum(self.costs[step:])


def flat(rows: int) -> float:
    return 1 + 0.004 * rows


def rising(slope: float) -> Callable[[int], float]:
    return lambda rows: 1 + slope * (rows - 1)


def always(chance: float) -> Callable[[int, int], float]:
    return lambda request, step: chance


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


@pytest.mark.parametrize("name", PAYS)
def test_comes_close_to_the_best_fixed_length(name: str) -> None:
    world = PAYS[name]
    assert world.run(world.auto(), 1000, length=150).rate > 0.89 * world.best_fixed(1000)


@pytest.mark.parametrize("free", [False, True])
def test_beats_every_fixed_length_where_drafts_differ(free: bool) -> None:
    """One step in five begins a copy; the drafter knows which, and says so."""
    world = World(rising(0.03), lambda request, step: 0.95 if step // 7 % 5 == 0 else 0.1, free=free)
    assert world.run(world.auto(), 2000).rate > 1.15 * world.best_fixed(2000)


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


def test_stops_again_when_acceptance_goes_away() -> None:
    world = World(rising(0.1), lambda request, step: 0.85 if step < 600 else 0.0, claim=lambda chance: 0.8)
    ran = world.run(world.auto(), 1500)
    assert ran.since(650) > 0.95


def test_a_verdict_on_one_drafter_does_not_silence_another() -> None:
    """A head that is never right beside a lookup that often is: the lookup is used as if it were alone."""

    class Both(Finder):
        def paid(self, request: RequestView) -> str | None:
            return "head"

        def propose(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
            self.levels = max((b.depth for b in budgets if b.nodes), default=0)
            return [Draft([9], [-1], [0.9], "head") if b.nodes else Draft() for b in budgets]

        def look_up(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
            return Drafts(self._world, self._step, self._requests).propose(requests, budgets)

    world = World(rising(0.2), always(0.8), per_level=0.2)
    alone = replace(world, per_level=0.0, free=True)
    controller, draw, cost, tokens = world.auto(), random.Random(0), 0.0, 0
    request = Running(0)
    for step in range(600):
        both = Both(world, step, 1)
        (draft,) = controller.draft(both, [request], True, [100])  # type: ignore[arg-type, list-item]
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
        commit = Commit(request, draft, tuple(path), tuple(found[: len(path) + 1]))  # type: ignore[arg-type]
        controller.observe([commit], 1 + len(draft), 0.2 * both.levels * PASS, spent * PASS)
        cost, tokens = cost + spent + 0.2 * both.levels, tokens + len(path) + 1
    assert tokens / cost > 0.93 * alone.run(alone.auto(), 600).rate


def test_no_request_pays_much_for_the_drafts_of_another() -> None:
    """One of four copies; rows are dear. The others' steps may take a little longer, not more."""
    world = World(rising(0.15), lambda request, step: 0.9 if request == 0 else 0.0)
    ran = world.run(world.auto(), 1000, requests=4)
    assert sum(ran.costs) / len(ran.costs) < 1.1 * world.rows(4)


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
            drafts = controller.draft(Drafts(world, 0, 3), requests, tree, room)  # type: ignore[arg-type]
            assert all(len(draft) <= most for draft, most in zip(drafts, room, strict=True))
            commits = [Commit(s, Draft(), (), (1,)) for s in requests]  # type: ignore[arg-type]
            controller.observe(commits, 3, 0.0, 0.013)


class Predicts(Finder):
    name = "prediction"

    def propose(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
        told = [bool(s.speculation.prediction) and b.nodes > 0 for s, b in zip(requests, budgets, strict=True)]
        return [Draft([5, 6], [-1, 0], [0.01, 0.001], "prediction") if t else Draft() for t in told]


def test_a_prediction_is_tried_once_whatever_is_believed() -> None:
    """In the very first step of all, after drafts have never paid, and where a batch has no rows to spare."""
    hopeless = World(rows=rising(1.0), chance=lambda request, step: 0.0)
    for steps, others in ((0, 0), (300, 40)):
        controller = hopeless.auto()
        hopeless.run(controller, steps)
        told = Running(10**6, speculation=Speculation(prediction=(1, 2, 3)))
        running = [Running(10**6 + 1 + i) for i in range(others)] + [told]
        drafts = Predicts(hopeless, 0, 1)
        first, second = (controller.draft(drafts, running, True, [1000] * len(running)) for _ in range(2))  # type: ignore[arg-type]
        assert [len(draft) for draft in first] == [0] * others + [2]
        assert not any(map(len, second)), "from then on it has to pay"
        tight = hopeless.auto().draft(drafts, [told, replace(told, id=7)], True, [1, 0])  # type: ignore[arg-type, list-item]
        assert [len(draft) for draft in tight] == [1, 0]


def test_ended_sequences_are_forgotten() -> None:
    world = World(flat)
    controller = world.auto()
    world.run(controller, 100, requests=2, length=10)
    assert controller.held == 2


def test_a_fixed_length_is_fixed() -> None:
    world = World(flat, always(0.9))
    drafts = FixedLength(5).draft(Drafts(world, 0, 2), [Running(0), Running(1)], False, [3, 9])  # type: ignore[arg-type, list-item]
    assert [len(draft) for draft in drafts] == [3, 5]


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="draft length"):
        FixedLength(-1)
    with pytest.raises(InvalidRequest, match="rows"):
        AutoLength(rows=1)


# -- the parts: costs


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
    draw, cost = random.Random(0), DraftPace(0.0, 0.01)
    for _ in range(200):
        levels = draw.randrange(1, 9)
        cost.observe(levels, (0.2 + 0.1 * levels) * math.exp(draw.gauss(0, 0.05)))
    assert cost.fixed == pytest.approx(0.2, abs=0.06)
    assert cost.per_level == pytest.approx(0.1, abs=0.02)


def test_draft_cost_of_one_depth_is_right_at_that_depth() -> None:
    cost = DraftPace(0.1, 0.1)
    for _ in range(100):
        cost.observe(4, 0.8)
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


def test_a_prediction_during_the_survey_pays_nobody() -> None:
    """What a head costs is not known yet: it is not asked, and what is assumed meanwhile does not stay."""

    class Both(Predicts):
        def paid(self, request: RequestView) -> str | None:
            return "head"

        def propose(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
            self.levels = max(b.depth for b in budgets)
            return super().propose(requests, budgets)

        def look_up(self, requests: Sequence[Running], budgets: Sequence[Budget]) -> list[Draft]:
            return Predicts(self._world, self._step, self._requests).propose(requests, budgets)

    survey = Survey(Stopwatch(lambda rows, context: 0.001), {"head": Stopwatch(lambda rows, context: 0.0003)}, 4096)
    controller, both = AutoLength(survey=survey), Both(World(), 0, 1)
    told = Running(0, speculation=Speculation(prediction=(5, 6)))
    (draft,) = controller.draft(both, [told], True, [100])  # type: ignore[arg-type, list-item]
    assert len(draft) == 2
    assert both.levels == 0
    for _ in range(99):
        controller.observe([Commit(told, Draft(), (), (1,))], 1, 0.0, 0.001)  # type: ignore[arg-type]
    assert controller.belief.known
    controller.draft(both, [Running(1)], True, [100])  # type: ignore[arg-type, list-item]
    assert controller.belief.drafting["head"] == pytest.approx(0.3, rel=0.1)


# -- acceptance


def test_drafts_are_held_against_the_tokens_that_came() -> None:
    tree = Draft([1, 2, 3, 4, 5], [-1, -1, 0, 2, 1], [0.5] * 5, "x")
    assert truths(tree, [1, 3]) == [True, False, True, None, False]
    assert truths(tree, [9]) == [False, False, False, False, False]
    assert truths(tree, [1]) == [True, False, None, None, False]


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
    assert calibration.modesty == 1
    assert calibration.acceptance(0.6) == pytest.approx(0.2, abs=0.05)


def test_modesty_is_found_out_below_what_was_seen() -> None:
    calibration = calibrated(lambda claim: 0.95, 300, least=0.5)
    assert calibration.acceptance(0.3) > 0.45
    assert calibration.modesty > 1.2


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
    assert [controller.pays(requests) for requests in (1, 2, 4, 12, 24)] == [True, True, True, False, False]


def test_depth_pays_for_what_drafting_costs() -> None:
    gains = [0.6, 0.36, 0.2, 0.1]
    assert depth(gains, 0.0, 0.25) == 2
    assert depth(gains, 0.5, 0.25) == 0
    assert depth(gains[:1], 0.0, 0.0) == 1
    assert depth([], 0.0, 0.0) == 0


# -- the ledger


def test_a_ledger_lets_nobody_lose_more_than_its_share() -> None:
    """Whoever drafts whenever it may, always for nothing, loses little more than the share of plain time."""
    ledger, spent = Ledger(), 0.0
    for _ in range(1000):
        charge = 0.3 if ledger.affords(0.3) else 0.0
        ledger.step(charge, 0, -charge)
        spent += charge
    assert spent == ledger.lost
    assert spent < SHARE * 1000 + 1.5


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


# Chains drafted on a device, all alike


Chance = Callable[[int, int], float]
"""Of each further token to be right, by request and step."""


def chains(seconds: Mapping[int, float]) -> dict[StepShape, float]:
    """Of steps that verify what they draft."""
    return {StepShape(length, length): taken for length, taken in seconds.items()}


def test_thinking_costs_little_where_nothing_pays_and_change_is_noticed() -> None:
    """A lookup that takes 4% of a step and finds nothing, then everything."""
    useless = World(rising(0.3), always(0.05), free=True, thinking=0.04)
    plain = replace(useless, thinking=0.0).plain(2000)
    assert useless.run(useless.auto(), 2000).rate > 0.98 * plain
    cheap = replace(useless, thinking=0.004)
    assert cheap.run(cheap.auto(), 2000).rate > 0.98 * plain
    changing = replace(useless, chance=lambda _, step: 0.9 if step >= 500 else 0.05)
    settled = changing.run(changing.auto(), 500 + 40)
    assert max(map(sum, settled.drafted[500:520])) > 0, "noticed within a few steps"


def on_device(controller: Controller, seconds: dict[int, float], chance: Chance, steps: int) -> Ran:
    """Steps of chains, each asked for before the one before is observed."""
    draw, ran = random.Random(1), Ran()
    requests = [Running(i) for i in range(4)]
    under_way: list[int] = []
    for step in range(steps):
        under_way.append(controller.plan(requests, chains(seconds), max(seconds)).shape.verified)
        if len(under_way) < 2:
            continue
        length = under_way.pop(0)
        commits = []
        for request in requests:
            taken = 0
            while taken < length and draw.random() < chance(request.id, step):
                taken += 1
            claims = [0.8 ** (k + 1) for k in range(length)]
            draft = Draft([7] * length, range(-1, length - 1), claims, "head")
            commits.append(Commit(request, draft, tuple(range(taken)), tuple(range(taken + 1))))  # type: ignore[arg-type]
        controller.observe(commits, len(requests) * (length + 1), 0.1 * seconds[length], 0.9 * seconds[length])
        ran.note(seconds[length], [len(c.tokens) for c in commits], [length] * len(requests))
    return ran


@pytest.mark.parametrize("level", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("chance", [0.0, 0.4, 0.7, 0.95])
def test_chains_on_a_device_are_as_long_as_measured_times_say(level: float, chance: float) -> None:
    """Within 3% of the best fixed length, plain decoding among them, whatever a level costs and brings."""
    seconds = {length: 1 + level * length for length in AutoLength.lengths}
    rates = [on_device(FixedLength(n), seconds, lambda *_: chance, 600).rate for n in seconds]
    assert on_device(AutoLength(), seconds, lambda *_: chance, 600).since(100) > 0.97 * max(rates)


def test_chains_on_a_device_come_back_when_they_pay_again() -> None:
    """Useless for 600 steps, then nearly always right: found out by rare tries, then as fast as a fixed length."""
    seconds = {length: 1 + 0.15 * length for length in AutoLength.lengths}
    changing: Chance = lambda _, step: 0.0 if step < 600 else 0.95  # noqa: E731
    ran = on_device(AutoLength(), seconds, changing, 1600)
    before = sum(map(sum, ran.tokens[100:590])) / sum(ran.costs[100:590])
    assert before > 0.97 * 4
    assert ran.since(1300) > 0.9 * on_device(FixedLength(8), seconds, lambda *_: 0.95, 1000).rate


def test_chains_on_a_device_keep_to_what_a_request_allows() -> None:
    seconds = {length: 1 + 0.01 * length for length in AutoLength.lengths}
    for controller in (AutoLength(), FixedLength(8)):
        some = [Running(0), Running(1, speculation=Speculation(max_nodes=2))]
        assert controller.plan(some, chains(seconds), 8).shape == (2, 2)
        assert controller.plan(some, chains(seconds), 1).shape == (1, 1)
