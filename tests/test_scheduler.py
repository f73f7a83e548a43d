"""The scheduler alone, without a model: who runs, in what order, and that nobody is lost, starved or over budget."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.scheduler import LOOKAHEAD, Plan, Scheduler
from outrider.errors import InvalidRequest


@dataclass(eq=False)
class Job:
    """A sequence of which only the lengths matter."""

    name: int
    tokens: list[int]
    remaining: int
    missing: int = 0
    leader: Job | None = None
    runs: int = 0
    """Times it was admitted."""
    history: list[int] = field(default_factory=list)
    """Rows given in each step."""


def job(name: int, prompt: int, generate: int = 10) -> Job:
    return Job(name, [0] * prompt, generate)


def step(scheduler: Scheduler[Job], gain: int = 1) -> Plan[Job]:
    """What an engine does in one step; returns the plan."""
    scheduler.preempt()
    for each in scheduler.admit():
        each.missing = len(each.tokens) - 1
        each.runs += 1
    plan = scheduler.plan()
    for each, rows in plan.prefill:
        assert 0 < rows <= each.missing
        each.missing -= rows
        each.history.append(rows)
    for each in plan.decode:
        assert not each.missing
        taken = min(gain, each.remaining)
        each.tokens += [0] * taken
        each.remaining -= taken
        if not each.remaining:
            scheduler.remove(each)
    return plan


@pytest.mark.parametrize(("decoding", "prompts", "length", "rows"), [
    (0, 1, 30_000, 4096), (16, 1, 30_000, 256), (1, 1, 30_000, 512), (16, 48, 256, 2048), (60, 1, 256, 128),
])  # fmt: skip
def test_a_large_chunk_is_for_those_whom_nobody_waits_for(decoding: int, prompts: int, length: int, rows: int) -> None:
    """Beside decoding one prompt gets little, many short ones as large a part as they are of all, up to half."""
    scheduler: Scheduler[Job] = Scheduler(64, 100_000, 4096)
    for number in range(decoding):
        scheduler.add(job(number, 2, generate=100))
    step(scheduler)
    for number in range(prompts):
        scheduler.add(job(decoding + number, length))
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
    code = "import sys, outrider.engine.scheduler, outrider.engine.prefixes; sys.exit('torch' in sys.modules)"
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
    while long.missing or not long.runs:
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
    assert not any(each.missing for each in shorts)
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
    two.leader = one
    assert [each for each, _ in step(scheduler).prefill] == [one]
    two.leader = None
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
)
def test_whatever_comes(
    jobs: list[tuple[int, int, int]], max_running: int, spare: int, chunk: int, gain: int, aborted: set[int]
) -> None:
    """Nothing is lost, the budget holds, everyone admitted finishes, nobody waits for one that came later."""
    kv_tokens = 150 + 60 + spare  # any one of them fits
    scheduler: Scheduler[Job] = Scheduler(max_running, kv_tokens, chunk)
    pending = [(at, job(i, prompt, generate)) for i, (prompt, generate, at) in enumerate(jobs)]
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
        assert [arrived[id(each)] for each in running] == sorted(arrived[id(each)] for each in running)
        assert all(len(each.tokens) >= before[id(each)] for each in running if id(each) in before), "tokens stay"
        assert scheduler.kv_used <= kv_tokens or len(running) == 1 or gain > LOOKAHEAD
        if any(each.missing for each in running):
            assert rows > 0, "prompts progress in every step"
        assert scheduler.idle or plan.decode or plan.prefill
        if scheduler.idle and now >= max(at for at, _ in pending):
            break
    else:
        pytest.fail("it never ends")
    for each in everyone:
        assert each.name in aborted or not each.remaining
        assert each.remaining or len(each.tokens) == total[id(each)]
