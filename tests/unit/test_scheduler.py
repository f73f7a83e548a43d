"""The scheduler alone, without a model: who runs, in what order, and that nobody is lost, starved or over budget."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.scheduler import CALM, LOOKAHEAD, SPARED, Scheduler, SchedulerOutput
from outrider.errors import InvalidRequest


@dataclass(eq=False)
class Job:
    """A request of which only the lengths matter."""

    name: int
    tokens: list[int]
    remaining: int
    num_uncomputed_tokens: int = 0
    principal: str = ""
    priority: int = 0
    prefix_donor: Job | None = None
    runs: int = 0
    """Times it was admitted."""
    sent_back: int = 0
    history: list[int] = field(default_factory=list)
    """Rows given in each step."""


def job(name: int, prompt: int, generate: int = 10, principal: str = "", priority: int = 0) -> Job:
    return Job(name, [0] * prompt, generate, principal=principal, priority=priority)


def step(scheduler: Scheduler[Job], gain: int = 1) -> SchedulerOutput[Job]:
    """What an engine does in one step; returns the plan."""
    for each in scheduler.preempt():
        each.sent_back += 1
    for each in scheduler.admit():
        each.num_uncomputed_tokens = len(each.tokens) - 1
        each.runs += 1
    plan = scheduler.schedule()
    for each, rows in plan.prefill:
        assert 0 < rows <= each.num_uncomputed_tokens
        each.num_uncomputed_tokens -= rows
        each.history.append(rows)
    for each in plan.decode:
        assert not each.num_uncomputed_tokens
        taken = min(gain, each.remaining)
        each.tokens += [0] * taken
        each.remaining -= taken
        if not each.remaining:
            scheduler.remove(each)
    return plan


@pytest.mark.parametrize(("decoding", "prompts", "length", "rows"), [
    (0, 1, 30_000, 8192), (16, 1, 30_000, 512), (1, 1, 30_000, 512), (16, 3, 30_000, 1536), (16, 48, 256, 2048),
    (60, 1, 257, 256),
])  # fmt: skip
def test_a_large_chunk_is_for_those_whom_nobody_waits_for(decoding: int, prompts: int, length: int, rows: int) -> None:
    """Beside decoding a prompt gets a part that is not too small, whoever decodes, and all together a quarter."""
    scheduler: Scheduler[Job] = Scheduler(64, 200_000, 8192)
    for number in range(decoding):
        scheduler.add(job(number, 2, generate=100))
    for _ in range(2):  # the prompts, and a token more
        step(scheduler)
    for number in range(prompts):
        scheduler.add(job(decoding + number, length))
    assert sum(count for _, count in step(scheduler).prefill) == rows


def test_those_that_came_together_are_read_before_the_first_goes_on() -> None:
    """64 prompts of 256 in two passes, longer ones in as large parts as there are yet to read. Whoever decoded before
    is not made to wait so."""
    for before, length, rows in ((0, 257, [8192, 8192]), (1, 257, [2048, 2048]), (0, 1025, [8192, 7168, 6272])):
        scheduler: Scheduler[Job] = Scheduler(80, 200_000, 8192)
        for number in range(before):
            scheduler.add(job(number, 2, generate=100))
        for _ in range(2):
            step(scheduler)
        for number in range(64):
            scheduler.add(job(before + number, length, generate=100))
        assert [sum(count for _, count in step(scheduler).prefill) for _ in rows] == rows


def test_a_burst_ends_under_steady_arrivals() -> None:
    """Who comes later than the first pass is none of it: from the first of those that decodes parts are as usual."""
    scheduler: Scheduler[Job] = Scheduler(80, 2_000_000, 8192)
    numbers, rows = count(), []
    for _ in range(8):
        scheduler.add(job(next(numbers), 257, generate=1000))
    for _ in range(40):
        rows.append(sum(given for _, given in step(scheduler).prefill))
        for _ in range(4):
            scheduler.add(job(next(numbers), 2001, generate=1000))
    assert rows[1] > 2048
    assert rows[-20:] == [2048] * 20


def test_who_comes_while_others_are_read_is_one_of_them() -> None:
    """But not who comes once all decode."""
    for steps, rows in ((1, 8192 * 33 // 65), (3, 512)):
        scheduler: Scheduler[Job] = Scheduler(80, 200_000, 8192)
        for number in range(64):
            scheduler.add(job(number, 257, generate=100))
        for _ in range(steps):
            step(scheduler)
        scheduler.add(job(64, 2000))
        assert sum(count for _, count in step(scheduler).prefill) == rows


def test_prompts_keep_up_with_steps_that_bring_several_tokens() -> None:
    """As many rows of prompts for a token as where steps bring one; never more than a chunk."""
    for tokens, rows in ((1, 32), (2, 64), (9, 128)):
        scheduler: Scheduler[Job] = Scheduler(8, 10_000, 128)
        for number in range(7):
            scheduler.add(job(number, 2, generate=100))
        step(scheduler)
        for _ in range(200):
            scheduler.gained(7, 7 * tokens)
        scheduler.add(job(7, 1000))
        plan = step(scheduler)
        assert [count for _, count in plan.prefill] == [pytest.approx(rows, abs=1)]


def test_needs_no_torch() -> None:
    code = "import sys, outrider.engine.scheduler, outrider.kvcache.prefix_cache; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_first_come_first_served() -> None:
    scheduler: Scheduler[Job] = Scheduler(2, 1000, 64)
    jobs = [job(i, 5, 3) for i in range(5)]
    for each in jobs:
        scheduler.add(each)
    assert step(scheduler).decode == jobs[:2]
    assert (len(scheduler.running), scheduler.waiting) == (2, 3)
    scheduler.remove(jobs[0])
    scheduler.remove(jobs[3])
    assert step(scheduler).decode == [jobs[1], jobs[2]]
    while not scheduler.idle:
        step(scheduler)
    assert not jobs[4].remaining
    assert jobs[3].runs == 0


def test_prompts_are_run_in_pieces_while_others_decode() -> None:
    scheduler: Scheduler[Job] = Scheduler(4, 10_000, 64)
    first = job(0, 2, 500)
    scheduler.add(first)
    step(scheduler)
    long = job(1, 1000, 5)
    scheduler.add(long)
    steps = 0
    while long.num_uncomputed_tokens or not long.runs:
        plan = step(scheduler)
        steps += 1
        assert first in plan.decode, "decoding never stops"
        assert sum(rows for _, rows in plan.prefill) <= 32, "half of those running have prompts: half of the rows"
    assert steps == -(-999 // 32)


def test_all_rows_go_to_prompts_while_nobody_decodes() -> None:
    scheduler: Scheduler[Job] = Scheduler(4, 10_000, 64)
    scheduler.add(job(0, 200))
    assert [rows for _, rows in step(scheduler).prefill] == [64]


def test_short_prompts_overtake_a_long_one_which_still_progresses() -> None:
    scheduler: Scheduler[Job] = Scheduler(8, 10_000, 64)
    long = job(0, 2000, 1)
    shorts = [job(1 + i, 20, 1000) for i in range(4)]
    for each in (long, *shorts):
        scheduler.add(each)
    for _ in range(5):
        step(scheduler)
    assert not any(each.num_uncomputed_tokens for each in shorts)
    assert len(long.history) == 5, "in every step"
    assert min(long.history) >= 8


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    scheduler: Scheduler[Job] = Scheduler(3, 400, 1000)
    jobs = [job(i, 50, 120) for i in range(3)]
    late = job(9, 5, 1)
    for each in (*jobs, late):
        scheduler.add(each)
    while len(scheduler.running) == 3 or jobs[2].runs == 0:
        assert not late.runs
        step(scheduler)
    assert scheduler.running == jobs[:2]
    kept = len(jobs[2].tokens)
    assert kept > 50, "it keeps what it has generated"
    while not scheduler.idle:
        step(scheduler)
        assert not late.runs or jobs[2].runs == 2, "nobody overtakes it"
    assert len(jobs[2].tokens) == 170


def test_one_alone_is_never_sent_away() -> None:
    scheduler: Scheduler[Job] = Scheduler(3, 10, 16)
    only = job(0, 9, 30)
    scheduler.add(only)
    while not scheduler.idle:
        step(scheduler)
    assert only.runs == 1


def test_one_that_follows_waits_for_its_leader() -> None:
    scheduler: Scheduler[Job] = Scheduler(3, 1000, 16)
    one, two = job(0, 40), job(1, 20)
    scheduler.add(one)
    scheduler.add(two)
    two.prefix_donor = one
    assert [each for each, _ in step(scheduler).prefill] == [one]
    two.prefix_donor = None
    assert two in [each for each, _ in step(scheduler).prefill]


def test_no_budget_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="kv_tokens"):
        Scheduler(1, 0, 16)


@settings(max_examples=150, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 60), st.integers(0, 40)), min_size=1, max_size=12),
    max_running=st.integers(1, 5),
    spare=st.integers(0, 300),
    chunk=st.integers(1, 64),
    gain=st.integers(1, 9),
    aborted=st.sets(st.integers(0, 11)),
    owners=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1)), min_size=12, max_size=12),
)
def test_whatever_comes(
    jobs: list[tuple[int, int, int]],
    max_running: int,
    spare: int,
    chunk: int,
    gain: int,
    aborted: set[int],
    owners: list[tuple[str, int]],
) -> None:
    """Nothing is lost, the budget holds, everyone admitted finishes, nobody waits for one that came later, unless that
    is another principal's turn or of a lower priority."""
    kv_tokens = 150 + 60 + spare  # any one of them fits
    scheduler: Scheduler[Job] = Scheduler(max_running, kv_tokens, chunk)
    pending = [(at, job(i, prompt, generate, *owners[i])) for i, (prompt, generate, at) in enumerate(jobs)]
    everyone = [each for _, each in sorted(pending, key=lambda pair: pair[0])]
    arrived = {id(each): number for number, each in enumerate(everyone)}
    total = {id(each): len(each.tokens) + each.remaining for each in everyone}
    for now in range(20_000):
        for at, each in sorted(pending, key=lambda pair: pair[0]):
            if at == now:
                scheduler.add(each)
        if now == 20:
            for each in everyone:
                if each.name in aborted:
                    scheduler.remove(each)
        before = {id(each): len(each.tokens) for each in scheduler.running}
        plan = step(scheduler, gain)
        rows = sum(count for _, count in plan.prefill)
        assert rows <= chunk
        assert len(scheduler.running) <= max_running
        running = scheduler.running
        for owner in set(owners):
            mine = [each for each in running if (each.principal, each.priority) == owner]
            # One that made way comes back behind one that came later and was spared, having made way before.
            in_order = [arrived[id(each)] for each in mine if id(each) not in scheduler._spared]
            assert in_order == sorted(in_order)
        assert all(len(each.tokens) >= before[id(each)] for each in running if id(each) in before), "tokens stay"
        assert scheduler.kv_used <= kv_tokens or len(running) == 1 or gain > LOOKAHEAD
        if any(each.num_uncomputed_tokens for each in running):
            assert rows > 0, "prompts progress in every step"
        assert scheduler.idle or plan.decode or plan.prefill
        if scheduler.idle and now >= max(at for at, _ in pending):
            break
    else:
        pytest.fail("it never ends")
    for each in everyone:
        assert each.name in aborted or not each.remaining
        assert each.remaining or len(each.tokens) == total[id(each)]


