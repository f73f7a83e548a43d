"""One LLM for many callers: streams read by turns, threads, callers that leave or fail. Everybody gets the tokens they
get alone, and nothing is held in the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tiny_llm import tiny_llm

from outrider import LLM, InvalidRequest, SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.drafters.suffix import SuffixDrafter

PROMPTS = ["hello hello hello", "the weather the weather", "a b c a b c a", "once upon", "and then", "xyz"]
POISON = "poison"
PATIENCE = 300
"""Seconds, for a machine that is busy with something else."""


class Failing(SuffixDrafter):
    """Draws the line at requests that begin with the poison: after four tokens, before or after a step."""

    poison: Sequence[int] = (-1,)
    late = False
    collects = False

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        if self.collects:
            gc.collect()
        if not self.late:
            self._judge(requests)
        return super().propose(requests, budgets)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        if self.late:
            self._judge([each.request for each in verified])
        super().observe(verified)

    def _judge(self, requests: Sequence[RequestView]) -> None:
        for s in requests:
            if s.tokens[: len(self.poison)] == self.poison and len(s.tokens) - s.prompt_length >= 4:
                raise ArithmeticError("poisoned")


@pytest.fixture(scope="module")
def drafter() -> Failing:
    return Failing()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, drafter: Failing) -> LLM:
    made = tiny_llm(tmp_path_factory.mktemp("llm"), drafter=drafter)
    drafter.poison = made.tokenizer.encode(POISON)
    return made


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """The same for all tests: each must leave it as it found it."""
    yield shared
    gc.collect()
    assert shared.engine.idle
    assert shared.engine.leaks() == []


def params(i: int, **options: Any) -> SamplingParams:
    """Greedy and sampled by turns."""
    return SamplingParams(temperature=float(i % 2), seed=i, **{"max_tokens": 20, "ignore_eos": True, **options})


def alone(llm: LLM, i: int) -> list[int]:
    return llm.generate(PROMPTS[i], params(i), speculate=False)[0].token_ids


@pytest.mark.parametrize("speculate", [True, False])
def test_a_call_between_two_reads_of_a_stream(llm: LLM, speculate: bool) -> None:
    """The second call runs beside it, drafted for or not, and the stream misses nothing."""
    expected = [alone(llm, i) for i in range(2)]
    stream = llm.stream(PROMPTS[0], params(0))
    chunks = [next(stream)]
    assert llm.generate(PROMPTS[1], params(1), speculate=speculate)[0].token_ids == expected[1]
    chunks += stream
    assert [token for chunk in chunks for token in chunk.token_ids] == expected[0]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.token_ids == expected[0]


def test_streams_read_by_turns(llm: LLM) -> None:
    """More requests than slots, drafted for and plain, and some in one more engine over the same model."""
    expected = [alone(llm, i) for i in range(6)]
    other = llm.with_drafter("ngram", FixedLength(3))
    streams = {i: (other if i % 3 == 2 else llm).stream(PROMPTS[i], params(i), speculate=i % 3 != 1) for i in range(6)}
    got: dict[int, list[int]] = {i: [] for i in streams}
    while streams:
        for i in list(streams):
            chunk = next(streams[i], None)
            if chunk is None:
                del streams[i]
            else:
                got[i] += chunk.token_ids
    assert list(got.values()) == expected
    assert other.engine.leaks() == []


def test_threads(llm: LLM) -> None:
    expected = [alone(llm, i) for i in range(6)]
    begin = threading.Barrier(4)

    def work(first: int) -> None:
        begin.wait()
        for i in [(first + k) % 6 for k in range(6)]:
            got = llm.generate(PROMPTS[i], params(i), speculate=(first + i) % 4 != 0)[0]
            assert got.token_ids == expected[i]
        batch = llm.generate(PROMPTS, [params(i) for i in range(6)])
        assert [done.token_ids for done in batch] == expected

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, first) for first in range(4)]:
            done.result(PATIENCE)


@pytest.mark.parametrize("how", ["close", "lose", "lose in a cycle"])
def test_whoever_stops_reading_lets_go(llm: LLM, how: str) -> None:
    expected = alone(llm, 2)
    reading = llm.stream(PROMPTS[2], params(2))
    chunks = [next(reading)]
    for _ in range(5):  # more than there are slots
        gone: Any = llm.stream(PROMPTS[:2], params(0, max_tokens=60))
        next(gone)
        assert len(llm.engine.scheduler.running) >= 2
        if how == "close":
            gone.close()
        elif how == "lose in a cycle":
            cycle = [gone]
            cycle.append(cycle)
            del cycle
        del gone
        gc.collect()
        assert len(llm.engine.scheduler.running) + llm.engine.scheduler.waiting <= 1
    chunks += reading
    assert [token for chunk in chunks for token in chunk.token_ids] == expected


def test_a_stream_that_is_collected_in_the_middle_of_a_step(llm: LLM, drafter: Failing) -> None:
    """Letting go must neither wait for the step, which waits for it, nor reach into it."""
    expected = alone(llm, 2)
    reading = llm.stream(PROMPTS[2], params(2))
    chunks = [next(reading)]
    gc.disable()
    drafter.collects = True
    try:
        gone = llm.stream(PROMPTS[:2], params(0, max_tokens=60))
        cycle: list[Any] = [gone, next(gone)]
        cycle.append(cycle)
        del cycle, gone
        chunks += reading
    finally:
        drafter.collects = False
        gc.enable()
    assert [token for chunk in chunks for token in chunk.token_ids] == expected


def test_a_stream_that_nobody_began_holds_nothing(llm: LLM) -> None:
    kept = llm.stream(PROMPTS[0], params(0))
    assert llm.engine.idle
    del kept


@pytest.mark.parametrize("late", [False, True], ids=["before the pass", "after the pass"])
def test_a_failure_reaches_only_whose_it_is(llm: LLM, drafter: Failing, late: bool) -> None:
    expected = [alone(llm, i) for i in range(3)]
    drafter.late = late
    begin = threading.Barrier(4)

    def work(i: int) -> list[int]:
        begin.wait()
        return llm.generate(PROMPTS[i], params(i))[0].token_ids

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(work, i) for i in range(3)]
        begin.wait()
        with pytest.raises(ArithmeticError, match="poisoned"):
            llm.generate(POISON, params(0))
        assert [other.result(PATIENCE) for other in others] == expected
    assert llm.generate(POISON, params(0), speculate=False)[0].token_ids


def test_a_failing_reader_of_a_stream_harms_nobody(llm: LLM) -> None:
    expected = alone(llm, 1)
    other = llm.stream(PROMPTS[1], params(1))
    chunks = [next(other)]
    with pytest.raises(ZeroDivisionError):
        sum(1 / 0 for _ in llm.stream(PROMPTS[0], params(0)))
    with pytest.raises(InvalidRequest):
        llm.generate("")
    chunks += other
    assert [token for chunk in chunks for token in chunk.token_ids] == expected


def test_ctrl_c_during_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the call it interrupts; the others go on, with what the step had brought them."""
    expected = alone(llm, 1)
    other = llm.stream(PROMPTS[1], params(1))
    chunks = [next(other)]
    observe = llm.drafter.observe

    def interrupted(verified: Sequence[VerifiedDraft]) -> None:
        monkeypatch.setattr(llm.drafter, "observe", observe)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.drafter, "observe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[0], params(0))
    chunks += other
    assert [token for chunk in chunks for token in chunk.token_ids] == expected


def test_an_engine_that_does_not_work_tells_everybody(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    first = llm.stream(PROMPTS[0], params(0))
    next(first)

    def broken(batch: Any) -> Any:
        raise OSError("the device is gone")

    with monkeypatch.context() as patched:
        patched.setattr(llm.model, "forward", broken)
        with pytest.raises(OSError, match="gone"):
            llm.generate(PROMPTS[1], params(1))
        with pytest.raises(OSError, match="gone"):
            list(first)
    assert llm.generate(PROMPTS[0], params(0))[0].token_ids == alone(llm, 0)


def test_a_step_that_asks_its_own_llm_is_told_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def asking(*arguments: Any) -> Any:
        return llm.generate(PROMPTS[1])

    monkeypatch.setattr(llm.drafter, "propose", asking)
    with pytest.raises(InvalidRequest, match="its own LLM"):
        llm.generate(PROMPTS[0], params(0))
