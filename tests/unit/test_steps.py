"""What steps on a device are taken to cost, and what `auto` makes of it; on machines made up here."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from toy import request, resolved

from outrider.control.chains import Chains, ChainState, time_to_look_up
from outrider.control.ledger import Ledger
from outrider.control.silence import Silence
from outrider.control.steps import StepCosts
from outrider.core.draft import Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import StepShape, step_width, step_widths
from outrider.engine.device_clock import DeviceClock

PLAIN, ONE, TWO, FOUR = (StepShape(n, n) for n in (0, 1, 2, 4))
MEASURED = {PLAIN: 1.0, ONE: 1.2, TWO: 1.4, FOUR: 1.8}


def test_a_machine_that_slows_down_slows_all_lengths() -> None:
    costs = StepCosts(MEASURED)
    for _ in range(100):
        costs.observe(TWO, 1.7 * MEASURED[TWO])
    after = costs.seconds()
    assert after[TWO] == pytest.approx(1.7 * MEASURED[TWO], rel=0.02)
    assert after[PLAIN] > 1.35, "what was not run is taken to be slower too"


def test_one_length_may_cost_more_than_was_measured() -> None:
    """Alternating: the plain ones are as measured, so it is the other that was wrong."""
    costs = StepCosts(MEASURED)
    for _ in range(200):
        costs.observe(PLAIN, 1.0)
        costs.observe(FOUR, 2.7)
    after = costs.seconds()
    assert after[PLAIN] == pytest.approx(1.0, rel=0.05)
    assert after[FOUR] == pytest.approx(2.7, rel=0.05)


def test_disturbed_steps_count_for_little() -> None:
    costs = StepCosts(MEASURED)
    costs.observe(PLAIN, 50.0)
    costs.observe_host(PLAIN, 0.5)
    costs.observe_host(PLAIN, 50.0)
    assert costs.seconds()[PLAIN] < 1.2


def test_where_the_host_is_slower_its_time_counts() -> None:
    costs = StepCosts(MEASURED)
    for _ in range(50):
        costs.observe_host(PLAIN, 2.0)
        costs.observe_host(ONE, 3.0)
    after = costs.seconds()
    assert [after[PLAIN], after[ONE]] == pytest.approx([2.0, 3.0])
    assert after[FOUR] == pytest.approx(3.0), "of what was never run, the most that is known"


class Machine:
    """Of a device only what its steps take."""

    def seconds(self, lanes: int) -> dict[StepShape, float]:
        return MEASURED


def test_a_device_idles_where_newcomers_take_the_host_longer_than_a_step() -> None:
    machine: Any = Machine()
    clock = DeviceClock(machine, list(MEASURED))
    assert not clock.idles(4, PLAIN), "nobody came yet"
    for shape, newcomers, idles in ((PLAIN, 0.5, False), (PLAIN, 1.5, True), (FOUR, 1.5, False), (FOUR, 2.5, True)):
        for _ in range(20):
            clock.waiting()  # without newcomers: that says nothing of them
            clock.elsewhere = newcomers
            clock.waiting()
        assert clock.idles(4, shape) == idles


def test_a_device_idles_sooner_where_the_host_is_busy_with_its_steps() -> None:
    costs = StepCosts(MEASURED)
    assert costs.spare(FOUR) == pytest.approx(1.8)
    costs.observe_host(FOUR, 1.5)
    assert costs.spare(FOUR) == pytest.approx(0.3)


def drafted(right: float, host: dict[int, float], steps: int = 600) -> tuple[float, float]:
    """Sequences whose first drafts are right so often, by a host that needs so long: tokens a second against plain
    decoding, and how much was drafted in the end."""
    rng, costs, chains = Random(1), StepCosts({PLAIN: 1.0, ONE: 1.2}), Chains(4, Silence())
    states = [chains.newcomer() for _ in range(8)]
    ledgers = [Ledger() for _ in states]
    tokens, seconds, late = 0, 0.0, 0
    for step in range(steps):
        shape = chains.plan(states, ledgers, costs.seconds(), 1, {}).shape
        length = shape.verified
        costs.observe(shape, 1.0 + 0.2 * length)
        costs.observe_host(shape, host[length])
        verified = [outcome(length, rng.random() < right) for _ in states]
        observe(chains, states, ledgers, verified)
        tokens += sum(len(each.tokens) for each in verified)
        seconds += max(1.0 + 0.2 * length, host[length])
        late += length if step >= steps // 2 else 0
    plain = max(1.0, host[0])
    return tokens / len(states) / seconds * plain, late / (steps - steps // 2)


def outcome(length: int, right: bool) -> VerifiedDraft:
    draft = Draft((5,), (-1,), (0.8,), "head") if length else Draft()
    path = (0,) if length and right else ()
    return VerifiedDraft(_REQUEST, draft, path, (5,) * (len(path) + 1))


def observe(chains: Chains, states: list[ChainState], ledgers: list[Ledger], verified: list[VerifiedDraft]) -> None:
    if issued := chains.over():
        chains.observe(issued, states, ledgers, verified)


_REQUEST = request([1], resolved())
"""Nobody looks at it."""


@pytest.mark.parametrize(("right", "host", "drafts"), [
    (0.6, {0: 0.1, 1: 0.1}, True),  # the device alone: 60% more tokens for 20% more time
    (0.6, {0: 1.5, 1: 1.6}, True),  # a slow host, which hardly minds drafts
    (0.6, {0: 1.5, 1: 2.9}, False),  # one that does: 60% more tokens for 93% more time
    (0.05, {0: 0.1, 1: 0.1}, False),
])  # fmt: skip
def test_drafts_where_they_pay_for_the_slower_of_the_two(right: float, host: dict[int, float], drafts: bool) -> None:
    speed, late = drafted(right, host)
    assert speed > (1.2 if drafts else 0.97)
    assert (late > 0.9) if drafts else (late < 0.1)


def test_what_plain_steps_take_is_looked_at_now_and_then() -> None:
    costs, chains = StepCosts(MEASURED), Chains(4, Silence())
    states, ledgers = [chains.newcomer()], [Ledger()]
    lengths = []
    for _ in range(300):
        lengths.append(chains.plan(states, ledgers, costs.seconds(), 4, {}).shape.verified)
        hits = (5,) * lengths[-1]
        draft = Draft(hits, range(-1, len(hits) - 1), (0.9,) * len(hits), "head" if hits else "none")
        observe(chains, states, ledgers, [VerifiedDraft(_REQUEST, draft, tuple(range(len(hits))), (*hits, 5))])
    plain = [step for step, length in zip(count(), lengths) if not length]
    assert 2 <= len(plain) <= 6
    assert plain[0] < 32


def test_many_requests_rest_where_nothing_pays_and_wake_up_when_few_are_left() -> None:
    """Thinking about 64 costs: not in every step of a silence. What changes with their number is seen at once."""
    chains, ledgers = Chains(4, Silence()), [Ledger() for _ in range(64)]
    states = [chains.newcomer() for _ in range(64)]
    dear, cheap, rested, tried = {PLAIN: 1.0, ONE: 3.0}, {PLAIN: 1.0, ONE: 1.01}, 0, 0
    for _ in range(300):
        rests = chains.again(64, 1) is not None
        length = 0 if rests else chains.plan(states, ledgers, dear, 1, {}).shape.verified
        rested, tried = rested + rests, tried + length
        observe(chains, states, ledgers, [outcome(length, True)] * 64)
    assert rested > 200
    assert tried < 8
    assert not chains.reads()
    assert not chains.under_way, "what rested was observed, too"
    few = states[:8]
    assert chains.again(8, 1) is None
    assert chains.plan(few, ledgers[:8], cheap, 1, {}).shape == ONE
    assert chains.reads()
    assert all(ledger.left > 1.0 for ledger in ledgers[:8]), "rest earns as plain steps do"


def test_a_plan_that_pays_stands_for_a_few_steps_of_many_requests() -> None:
    """Not where somebody may be drafted less for, nor for few, to whom thinking costs little."""
    pays = {PLAIN: 1.0, ONE: 1.01}
    for many, more in ((64, 3), (32, 1), (16, 0)):
        chains, ledgers = Chains(4, Silence()), [Ledger() for _ in range(many)]
        states = [chains.newcomer() for _ in range(many)]
        assert chains.plan(states, ledgers, pays, 1, {}).shape == ONE
        if more:
            assert chains.again(many, 0) is None, "nobody may be drafted for"
            assert chains.again(many // 2, 1) is None, "others"
        assert [chains.again(many, 1) for _ in range(more + 1)] == [ONE] * more + [None]
        while chains.under_way:
            observe(chains, states, ledgers, [outcome(1, True)] * many)
        earned = Ledger().left + 0.9 * (more + 1)
        assert all(ledger.left > earned for ledger in ledgers), "steps that were not thought about are credited, too"


def churned(read: float, unread: float, stretch: float, steps: int = 1200) -> tuple[float, float]:
    """64 requests that last 40 steps each and make room for newcomers, whose drafts are right so often where their
    prompts were read and where not: tokens a plain step's time, and the share of prompts read in the second half."""
    rng, chains, costs = Random(3), Chains(4, Silence()), {PLAIN: 1.0, ONE: 1.0 + stretch}
    states: list[ChainState] = []
    ledgers: list[Ledger] = []
    born: list[int] = []
    tokens = seconds = 0.0
    asked = [0, 0]
    for step in range(steps):
        going = [i for i in range(len(states)) if step < born[i] + 40]
        states, ledgers, born = [states[i] for i in going], [ledgers[i] for i in going], [born[i] for i in going]
        if len(states) < 64:
            reads = chains.reads()
            asked = [asked[0] + 1, asked[1] + reads] if step > steps // 2 else asked
            for _ in range(64 - len(states)):
                states.append(chains.newcomer())
                ledgers.append(Ledger())
                born.append(step if step else step - rng.randrange(40))
        shape = chains.again(64, 1) or chains.plan(states, ledgers, costs, 1, {}).shape
        length = shape.verified
        verified = [outcome(length, rng.random() < (read if state.read else unread)) for state in states]
        observe(chains, states, ledgers, verified)
        tokens += sum(len(each.tokens) for each in verified) / 64
        seconds += 1.0 + stretch * length
    return tokens / seconds, asked[1] / asked[0]


