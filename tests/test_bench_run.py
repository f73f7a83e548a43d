"""`outrider bench` as a person runs it: real processes, the real default model, transformers as a real peer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_results import noisy

from outrider.bench import environments
from outrider.bench.endpoint import EndpointArm
from outrider.bench.names import parse
from outrider.bench.peer import PeerArm
from outrider.bench.reading import ArmUnavailable, Sampling
from outrider.bench.results import Results
from outrider.errors import OutriderError
from outrider.models.checkpoints.checkpoint import Checkpoint

ROOT = Path(__file__).parents[1]
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
        *("--arms", arms, "--questions", str(questions), "--max-tokens", "12", "--threads", "1", "--json"),
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
    for entry in document["arms"]:
        assert entry["tokens"] == 4 * 12  # four turns
        assert entry["decode_tokens_per_second"] > 0
        assert entry["prefill_seconds"] > 0
    named = {entry["arm"]: entry for entry in document["arms"]}
    whole = 4 if document["disturbed"]["left_out"] and not document["disturbed"]["questions"] else None
    if whole:
        assert named["suffix"]["identical_to_plain"] == named["suffix:4"]["identical_to_plain"] == whole
        assert named["transformers"]["identical_to_plain"] == whole  # fp32: the same weights, the same tokens
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
    assert min(later) > first[0] + 8  # the answer is part of the next prompt


def test_ctrl_c_keeps_the_finished_part_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ["--arms", "plain,suffix", "--limit", "8", "--max-tokens", "24", "--threads", "1", "--out", str(out)]
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
    stdout, stderr = process.communicate(timeout=60)
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
        (["--arms", "head"], "no drafter 'head'"),
        (["--arms", "suffix:fast"], "draft length"),
        (["--arms", "endpoint"], "--endpoint URL"),
        (["--questions", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--resume", "nowhere.json"], "nowhere.json"),
        (["install", "nothing"], "nothing"),
        (["--arms", "plain", "--dtype", "fp8"], "fp8"),
    ],
)
def test_impossible_requests_are_one_sentence(arguments: list[str], words: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_compare_exits_with_the_verdict(tmp_path: Path) -> None:
    rates = {"plain": 70.0, "suffix": 150.0, "transformers": 18.0}
    noisy(rates, seed=1).save(tmp_path / "a.json")
    noisy(rates, seed=2).save(tmp_path / "b.json")
    noisy({**rates, "plain": 63.0}, seed=3).save(tmp_path / "c.json")
    same = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert same.returncode == 0, same.stdout
    worse = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "c.json"))
    assert worse.returncode == 1
    assert "plain: decode speed -1" in worse.stdout
    shown = bench("report", str(tmp_path / "a.json"))
    assert shown.returncode == 0
    assert "suffix" in shown.stdout


# Peers


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    folder = checkpoint.path
    return {
        "folder": str(folder), "gguf": str(folder / "model.gguf"), "dtype": "fp32", "device": "cpu", "threads": 1,
        "max_context": 256,
    }  # fmt: skip


def _prompt(checkpoint: Checkpoint) -> list[int]:
    text = "Say this: the red fox, the red fox, the red fox."
    return checkpoint.tokenizer.apply_chat_template([{"role": "user", "content": text}])


def _answers(arm: PeerArm, prompt: Sequence[int]) -> Any:
    try:
        arm.prepare()
        assert arm.versions
        assert len(arm.pids) == 1
        return arm.run(prompt, Sampling(16, 0.0, 0))
    finally:
        arm.close()


def test_lookup_of_a_peer_gains_several_tokens_a_pass(default_checkpoint: Checkpoint) -> None:
    arm = PeerArm(parse("transformers-lookup"), _config(default_checkpoint))
    reading = _answers(arm, _prompt(default_checkpoint))
    assert reading.tokens == len(reading.token_ids) == sum(reading.passes) == 16
    assert len(reading.passes) < 16
    assert reading.prefill_seconds > 0
    assert reading.decode_seconds > 0
    assert arm.pids == ()


@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-lookup", "openvino", "openvino-lookup"])
def test_installed_peers_answer(name: str, default_checkpoint: Checkpoint) -> None:
    if environments.python_of(parse(name).program) is None:
        pytest.skip(f"{name} is not installed")
    reading = _answers(PeerArm(parse(name), _config(default_checkpoint)), _prompt(default_checkpoint))
    assert reading.tokens == sum(reading.passes) == 16
    assert ("lookup" in name) == (len(reading.passes) < 16)


def test_a_peer_that_fails_says_why(default_checkpoint: Checkpoint) -> None:
    arm = PeerArm(parse("transformers"), {**_config(default_checkpoint), "dtype": "int3"})
    with pytest.raises(ArmUnavailable, match=r"transformers failed: .*int3"):
        _answers(arm, [1, 2, 3])


def test_a_peer_that_dies_says_so(default_checkpoint: Checkpoint) -> None:
    arm = PeerArm(parse("transformers"), _config(default_checkpoint))
    arm.prepare()
    os.kill(arm.pids[0], signal.SIGKILL)
    with pytest.raises(ArmUnavailable, match="died with exit code -9"):
        arm.run([1, 2, 3], Sampling(4, 0.0, 0))
    arm.close()


def test_a_missing_peer_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    with pytest.raises(ArmUnavailable, match="`outrider bench install vllm`"):
        PeerArm(parse("vllm"), {}).prepare()


def test_a_failed_install_leaves_nothing_that_looks_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OutriderError, match="`outrider bench install openvino` tries again"):
        environments.install("openvino")
    assert environments.python_of("openvino") is None


SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply("application/json", json.dumps({"data": [{"id": "served"}]}))
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not isinstance(asked["prompt"], str):
            self.send_error(400)
            return
        assert asked["model"] == "served" and asked["ignore_eos"] and asked["stream"]
        events = [{"choices": [{"text": "x"}]}] * asked["max_tokens"]
        events.append({"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        lines = "".join("data: " + json.dumps(event) + "\\n\\n" for event in events)
        self.reply("text/event-stream", lines + "data: [DONE]\\n\\n")
    def reply(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *arguments):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_an_endpoint_is_counted_by_its_usage(default_checkpoint: Checkpoint) -> None:
    """This server knows prompts as text only, as some do; ids are tried first."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        arm = EndpointArm("endpoint", url, default_checkpoint.tokenizer)
        arm.prepare()
        reading = arm.run(_prompt(default_checkpoint), Sampling(9, 0.0, 0))
        assert (reading.tokens, reading.token_ids, reading.passes) == (9, None, None)
        assert arm.versions == {"model": "served"}
    finally:
        server.kill()
        server.communicate()
    with pytest.raises(ArmUnavailable, match="is the server up"):
        arm.run([1], Sampling(9, 0.0, 0))


@pytest.mark.slow
def test_quick_takes_less_than_a_minute() -> None:
    started = time.monotonic()
    assert bench("--quick").returncode == 0
    assert time.monotonic() - started < 60