def first_token(scheduler: Scheduler[Job], newcomer: Job) -> int:
    """Steps until it has one."""
    scheduler.add(newcomer)
    before = len(newcomer.tokens)
    for steps in range(1, 10_000):
        step(scheduler)
        if len(newcomer.tokens) > before:
            return steps
    pytest.fail("it never comes")


@pytest.mark.parametrize("prompt", [2, 60, 128, 500])
@pytest.mark.parametrize("decoding", [0, 40])
def test_behind_64_requests_of_another_a_first_token_comes_within_three_times_as_long(
    prompt: int, decoding: int
) -> None:
    """Whether those are at their prompts or well under way. Their prompts are no shorter than the newcomer's."""
    alone = first_token(Scheduler(16, 100_000, 128), job(99, prompt, principal="new"))
    scheduler: Scheduler[Job] = Scheduler(16, 100_000, 128)
    for number in range(64):
        scheduler.add(job(number, max(60, prompt), 1000, principal="many"))
    step(scheduler)
    while decoding and any(each.num_uncomputed_tokens for each in scheduler.running):
        step(scheduler)
    for _ in range(decoding):
        step(scheduler)
    behind = first_token(scheduler, job(99, prompt, principal="new"))
    assert behind <= 3 * alone + 1, "and the step that the others are in"