def test_drafts_for_prompts_nobody_read_are_no_measure_of_drafts() -> None:
    """Where reading pays it goes on: a few that could not be drafted for do not make it stop for good."""
    speed, share = churned(read=0.65, unread=0.3, stretch=0.3)
    assert speed > 1.2
    assert share > 0.95
    speed, share = churned(read=0.15, unread=0.1, stretch=0.5)
    assert speed > 0.97
    assert share < 0.15, "and where it does not it is tried now and then"


def test_a_plain_request_says_nothing_of_reading() -> None:
    """Of two on one engine, one that is not to be drafted for must not leave the other's prompt unread."""
    chains = Chains(4, Silence(), (0.8,))
    states, ledgers = [chains.newcomer()], [Ledger()]
    for _ in range(200):
        chains.plan(states, ledgers, {PLAIN: 1.0, ONE: 1.1}, 0, {})
        observe(chains, states, ledgers, [outcome(0, False)])
    assert chains.reads()


def test_bad_luck_of_one_among_many_stops_nobody() -> None:
    speed, _ = churned(read=0.65, unread=0.3, stretch=0.35)
    assert speed > 1.15


def test_the_host_is_timed_by_its_undisturbed_steps() -> None:
    costs = StepCosts(MEASURED)
    for step in range(200):
        costs.observe_host(PLAIN, 9.0 if step % 3 == 0 else 2.0)
    assert costs.seconds()[PLAIN] < 2.5


