"""`outrider bench` as a person runs it: a real process, the real default model, transformers as a real peer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bench_results import noisy
from commands import command

from outrider.bench import environments
from outrider.bench.results import Results

ROOT = Path(__file__).parents[2]
OUTRIDER = [sys.executable, "-c", "from outrider.cli.main import main; main()"]
QUESTIONS = [
    {"question_id": 1, "category": "edit", "turns": ["Repeat: one two three four five six seven.", "Once more."]},
    {"question_id": 2, "category": "chat", "turns": ["Why do cats purr?"]},
    {"question_id": 3, "category": "chat", "turns": ["What is a black hole?"]},
]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OUTRIDER, "bench", *arguments], capture_output=True, text=True, timeout=240, env=environment(), check=False
    )


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS), encoding="utf-8")
    return file


def test_a_run_end_to_end(questions: Path, tmp_path: Path) -> None:
    arms = "plain,suffix,suffix:4,transformers,llama.cpp"
    out, html = tmp_path / "r.json", tmp_path / "r.html"
    done = bench(
        *("--arms", arms, "--questions", str(questions), "--max-tokens", "8", "--threads", "1", "--json"),
        *("--out", str(out), "--html", str(html), "--dtype", "fp32"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(out.read_text(encoding="utf-8")) == document
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert document["complete"] is True
    measured = [entry["arm"] for entry in document["arms"]]
    missing = [] if environments.python_of("llama.cpp") else ["llama.cpp"]
    assert measured == [arm for arm in arms.split(",") if arm not in missing]
    assert [entry["arm"] for entry in document["skipped"]] == missing
    assert all("outrider bench install llama.cpp" in entry["why"] for entry in document["skipped"])
    assert len(document["measurements"]) == 4 * len(measured)  # four turns
    left_out = set(document["disturbed"]["questions"]) if document["disturbed"]["left_out"] else set()
    kept = [each for each in document["measurements"] if each["question"] not in left_out]
    for entry in document["arms"]:
        assert entry["tokens"] == 8 * sum(each["arm"] == entry["arm"] for each in kept)
        assert entry["decode_tokens_per_second"] > 0
        assert entry["prefill_seconds"] > 0
    named = {entry["arm"]: entry for entry in document["arms"]}
    for arm in ("suffix", "suffix:4", "transformers"):  # fp32, though of weights rounded to bf16
        assert named[arm]["identical_to_plain"] == sum(each["arm"] == arm for each in kept)
    _check_measurements(document["measurements"], measured)
    origin = document["provenance"]
    assert origin["threads"] == 1
    assert origin["model_sha256"]
    assert origin["arms"]["transformers"]["transformers"]


def _check_measurements(measurements: list[dict[str, Any]], arms: list[str]) -> None:
    """All arms are asked the same, one after the other, and not always in the same order."""
    rounds = [measurements[i : i + len(arms)] for i in range(0, len(measurements), len(arms))]
    orders = []
    for each in rounds:
        assert len({(m["question"], m["turn"], m["prompt_tokens"]) for m in each}) == 1
        orders.append([m["arm"] for m in each])
        assert sorted(orders[-1]) == sorted(arms)
        ids = {m["arm"]: m["token_ids"] for m in each}
        assert ids["plain"] == ids["suffix"] == ids["suffix:4"] == ids["transformers"]
    assert len({order[0] for order in orders}) > 1
    for m in measurements:
        assert sum(m["passes"]) == m["tokens"] == len(m["token_ids"])
        assert m["drafted"] is None or m["drafted"] >= sum(m["passes"]) - len(m["passes"])
    later = [m["prompt_tokens"] for m in measurements if m["turn"] == 1]
    first = [m["prompt_tokens"] for m in measurements if m["question"] == "1" and m["turn"] == 0]
    assert later
    assert min(later) > first[0] + 6  # the answer is part of the next prompt


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_part_and_resume_goes_on(tmp_path: Path) -> None:
    out, file = tmp_path / "r.json", tmp_path / "questions.jsonl"
    many = [{**QUESTIONS[1], "question_id": number} for number in range(8)]
    file.write_text("".join(json.dumps(each) + "\n" for each in many), encoding="utf-8")
    arguments = ["--arms", "plain,suffix", "--questions", str(file), "--max-tokens", "8", "--threads", "1"]
    arguments += ["--out", str(out)]
    # A shell starts background jobs with SIGINT ignored; a person's terminal does not.
    process = subprocess.Popen(
        [*OUTRIDER, "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 130, stderr
    kept = Results.load(out)
    assert kept.complete is False
    assert "incomplete" in stdout
    asked = {each.question for each in kept.measurements}
    assert 1 <= len(asked) < 8
    assert len(kept.measurements) == 2 * len(asked)

    other = bench(*arguments, "--resume", str(out), "--temperature", "0.5")
    assert other.returncode == 2
    assert "temperature" in other.stderr
    more = bench(*arguments, "--resume", str(out))
    assert more.returncode == 0, more.stderr
    whole = Results.load(out)
    assert whole.complete is True
    assert whole.measurements[: len(kept.measurements)] == kept.measurements
    assert len({each.question for each in whole.measurements}) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arms", "medusa"], "no drafter 'medusa'"),
        (["--arms", "suffix:fast"], "draft length"),
        (["--arms", "endpoint"], "--endpoint URL"),
        (["--questions", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--resume", "nowhere.json"], "nowhere.json"),
        (["install", "nothing"], "nothing"),
        (["--arms", "plain", "--dtype", "fp8"], "fp8"),
    ],
)
def test_impossible_requests_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("bench", *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("error: ") == 1


def test_compare_exits_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"plain": 70.0, "suffix": 150.0, "transformers": 18.0}
    noisy(rates, seed=1).save(tmp_path / "a.json")
    noisy(rates, seed=2).save(tmp_path / "b.json")
    noisy({**rates, "plain": 63.0}, seed=3).save(tmp_path / "c.json")
    assert command("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")) == 0
    capsys.readouterr()
    assert command("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "c.json")) == 1
    worse = capsys.readouterr().out
    assert any(line.startswith("plain: decode speed -") and "clearly worse" in line for line in worse.splitlines())
    assert command("bench", "report", str(tmp_path / "a.json")) == 0
    assert "suffix" in capsys.readouterr().out


@pytest.mark.slow
def test_quick_takes_about_a_minute() -> None:
    started = time.monotonic()
    done = bench("--quick")
    assert done.returncode == 0
    assert "Never slower?" in done.stdout
    assert time.monotonic() - started < 90
