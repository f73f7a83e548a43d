"""Several requests in flight: how they are served and measured, and what the command says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bench_results import of_waves, waves
from tiny_llm import tiny_gguf, tiny_llm
from typer.testing import CliRunner

from outrider import LLM
from outrider.bench import run as bench_run
from outrider.bench.bystanders import Bystanders
from outrider.bench.concurrency import Prompt, begins_with, requests_of, serve
from outrider.bench.names import parse
from outrider.bench.questions import Question
from outrider.bench.results import Results, finished_rounds
from outrider.bench.rounds import measure_cells
from outrider.bench.run import BenchConfig, run
from outrider.bench.sampling import SamplingMethod
from outrider.bench.sampling import parse as parse_sampling
from outrider.bench.waves import Cell
from outrider.cli.app import app
from outrider.control.controller import FixedLength
from outrider.engine.request import Request
from outrider.errors import InvalidRequest, OutriderError
from outrider.models.checkpoints.progress import SilentProgress

# How it is served


@dataclass
class Served:
    name: str
    llm: LLM


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return tiny_llm(tmp_path_factory.mktemp("tiny"))


def plainly(llm: LLM) -> LLM:
    return llm.with_drafter("none", FixedLength(0))


PROMPTS = [Prompt(str(i), list(range(2 + i, 12 + 3 * i))) for i in range(5)]


@pytest.mark.parametrize("sampling", ["greedy", "t0.9-p0.8", "t1-k20"])
def test_every_request_gets_what_it_gets_alone(tiny: LLM, sampling: str) -> None:
    asked = requests_of(PROMPTS, 3, parse_sampling(sampling), 12, seed=1)
    together = serve(tiny, asked, 3, "together")
    alone = serve(plainly(tiny), asked, 1, "alone")
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    for request, each in zip(asked, together, strict=True):
        assert each.tokens == request.sampling.max_tokens == sum(each.passes or ())
        assert each.prefill_seconds > 0
    assert tiny.engine.idle
    assert not tiny.engine.leaks()


def test_rounds_begin_with_another_request(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests_of(PROMPTS, 3, SamplingMethod(), 12, seed=1)
    begins = [begins_with(number, len(asked)) for number in range(5)]
    assert begins[0] == 0
    assert len(set(begins)) == 5
    first: list[int] = []
    add = tiny.engine.add

    def noted(request: Request) -> None:
        first.append(request.tokens[0])
        add(request)

    monkeypatch.setattr(tiny.engine, "add", noted)
    answers = [serve(tiny, asked, 3, f"round {begin}", begin=begin) for begin in begins[:2]]
    assert first[:: len(asked)] == [asked[begin].prompt.token_ids[0] for begin in begins[:2]]
    assert [each.token_ids for each in answers[0]] == [each.token_ids for each in answers[1]]


def test_no_more_than_so_many_are_in_flight(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    step = tiny.engine.step

    def counted() -> Any:
        seen.append(len(tiny.engine.scheduler.running) + tiny.engine.scheduler.waiting)
        return step()

    monkeypatch.setattr(tiny.engine, "step", counted)
    serve(tiny, requests_of(PROMPTS, 2, SamplingMethod(), 12, seed=0), 2, "counted")
    assert max(seen) == 2


def test_rounds_and_repetitions_find_nothing_of_each_other(tiny: LLM) -> None:
    llm = plainly(tiny)
    asked = requests_of([Prompt("a", list(range(40, 90)))], 2, SamplingMethod(), 4, seed=0)
    for salt in ("one", "two"):
        serve(llm, asked, 2, salt)
    assert llm.engine.stats.prefix_hits == 0
    serve(llm, [replace(request, lap=0) for request in asked], 2, "three")
    assert llm.engine.stats.prefix_hits > 0  # without a salt of its own each would have found the one before


class Clock:
    """Time that passes only as told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def slow(self, llm: LLM, seconds: float) -> LLM:
        """Every step of its engine takes so long."""
        step: Callable[[], Any] = llm.engine.step

        def timed() -> Any:
            self.now += seconds
            return step()

        llm.engine.step = timed  # type: ignore[method-assign]
        return llm


def _measured(arms: Sequence[Served], results: Results, rounds: int = 3, keep: Any = lambda _: None) -> None:
    measure_cells(
        arms,
        [Cell(2, "greedy"), Cell(3, "t0.7")],
        PROMPTS,
        results,
        rounds=rounds,
        max_tokens=8,
        seed=0,
        others=Bystanders([]),
        progress=SilentProgress(),
        keep=keep,
    )


@pytest.mark.parametrize(("slower", "expected"), [(1.05, "fails"), (1.02, "holds"), (0.8, "holds")])
def test_a_planted_slower_arm_fails(tiny: LLM, monkeypatch: pytest.MonkeyPatch, slower: float, expected: str) -> None:
    clock = Clock()
    for module in ("timing", "rounds"):
        monkeypatch.setattr(f"outrider.bench.{module}.perf_counter", clock)
    results = of_waves([])
    results.arms = ["plain", "ngram"]
    arms = [Served("plain", clock.slow(plainly(tiny), 1.0)), Served("ngram", clock.slow(plainly(tiny), slower))]
    _measured(arms, results)
    results.waves = [replace(wave, other_work=None) for wave in results.waves]
    entries = results.document()["never_slower"]
    assert [entry["verdict"] for entry in entries] == [expected] * 2
    assert results.fails == (expected == "fails")
    for entry in entries:
        assert entry["ratio"] == pytest.approx(1 / slower)
        assert entry["worst_request"]["ratio"] == pytest.approx(1 / slower)
        assert entry["identical"] == entry["answers"]
        assert entry["tokens_per_pass"] == 1.0