def test_lookups_are_left_where_the_host_has_no_time_for_them() -> None:
    assert time_to_look_up(1, 0.7e-3), "one request of a small model"
    assert not time_to_look_up(16, 1e-3), "many of it"
    assert time_to_look_up(8, 4.5e-3), "some of a large one"


def test_what_a_head_ships_with_is_believed_at_first() -> None:
    """One that is nearly always right is asked for long chains from its first draft on, one that never is for none."""
    costs = {StepShape(n, n): 1.0 + 0.1 * n for n in (0, 1, 2, 4, 8)}

    def first(acceptance: tuple[float, ...]) -> int:
        chains = Chains(8, Silence(), acceptance)
        return chains.plan([chains.newcomer()], [Ledger()], costs, 8, {}).shape.verified

    assert first((0.02,)) == 0
    assert 0 < first(()) < 8, "nothing is known"
    assert first((0.98,) * 8) == 8


def test_what_a_step_takes_is_what_the_host_needs_for_it_too() -> None:
    """Of that shape alone, as far as it was seen."""
    machine: Any = Machine()
    clock = DeviceClock(machine, list(MEASURED))
    assert clock.takes(4, PLAIN) == MEASURED[PLAIN]
    costs = clock._costs_of(4)
    assert costs is not None
    for _ in range(50):
        costs.observe_host(PLAIN, 2.5)
    assert clock.takes(4, PLAIN) == pytest.approx(2.5)
    assert clock.takes(4, FOUR) == MEASURED[FOUR]
    assert clock.takes(4, StepShape(0, 3)) == 0.0, "it was never measured"
    unmeasured: Any = type("Unmeasured", (), {"seconds": lambda self, lanes: {}})()
    assert DeviceClock(unmeasured, list(MEASURED)).takes(4, PLAIN) == 0.0


def test_steps_are_as_wide_as_needed_and_of_few_widths() -> None:
    assert step_widths(256) == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert [step_width(requests) for requests in (1, 3, 96, 128, 129, 192, 193)] == [1, 4, 128, 128, 192, 192, 256]
    assert step_widths(150)[-1] == step_width(150) == 192, "room for all that may run"
