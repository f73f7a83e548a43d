"""The draft-length controller in simulated worlds whose best answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.auto import AutoLength
from outrider.control.calibration import Calibration
from outrider.control.controller import Controller, FixedLength
from outrider.control.cost import CostCurve, DraftCost
from outrider.control.isotonic import isotonic
from outrider.control.plan import share_rows, worthwhile_depth
from outrider.control.profile import Profile
from outrider.errors import InvalidRequest
from outrider.types import Budget, Commit, Draft, Speculation

NO_DRAFTS = FixedLength(0)


@dataclass
class Running:
    """A sequence, as far as a controller looks at it."""

    id: int
    tokens: list[int] = field(default_factory=list)
    prompt_length: int = 0
    speculation: Speculation = field(default_factory=Speculation)


@dataclass
class World:
    """A target and a drafter with known costs (in passes of one row) and known acceptance.

    The drafter proposes one chain; `chance(sequence, step)` is the true chance of each further token and
    `claim` what the drafter says it is. Measured times are noisy and drift; `spent` counts the true costs.
    """

    rows: Callable[[int], float] = lambda rows: 1.0
    chance: Callable[[int, int], float] = lambda sequence, step: 0.8
    claim: Callable[[float], float] = lambda chance: chance
    per_level: float = 0.005
    noise: float = 0.08
    drift: float = 1.7
    seed: int = 0

    def run(self, controller: Controller, steps: int, sequences: int = 1, length: int = 10**9) -> Ran:
        draw = random.Random(self.seed)
        ran = Ran()
        running = [Running(i) for i in range(sequences)]
        for step in range(steps):
            if step and step % length == 0:
                for old in running:
                    controller.forget(old)
                running = [Running(s.id + sequences) for s in running]
            budgets = controller.budgets(running, True, [1000] * sequences)
            drafts = [self.draft(b, self.chance(s.id % sequences, step)) for s, b in zip(running, budgets, strict=True)]
            commits = []
            for sequence, draft in zip(running, drafts, strict=True):
                chance = self.chance(sequence.id % sequences, step)
                taken = 0
                while taken < len(draft) and draw.random() < chance:
                    taken += 1
                commits.append(Commit(sequence, draft, tuple(range(taken)), tuple(range(taken + 1))))  # type: ignore[arg-type]
            rows = sequences + sum(len(d) for d in drafts)
            target, drafting = self.rows(rows), self.per_level * max(len(d) for d in drafts)
            # The speed of the machine swings by `drift`, with hiccups on top.
            speed = 0.013 * math.exp(math.log(self.drift) * math.sin(step / 90) / 2 + draw.gauss(0, self.noise))
            hiccup = 4.0 if draw.random() < 0.01 else 1.0
            controller.observe(commits, rows, drafting * speed, target * speed * hiccup)
            ran.note(target + drafting, [len(c.tokens) for c in commits], budgets)
        return ran

    def draft(self, budget: Budget, chance: float) -> Draft:
        claims = [self.claim(chance) ** (k + 1) for k in range(min(budget.nodes, budget.depth))]
        kept = [c for c in claims if c >= budget.floor]
        return Draft([7] * len(kept), range(-1, len(kept) - 1), kept, "world")

    def best_fixed(self, steps: int, sequences: int = 1) -> float:
        return max(self.run(FixedLength(n), steps, sequences).rate for n in (*range(9), 10, 12, 15, 16))

    def plain(self, steps: int, sequences: int = 1) -> float:
        return self.run(NO_DRAFTS, steps, sequences).rate


@dataclass
class Ran:
    """What a run came to, step by step."""

    costs: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    budgets: list[list[Budget]] = field(default_factory=list)

    def note(self, cost: float, tokens: list[int], budgets: list[Budget]) -> None:
        self.costs.append(cost)
        self.tokens.append(tokens)
        self.budgets.append(budgets)

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
    return lambda sequence, step: chance


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
}


@pytest.mark.parametrize("name", PAYS)
def test_comes_close_to_the_best_fixed_length(name: str) -> None:
    world = PAYS[name]
    assert world.run(AutoLength(), 2000, length=150).rate > 0.92 * world.best_fixed(2000)


def test_beats_every_fixed_length_where_drafts_differ() -> None:
    """One step in five begins a copy; the drafter knows which, and says so."""
    world = World(rising(0.03), lambda sequence, step: 0.95 if step // 7 % 5 == 0 else 0.1)
    assert world.run(AutoLength(), 2000).rate > 1.15 * world.best_fixed(2000)


def test_stops_short_of_the_row_that_doubles_the_cost() -> None:
    ran = PAYS["the 17th row doubles the cost"].run(AutoLength(), 600)
    assert [b.nodes for (b,) in ran.budgets[300:]].count(15) > 290


# -- ... and (almost) nothing where nothing pays

DOES_NOT_PAY = {
    "never right": World(flat, always(0.0), claim=lambda chance: 0.7, per_level=0.02),
    "seldom right, dear rows": World(rising(0.3), always(0.2)),
    "exaggerates, dear rows": World(rising(0.1), always(0.05), claim=lambda chance: 0.9),
    "excellent, but every row costs a pass": World(rising(1.0), always(0.9)),
    "a slow model, seldom right": World(flat, always(0.1), per_level=0.3),
    "a very slow model": World(flat, always(0.5), per_level=0.6),
}


@pytest.mark.parametrize("name", DOES_NOT_PAY)
@pytest.mark.parametrize("seed", [1, 2])
def test_is_never_slower_than_plain(name: str, seed: int) -> None:
    world = replace(DOES_NOT_PAY[name], seed=seed)
    assert world.run(AutoLength(), 2000, length=200).rate > 0.97 * world.plain(2000)


def test_probes_are_rare_but_go_on() -> None:
    ran = DOES_NOT_PAY["a slow model, seldom right"].run(AutoLength(), 4000)
    drafted = [step for step, (budget,) in enumerate(ran.budgets) if budget.nodes and step > 500]
    assert 5 < len(drafted) < 0.04 * 3500
    assert max(b - a for a, b in pairwise(drafted)) < 600


@pytest.mark.parametrize("per_level", [0.005, 0.3])
def test_recovers_when_acceptance_comes_back(per_level: float) -> None:
    world = World(
        rising(0.1), lambda sequence, step: 0.0 if step < 1000 else 0.85, claim=lambda chance: 0.5, per_level=per_level
    )
    ran = world.run(AutoLength(), 2500)
    later = World(rising(0.1), always(0.85), per_level=per_level)
    assert ran.since(1600) > 0.9 * later.best_fixed(1000)


def test_stops_again_when_acceptance_goes_away() -> None:
    world = World(rising(0.1), lambda sequence, step: 0.85 if step < 600 else 0.0, claim=lambda chance: 0.8)
    ran = world.run(AutoLength(), 1500)
    assert ran.since(650) > 0.95


def test_bad_drafts_do_not_raise_the_price_of_a_token() -> None:
    """They would justify more of themselves."""
    controller, sequence = AutoLength(), Running(0)
    for _ in range(100):
        controller.budgets([sequence], True, [100])  # type: ignore[list-item]
        commit = Commit(sequence, Draft([1], [-1], [0.9], "x"), (), (2,))  # type: ignore[arg-type]
        controller.observe([commit], 2, 0.05, 0.01)
    assert controller._token_value(price=1.0) == 1.0


# -- batches


def test_a_batch_shares_the_rows() -> None:
    world = World(flat, lambda sequence, step: 0.8)
    ran = world.run(AutoLength(nodes=16, rows=32), 300, sequences=6)
    totals = [sum(b.nodes for b in budgets) for budgets in ran.budgets]
    assert max(totals) <= 32 - 6
    assert sum(total >= 15 for total in totals[100:]) > 180  # plain passes apart, the rows are used
    assert ran.rate > 0.95 * max(world.run(FixedLength(n), 300, 6).rate for n in range(5))


def test_rows_go_to_the_sequences_that_use_them() -> None:
    world = World(flat, lambda sequence, step: 0.9 if sequence < 2 else 0.0, claim=lambda chance: 0.5)
    ran = world.run(AutoLength(nodes=16, rows=16), 400, sequences=4)
    good = sum(b.nodes for budgets in ran.budgets[200:] for b in budgets[:2])
    bad = sum(b.nodes for budgets in ran.budgets[200:] for b in budgets[2:])
    assert good > 5 * bad


def test_a_batch_as_large_as_the_rows_decodes_plainly() -> None:
    controller = AutoLength(rows=4)
    for _ in range(3):
        budgets = controller.budgets([Running(i) for i in range(5)], True, [100] * 5)
        assert all(b.nodes == 0 for b in budgets)
        commits = [Commit(Running(i), Draft(), (), (1,)) for i in range(5)]  # type: ignore[arg-type]
        controller.observe(commits, 5, 0.0, 0.01)


@pytest.mark.parametrize("make", [lambda: AutoLength(nodes=8), lambda: FixedLength(6)], ids=["auto", "fixed"])
@pytest.mark.parametrize("tree", [True, False])
def test_the_room_is_kept(make: Callable[[], Controller], tree: bool) -> None:
    controller = make()
    world = World(flat, always(0.9))
    world.run(controller, 60, sequences=3)
    for room in ([0, 1, 5], [3, 0, 100]):
        for _ in range(40):
            sequences = [Running(100 + i) for i in range(3)]
            budgets = controller.budgets(sequences, tree, room)  # type: ignore[arg-type]
            assert all(b.nodes <= most and b.depth <= most for b, most in zip(budgets, room, strict=True))
            assert all(b.tree == tree for b in budgets)
            commits = [Commit(s, Draft(), (), (1,)) for s in sequences]  # type: ignore[arg-type]
            controller.observe(commits, 3, 0.0, 0.013)


def test_a_prediction_is_tried_once_whatever_is_believed() -> None:
    """In the very first step of all, after drafts have never paid, and where a batch has no rows to spare."""
    hopeless = World(rows=rising(1.0), chance=lambda sequence, step: 0.0)
    for steps, others in ((0, 0), (300, 40)):
        controller = AutoLength()
        hopeless.run(controller, steps)
        told = Running(10**6, speculation=Speculation(prediction=(1, 2, 3)))
        running = [Running(10**6 + 1 + i) for i in range(others)] + [told]
        first, second = (controller.budgets(running, True, [1000] * len(running)) for _ in range(2))
        assert [budget.nodes > 0 for budget in first] == [False] * others + [True]
        assert first[-1].floor == 0, "nothing of it is held back"
        assert not any(budget.nodes for budget in second), "from then on it has to pay"
        tight = AutoLength().budgets([told, replace(told, id=7)], True, [1, 0])
        assert [budget.nodes for budget in tight] == [1, 0]


def test_ended_sequences_are_forgotten() -> None:
    controller = AutoLength()
    World(flat).run(controller, 100, sequences=2, length=10)
    assert len(controller._states) == 2


def test_a_fixed_length_is_fixed() -> None:
    assert FixedLength(5).budgets([Running(0), Running(1)], False, [3, 9]) == [  # type: ignore[list-item]
        Budget(3, 3, 0.0, False),
        Budget(5, 5, 0.0, False),
    ]


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="draft length"):
        FixedLength(-1)
    with pytest.raises(InvalidRequest, match="rows"):
        AutoLength(rows=1)


# -- the parts


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


def measured(cost: Callable[[int], float], sizes: Sequence[int], passes: int, seed: int = 0) -> CostCurve:
    """A curve after noisy passes of random sizes on a machine that drifts and stumbles."""
    draw, curve = random.Random(seed), CostCurve(32)
    for i in range(passes):
        rows = draw.choice(sizes)
        speed = 0.01 * math.exp(0.3 * math.sin(i / 40) + draw.gauss(0, 0.05))
        curve.observe(rows, cost(rows) * speed * (5 if draw.random() < 0.02 else 1))
    return curve


def test_the_curve_is_learned_through_drift_noise_and_hiccups() -> None:
    costs = measured(rising(0.1), [1, 4, 8, 16, 32], 400).costs()
    for rows in (4, 8, 16, 32):
        assert costs[rows] / costs[1] == pytest.approx(rising(0.1)(rows), rel=0.06)
    assert costs[12] / costs[1] == pytest.approx(2.1, rel=0.08)  # never seen: between its neighbours
    assert costs == sorted(costs)


def test_a_slower_machine_is_not_a_dearer_row() -> None:
    curve = CostCurve(16)
    for rows in (1, 16) * 10:
        curve.observe(rows, 0.01)
    before = curve.costs()[16] / curve.costs()[1]
    for i in range(100):
        curve.observe(16, 0.01 * (1 + i / 50))  # three times slower in the end, wide passes only
    assert curve.costs()[16] / curve.costs()[1] == pytest.approx(before, rel=0.02)
    assert curve.level == pytest.approx(0.03, rel=0.1)


def test_one_unlucky_pass_is_forgotten() -> None:
    curve = CostCurve(16)
    for _ in range(8):
        curve.observe(1, 0.01)
    curve.observe(8, 0.05)
    assert curve.costs()[8] / curve.costs()[1] == pytest.approx(5, rel=0.01)
    for _ in range(200):
        curve.observe(1, 0.01)
    assert curve.costs()[8] / curve.costs()[1] < 1.1


def test_draft_cost_separates_what_is_fixed_from_what_a_level_costs() -> None:
    draw, cost = random.Random(0), DraftCost()
    for _ in range(200):
        levels = draw.randrange(1, 9)
        cost.observe(levels, (0.2 + 0.1 * levels) * math.exp(draw.gauss(0, 0.05)))
    assert cost.fixed == pytest.approx(0.2, abs=0.05)
    assert cost.per_level == pytest.approx(0.1, abs=0.015)


def test_draft_cost_of_one_depth_is_charged_to_the_levels() -> None:
    cost = DraftCost()
    for _ in range(100):
        cost.observe(4, 0.8)
    assert cost.fixed < 0.1
    assert cost.fixed + 4 * cost.per_level == pytest.approx(0.8, rel=0.02)


def calibrated(truth: Callable[[float], float], drafts: int, least: float = 0.0) -> Calibration:
    draw, calibration = random.Random(0), Calibration()
    for _ in range(drafts):
        claim = draw.uniform(least, 1)
        accepted = draw.random() < truth(claim)
        calibration.observe(Draft([1], [-1], [claim], "x"), (0,) if accepted else ())
        calibration.tick()
    return calibration


def test_honest_claims_are_believed_before_and_after_evidence() -> None:
    for calibration in (Calibration(), calibrated(lambda claim: claim, 3000)):
        for wanted in (0.05, 0.2, 0.5, 0.8):
            assert calibration.claim_for(wanted) == pytest.approx(wanted, abs=0.08)


def test_exaggeration_raises_the_floor() -> None:
    calibration = calibrated(lambda claim: claim / 3, 3000)
    assert calibration.claim_for(0.2) == pytest.approx(0.6, abs=0.1)
    assert calibration.claim_for(0.6) > 0.9


def test_modesty_is_found_out_below_what_was_seen() -> None:
    calibration = calibrated(lambda claim: 0.95, 300, least=0.5)
    assert calibration.claim_for(0.5) < 0.35


def test_what_is_no_longer_seen_fades_back_to_the_claim() -> None:
    calibration = calibrated(lambda claim: 0.0, 500, least=0.5)
    assert calibration.claim_for(0.5) > 1
    for _ in range(2000):
        calibration.tick()
    assert calibration.claim_for(0.5) < 0.75


def test_a_profile_follows_what_happens_and_extrapolates_the_rest() -> None:
    profile = Profile.hopeful(6)
    for i in range(400):
        profile.observe(2, 2, {0, 1} if i % 4 == 0 else {0} if i % 2 == 0 else (), 0.02)
    accepted, proposed = profile.expected(4)
    assert accepted == pytest.approx([0.5, 0.25, 0.125, 0.0625], rel=0.15)
    assert proposed == pytest.approx([1, 1, 1, 1], abs=0.01)


def known(accepted: list[float], proposed: float = 1.0) -> Profile:
    return Profile(accepted, [proposed] * len(accepted), len(accepted))


def test_rows_are_shared_by_what_they_bring() -> None:
    good, bad = known([0.9, 0.8, 0.7, 0.6]), known([0.3, 0.1, 0.03, 0.01])
    linear = [1 + 0.2 * r for r in range(40)]
    assert share_rows([good, bad], [4, 4], 30, 1.0, linear)[0] == [4, 1]
    assert share_rows([good, bad], [4, 4], 3, 1.0, linear)[0] == [3, 0]
    assert share_rows([good, bad], [2, 4], 30, 1.0, linear)[0] == [2, 1]
    assert share_rows([good, bad], [4, 4], 30, 0.2, linear)[0] == [0, 0]
    assert share_rows([good, bad], [4, 4], 30, 1.0, linear)[1] == pytest.approx(0.2)


def test_a_step_in_the_cost_is_crossed_only_for_enough() -> None:
    stairs = [1.0 if r <= 4 else 2.0 for r in range(40)]
    assert share_rows([known([0.3] * 6)], [6], 30, 1.0, stairs)[0] == [3]
    assert share_rows([known([0.3] * 9)], [9], 30, 1.0, stairs)[0] == [9]


def test_depth_pays_for_levels_drafted_in_vain() -> None:
    levels = known([0.6, 0.36, 0.2, 0.1])
    assert worthwhile_depth(levels, 4, 1.0, 0.0, 0.25, 0.0) == 2
    assert worthwhile_depth(levels, 4, 1.0, 0.15, 0.25, 0.0) == 1
    assert worthwhile_depth(levels, 4, 1.0, 0.0, 0.25, 0.5) == 0
    assert worthwhile_depth(levels, 1, 1.0, 0.0, 0.0, 0.0) == 1


# Chains drafted on a device, all alike


Chance = Callable[[int, int], float]
"""Of each further token to be right, by sequence and step."""


def on_device(controller: Controller, seconds: dict[int, float], chance: Chance, steps: int) -> Ran:
    """Steps of chains, each asked for before the one before is observed."""
    draw, ran = random.Random(1), Ran()
    sequences = [Running(i) for i in range(4)]
    under_way: list[int] = []
    for step in range(steps):
        under_way.append(controller.length(sequences, seconds, max(seconds)))
        if len(under_way) < 2:
            continue
        length = under_way.pop(0)
        commits = []
        for sequence in sequences:
            taken = 0
            while taken < length and draw.random() < chance(sequence.id, step):
                taken += 1
            claims = [0.8 ** (k + 1) for k in range(length)]
            draft = Draft([7] * length, range(-1, length - 1), claims, "head")
            commits.append(Commit(sequence, draft, tuple(range(taken)), tuple(range(taken + 1))))  # type: ignore[arg-type]
        controller.observe(commits, len(sequences) * (length + 1), 0.1 * seconds[length], 0.9 * seconds[length])
        ran.note(seconds[length], [len(c.tokens) for c in commits], [Budget(length, length)] * len(sequences))
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
        assert controller.length(some, seconds, 8) == 2
        assert controller.length(some, seconds, 1) == 1
