"""Several requests in flight: what is asked, how it is served, and the verdict on every cell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bench_results import of_waves, timing, waves
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiny_llm import tiny_gguf, tiny_llm
from typer.testing import CliRunner

from outrider import LLM
from outrider.bench import run as bench_run
from outrider.bench.bystanders import Bystanders
from outrider.bench.concurrency import Prompt, requests_of, serve
from outrider.bench.names import pairs, parse
from outrider.bench.never_slower import LEAST, never_slower, verdict
from outrider.bench.page import page
from outrider.bench.questions import Question
from outrider.bench.results import Results, finished_rounds
from outrider.bench.rounds import measure_cells
from outrider.bench.run import BenchConfig, run
from outrider.bench.sampling import SamplingMethod
from outrider.bench.sampling import parse as parse_sampling
from outrider.bench.sampling import parse_all as parse_samplings
from outrider.bench.statistics import Interval, paired_ratio, student_quantile
from outrider.bench.waves import Cell, Wave, parse_concurrency
from outrider.cli.app import app
from outrider.control.controller import FixedLength
from outrider.errors import InvalidRequest, OutriderError
from outrider.models.checkpoints.progress import SilentProgress

# What is asked


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("greedy", SamplingMethod()),
        ("t0.7", SamplingMethod(0.7)),
        ("t0.7-p0.9", SamplingMethod(0.7, 0, 0.9)),
        ("t1-k50", SamplingMethod(1.0, 50)),
        ("t.5-k50-p.95", SamplingMethod(0.5, 50, 0.95)),
    ],
)
def test_sampling_names(text: str, method: SamplingMethod) -> None:
    assert parse_sampling(text) == method
    assert parse_sampling(method.name) == method


@given(st.floats(0.01, 10), st.integers(0, 10**6), st.floats(0.01, 1))
def test_every_way_to_sample_has_a_name(temperature: float, top_k: int, top_p: float) -> None:
    method = SamplingMethod(float(f"{temperature:.6g}"), top_k, float(f"{top_p:.6g}"))
    assert parse_sampling(method.name) == method


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give at least one: greedy, tT"),
        ("warm", "'warm' is not understood; write greedy, tT"),
        ("0.7", "'0.7' is not understood"),
        ("t0.7-0.9", "'t0.7-0.9' is not understood"),
        ("t0.7-p0.9-k5", "not understood"),
        ("t-1", "not understood"),
        ("t0", "written greedy"),
        ("t0.7-k0", "leave -k0 out"),
        ("t0.7-p0", "above 0 and at most 1"),
        ("t0.7-p1.5", "above 0 and at most 1"),
        ("t0.7,t0.70", "t0.7 is named twice"),
    ],
)
def test_wrong_sampling_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match="sampling: ") as failure:
        parse_samplings(text)
    assert words in str(failure.value)


def test_concurrency_is_a_list_of_numbers() -> None:
    assert parse_concurrency("1, 4,16") == [1, 4, 16]
    for text in ("", "0", "-1", "four", "1.5", "1,1"):
        with pytest.raises(InvalidRequest, match="concurrency: "):
            parse_concurrency(text)


def test_auto_is_an_arm_of_ours_without_a_length() -> None:
    arm = parse("auto")
    assert (arm.is_ours, arm.is_plain, arm.length) == (True, False, "auto")
    assert parse("auto@fp32").dtype == "fp32"
    with pytest.raises(InvalidRequest, match="auto chooses its own length"):
        parse("auto:4")
    assert pairs(["plain", "auto", "transformers", "suffix@fp32"]) == [("auto", "plain")]


def test_requests_join_and_leave_one_by_one() -> None:
    prompts = [Prompt(str(i), [i]) for i in range(5)]
    few = requests_of(prompts, 1, SamplingMethod(), 100, seed=7)
    assert [request.prompt.question for request in few] == ["0", "1", "2", "3", "4"]
    many = requests_of(prompts, 16, SamplingMethod(0.7, 3, 0.9), 100, seed=7)
    assert len(many) == 24
    lengths = [request.sampling.max_tokens for request in many]
    assert min(lengths) >= 25
    assert max(lengths) <= 100
    assert len(set(lengths)) > 20
    assert [request.lap for request in many] == [i // 5 for i in range(24)]
    assert len({request.sampling.seed for request in many}) == 24
    assert (many[0].sampling.temperature, many[0].sampling.top_k, many[0].sampling.top_p) == (0.7, 3, 0.9)


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


# The verdict


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 29, 200])
def test_students_quantile(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)))


def test_the_interval_of_paired_ratios() -> None:
    exact = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (exact.value, exact.low, exact.high) == pytest.approx((2, 2, 2))
    # Machines drift: what both arms have in common is no noise. ln 1, ln 4: mean ln 2, deviation ln 2 √2, t 12.706.
    found = paired_ratio([1.0, 40.0], [1.0, 10.0])
    assert found.value == pytest.approx(2)
    assert found.high == pytest.approx(2 * 2**12.7062, rel=1e-4)
    assert found.low * found.high == pytest.approx(4)


def test_verdicts() -> None:
    assert verdict(Interval(0.9, 0.85, LEAST - 0.001)) == "fails"
    assert verdict(Interval(0.9, 0.8, LEAST)) == "unclear"
    assert verdict(Interval(1.2, 0.9, 1.5)) == "unclear"
    assert verdict(Interval(0.98, LEAST, 1.0)) == "holds"


def test_known_figures_of_a_cell() -> None:
    made = waves({"plain": [10, 20, 10, 20, 10], "auto": [15, 30, 15, 30, 15]})
    slow = made[-1].answers[1]
    made[5:] = [
        replace(wave, answers=(wave.answers[0], replace(slow, timing=timing([4, 6], 3.0, prefill=1.0))))
        for wave in made[5:]
    ]
    (entry,) = never_slower(["plain", "auto"], made)
    assert (entry["concurrency"], entry["sampling"], entry["arm"], entry["reference"]) == (1, "greedy", "auto", "plain")
    assert (entry["ratio"], entry["low"], entry["half_width"]) == pytest.approx((1.5, 1.5, 0.0))
    assert entry["worst_request"] == {"question": "b", "ratio": pytest.approx(2.5 / 10)}
    # Per round nine passes of one token and one of six come after the first.
    assert entry["tokens_per_pass"] == pytest.approx(15 / 10)
    assert (entry["identical"], entry["answers"], entry["rounds"]) == (10, 10, 5)
    assert entry["figures"]["tokens_per_second"] == pytest.approx(15)
    assert entry["reference_figures"]["request_tokens_per_second"]["p50"] == pytest.approx(10)
    assert entry["figures"]["request_tokens_per_second"]["p5"] == pytest.approx(2.5 + 0.05 * 12.5)
    assert entry["figures"]["first_token_seconds"]["p95"] == pytest.approx(1 / 15 + 0.95 * 14 / 15, abs=1e-5)


def test_other_tokens_are_counted_also_in_disturbed_rounds() -> None:
    made = waves({"plain": [10] * 5, "auto": [10] * 5})
    other = replace(made[-1].answers[0], timing=timing([1] * 10, 1.0, ids=[7] * 10))
    made[-1] = replace(made[-1], answers=(other, made[-1].answers[1]), other_work=1.5, seconds=100.0)
    (entry,) = never_slower(["plain", "auto"], made)
    assert (entry["identical"], entry["answers"]) == (9, 10)
    assert (entry["rounds"], entry["disturbed"], entry["left_out"]) == (4, 1, 1)
    assert entry["ratio"] == pytest.approx(1.0)


def test_where_most_rounds_are_disturbed_all_count() -> None:
    made = waves({"plain": [10] * 5, "auto": [10] * 5})
    made[:3] = [replace(wave, other_work=1.5) for wave in made[:3]]
    (entry,) = never_slower(["plain", "auto"], made)
    assert (entry["rounds"], entry["disturbed"], entry["left_out"]) == (5, 3, 0)


def test_one_round_is_no_verdict() -> None:
    assert never_slower(["plain", "auto"], waves({"plain": [10], "auto": [1]})) == []


def _cells() -> list[Wave]:
    slow = waves({"plain": [10.0] * 5, "auto": [8.0] * 5}, Cell(4, "t0.7-p0.9"))
    return [*waves({"plain": [10.0] * 5, "auto": [12.5] * 5}), *slow]


def test_waves_are_kept_and_read_again(tmp_path: Path) -> None:
    made = of_waves(_cells())
    made.save(tmp_path / "r.json")
    again = Results.load(tmp_path / "r.json")
    assert again.waves == made.waves
    assert again.document() == made.document()
    older = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    del older["waves"], older["never_slower"]  # as before there were any
    (tmp_path / "older.json").write_text(json.dumps(older), encoding="utf-8")
    assert Results.load(tmp_path / "older.json").waves == []


def test_the_table_is_in_every_report(tmp_path: Path) -> None:
    made = of_waves(_cells())
    made.save(tmp_path / "r.json")
    shown = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["bench", "report", str(tmp_path / "r.json")])
    assert shown.exit_code == 0, shown.output
    assert "1.25 ± 0.00" in shown.output
    assert "0.80 ± 0.00" in shown.output
    assert "FAILS" in shown.output
    text = page(json.loads(made.dumps()))
    for tag in ("div", "table", "tr", "td", "p"):
        assert len(re.findall(rf"<{tag}[ >]", text)) == text.count(f"</{tag}>")
    for words in ("Never slower", "1.25 ± 0.00", "t0.7-p0.9", "FAILS", "first token"):
        assert words in text
    assert "Acceptance per position" not in text  # nothing was asked one by one


def test_the_chart_of_cells(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outrider.bench.figures import draw

    assert [file.name for file in draw(of_waves(_cells()).document(), tmp_path)] == ["never_slower.png"]


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