def test_principals_take_turns_and_priorities_order_ones_own() -> None:
    scheduler: Scheduler[Job] = Scheduler(1, 1000, 64)
    order = [("a", 0), ("a", 0), ("a", -5), ("b", 9), ("b", 9), ("c", 0)]
    jobs = [job(i, 2, 1, *owner) for i, owner in enumerate(order)]
    for each in jobs:
        scheduler.add(each)
    served = []
    while not scheduler.idle:
        served += [each.name for each in step(scheduler).decode]
    assert served == [2, 3, 5, 0, 4, 1], "a, b and c by turns; of a first the lowest"


def test_places_are_evened_out_and_nobody_makes_way_again_soon() -> None:
    scheduler: Scheduler[Job] = Scheduler(4, 10_000, 64)
    many = [job(i, 5, 500, "many") for i in range(6)]
    for each in many:
        scheduler.add(each)
    step(scheduler)
    few = [job(10 + i, 5, 500, "few") for i in range(4)]
    for each in few:
        scheduler.add(each)
    for _ in range(50):
        step(scheduler)
    assert scheduler.running == [*many[:2], *few[:2]]
    assert [each.sent_back for each in many] == [0, 0, 1, 1, 0, 0], "the youngest, and no more than that"
    assert sum(each.sent_back for each in few) == 0
    late = [job(20 + i, 5, 500, f"late {i}") for i in range(3)]
    for each in late:
        scheduler.add(each)
    for _ in range(9):
        step(scheduler)
    assert scheduler.running == [many[0], few[0], *late[:2]], "for the last, nobody holds two"