def test_arms_take_turns_and_finished_rounds_are_not_run_again(tiny: LLM) -> None:
    arms = [Served("plain", plainly(tiny)), Served("suffix", tiny)]
    results = of_waves([])
    results.arms = ["plain", "suffix"]
    kept: list[int] = []
    _measured(arms, results, rounds=2, keep=lambda found: kept.append(len(found.waves)))
    assert kept == [2, 4, 6, 8]
    assert [wave.arm for wave in results.waves] == ["plain", "suffix", "suffix", "plain"] * 2
    first = list(results.waves)
    _measured(arms, results, rounds=3)
    assert results.waves[:8] == first
    assert [wave.round for wave in results.waves[8:]] == [2] * 4
    assert finished_rounds(results.waves[:-1], ["plain", "suffix"]) == {
        *((Cell(2, "greedy"), number) for number in range(3)),
        *((Cell(3, "t0.7"), number) for number in range(2)),
    }


# The command


def _invoked(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "four"], "concurrency: 'four' is no whole number from 1 on"),
        (["--sampling", "warm"], "sampling: 'warm' is not understood; write greedy, tT"),
        (["--concurrency", "4", "--temperature", "0.7"], "written --sampling t0.7"),
        (["--concurrency", "4", "--arms", "plain,transformers"], "only arms of ours"),
        (["--concurrency", "4", "--arms", "auto"], "--arms plain,auto"),
        (["--concurrency", "4", "--arms", "plain,suffix:4", "--synthetic-acceptance", "2"], "leave --concurrency out"),
        (["--arms", "auto:4"], "auto chooses its own length"),
    ],
)
def test_impossible_requests_are_one_sentence(arguments: list[str], words: str) -> None:
    failure = _invoked(*arguments).exception
    assert isinstance(failure, OutriderError)
    assert words in str(failure)


def test_rounds_below_two_are_refused() -> None:
    assert _invoked("--concurrency", "1", "--rounds", "1").exit_code == 2


@pytest.mark.parametrize("slower", [False, True])
def test_the_exit_code_is_the_verdict(monkeypatch: pytest.MonkeyPatch, slower: bool) -> None:
    plans: list[BenchConfig] = []

    def measured(plan: BenchConfig, *_: object) -> Results:
        plans.append(plan)
        return of_waves(waves({"plain": [10.0] * 5, "auto": [9.0 if slower else 11.0] * 5}))

    monkeypatch.setattr(bench_run, "run", measured)
    done = _invoked("--concurrency", "1,4", "--sampling", "greedy,t0.7", "--json")
    assert done.exit_code == (1 if slower else 0)
    assert json.loads(done.stdout)["never_slower"][0]["verdict"] == ("fails" if slower else "holds")
    (plan,) = plans
    assert [arm.text for arm in plan.arms] == ["plain", "auto"]
    assert plan.cells == [Cell(1, "greedy"), Cell(4, "greedy"), Cell(1, "t0.7"), Cell(4, "t0.7")]
    assert (plan.one_by_one, plan.rounds) == (False, 5)
    assert _invoked("--quick").exit_code == 0  # a first impression, no verdict
    assert plans[1].one_by_one
    assert plans[1].cells == [Cell(1, "greedy"), Cell(4, "greedy")]
    assert [arm.text for arm in plans[1].arms] == ["plain", "auto"]


def _plan(model: str, arms: str, cell: Cell) -> BenchConfig:
    questions = [Question(str(i), "chat", (text,)) for i, text in enumerate(["Count.", "Why do cats purr?"])]
    names = [parse(name) for name in arms.split(",")]
    return BenchConfig(model, names, questions, "made up", max_tokens=4, one_by_one=False, cells=[cell], rounds=2)


def test_the_default_model() -> None:
    """What everybody gets: the tokens of plain decoding, several at a time, sampled."""
    kept: list[int] = []
    plan = _plan("smollm2-135m", "plain,auto", Cell(2, "t0.7-p0.9"))
    results = run(plan, SilentProgress(), lambda found: kept.append(len(found.waves)))
    assert results.complete
    assert kept == [2, 4]
    (entry,) = results.document()["never_slower"]
    assert (entry["arm"], entry["concurrency"], entry["sampling"]) == ("auto", 2, "t0.7-p0.9")
    assert entry["identical"] == entry["answers"] == 2 * 3
    assert entry["ratio"] > 0
    assert results.provenance["arms"]["auto"]["outrider"]


def test_stopped_and_resumed(tmp_path: Path) -> None:
    plan = replace(_plan(str(tiny_gguf(tmp_path)), "plain,suffix", Cell(2, "greedy")), dtype="fp32")
    out = tmp_path / "r.json"

    def stop(results: Results) -> None:
        results.save(out)
        raise KeyboardInterrupt

    stopped = run(plan, SilentProgress(), stop)
    assert not stopped.complete
    assert len(stopped.waves) == 2
    assert stopped.document()["never_slower"] == []
    results = run(plan, SilentProgress(), lambda found: found.save(out), Results.load(out))
    assert results.complete
    assert results.waves[:2] == Results.load(out).waves[:2]
    assert len(results.waves) == 4
    assert len(results.document()["never_slower"]) == 1
    with pytest.raises(InvalidRequest, match="resume: that run had cells"):
        run(replace(plan, cells=[Cell(2, "t0.7")]), SilentProgress(), stop, results)
