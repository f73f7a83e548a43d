"""Several requests in flight: what can be asked for, and the verdict on every cell."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_results import of_waves, timing, waves
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from outrider.bench.concurrency import Prompt, requests_of
from outrider.bench.names import pairs, parse
from outrider.bench.never_slower import LEAST, never_slower, verdict
from outrider.bench.page import page
from outrider.bench.results import Results
from outrider.bench.sampling import SamplingMethod
from outrider.bench.sampling import parse as parse_sampling
from outrider.bench.sampling import parse_all as parse_samplings
from outrider.bench.statistics import Interval, paired_ratio, student_quantile
from outrider.bench.waves import Cell, Wave, parse_concurrency
from outrider.cli.app import app
from outrider.errors import InvalidRequest

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