def test_one_that_has_made_way_is_spared_for_a_while() -> None:
    scheduler: Scheduler[Job] = Scheduler(3, 10_000, 64)
    many = [job(i, 5, 500, "many") for i in range(3)]
    for each in many:
        scheduler.add(each)
    step(scheduler)
    for number in range(SPARED // 4):
        scheduler.add(job(10 + number, 2, 1, f"visitor {number}"))
        for _ in range(3):
            step(scheduler)
    assert [each.sent_back for each in many] == [1, 1, 1], "once in so many steps, however many come"
    for _ in range(SPARED):
        step(scheduler)
    assert max(each.sent_back for each in many) == 2


def test_nobody_makes_way_where_it_would_not_be_room_enough() -> None:
    scheduler: Scheduler[Job] = Scheduler(8, 400, 64)
    many = [job(i, 90, 10, "many") for i in range(4)]
    for each in many:
        scheduler.add(each)
    step(scheduler)
    assert len(scheduler.running) == 4
    scheduler.add(job(9, 380, 10, "large"))
    step(scheduler)
    assert [each.sent_back for each in many] == [0] * 4


def test_what_caches_have_no_room_for_waits_and_what_outgrows_them_gives_way() -> None:
    """Room for three blocks of a hundred tokens, whatever `kv_tokens` says."""

    def holds(lengths: Sequence[int]) -> bool:
        return sum(-(-length // 100) for length in lengths) <= 3

    scheduler: Scheduler[Job] = Scheduler(8, 10_000, 64, holds)
    jobs = [job(i, 20) for i in range(4)]
    for each in jobs:
        scheduler.add(each)
    assert scheduler.preempt() == []
    assert scheduler.admit() == jobs[:3]
    jobs[0].tokens.extend([0] * 90)
    assert scheduler.preempt() == [jobs[2]]
    assert scheduler.shed() == []
    assert scheduler.admit() == []
    jobs[0].tokens.extend([0] * 500)
    assert scheduler.preempt() == [jobs[1]]
    assert scheduler.running == [jobs[0]], "one alone goes on"
    scheduler.remove(jobs[0])
    assert scheduler.admit() == jobs[1:4]


def test_after_steps_that_were_too_wide_fewer_run_together_for_a_while() -> None:
    scheduler: Scheduler[Job] = Scheduler(8, 100_000, 64)
    jobs = [job(i, 3, 2000) for i in range(8)]
    for each in jobs:
        scheduler.add(each)
    step(scheduler)
    assert len(scheduler.running) == 8
    for each in jobs:  # as after a step that failed
        scheduler.remove(each)
    scheduler.narrow(8)
    for each in jobs:
        scheduler.add(each)
    widths = []
    for _ in range(CALM + 2):
        step(scheduler)
        widths.append(len(scheduler.running))
    assert set(widths[: CALM - 1]) == {4}
    assert widths[-1] == 8
    for _ in range(5):
        scheduler.narrow(len(scheduler.running))
    assert scheduler._most == 4, "half of those that ran"
    scheduler.narrow(1)
    assert scheduler._most == 1, "one always may"
