"""A server whose GPU is lost begins anew in its own place; one request without scores fails by itself."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from live_server import PATIENCE, live_server, soon
from tiny_llm import tiny_gguf, tiny_llm

from outrider.errors import DeviceLost
from outrider.server import restart
from outrider.server.restart import Past

SCRIPT = Path(__file__).parents[1] / "support" / "lost_server.py"
ASKED: list[dict[str, Any]] = [
    {"prompt": "One, two, three", "max_tokens": 60, "temperature": 0, "ignore_eos": True},
    {"prompt": "Colours are", "max_tokens": 60, "temperature": 1, "seed": 3, "ignore_eos": True},
    {"prompt": "a b c d", "max_tokens": 60, "temperature": 0.7, "top_p": 0.9, "seed": 4, "ignore_eos": True},
]


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it listens."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    pool = ThreadPoolExecutor(1)
    assert process.stderr is not None
    lines = iter(process.stderr)
    try:
        found = None
        for line in lines:
            if found := re.search(r"is served at (http://\S+)", line):
                break
        assert found, "it ended"
        pool.submit(lambda: [None for _ in lines])  # or it waits for somebody to read
        yield process, found[1]
    finally:
        process.terminate()
        process.wait(PATIENCE)
        pool.shutdown()


def test_a_lost_gpu_costs_a_restart_and_no_token(tmp_path: Path) -> None:
    model, trigger = tiny_gguf(tmp_path), tmp_path / "lost"
    options = ["--dtype", "fp32", "--drafter", "none", "--port", "0", "--max-batch", "4"]
    with served(str(trigger), "1", "serve", "--model", str(model), *options) as (process, address):
        client = httpx.Client(base_url=address, timeout=PATIENCE)

        def ask(body: dict[str, Any]) -> httpx.Response:
            return client.post("/v1/completions", json=body)

        undisturbed = [ask(body).json()["choices"][0]["text"] for body in ASKED]
        assert all(undisturbed)
        trigger.with_suffix(".slow").touch()
        with ThreadPoolExecutor(len(ASKED)) as pool:
            with client.stream("POST", "/v1/completions", json={**ASKED[0], "stream": True}) as stream:
                events = stream.iter_lines()
                running = [pool.submit(ask, body) for body in ASKED]
                next(line for line in events if line)
                assert soon(lambda: running_at(address) == 1 + len(ASKED))
                trigger.touch()
                told = [line.removeprefix("data: ") for line in events if line]
            answers = [each.result() for each in running]
        assert json.loads(told[-2])["error"]["code"] == "unavailable"
        assert told[-1] == "[DONE]"
        for answer in answers:
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert "illegal memory access" in answer.json()["error"]["message"]
        assert [patient(address, body) for body in ASKED] == undisturbed
        assert process.poll() is None, "the same process, by its number"
        metrics = httpx.get(f"{address}/metrics", timeout=PATIENCE).text
        assert "outrider:server_restarts_total 1.0" in metrics
        assert "vllm:server_restarts" not in metrics


def running_at(address: str) -> int:
    found = re.search(
        r"outrider:num_requests_running{.*} (\d+)", httpx.get(f"{address}/metrics", timeout=PATIENCE).text
    )
    assert found
    return int(found[1])


def patient(address: str, body: dict[str, Any]) -> str:
    """What a client gets that asks again when it is told to; the server is never away."""
    for _ in range(1000):
        try:
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=PATIENCE)
        except (httpx.ReadError, httpx.RemoteProtocolError):  # accepted as the old server ended
            continue
        if answer.status_code == 200:
            return str(answer.json()["choices"][0]["text"])
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"]
        time.sleep(0.2)
    raise AssertionError("it never came back")


def test_a_server_that_is_lost_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(restart, "_inherit", lambda files: begun.append(files))
    monkeypatch.setattr(os, "execve", lambda *command: begun.append(command))
    now = time.time()
    with pytest.raises(DeviceLost):
        Past((now - 3, now - 2, now - 1)).begin_anew(DeviceLost("gone"), [])
    assert not begun
    with socket.socket() as listener:
        Past((now - 3000, now - 2, now - 1)).begin_anew(DeviceLost("gone"), [listener])
        files, (program, command, environment) = begun
        assert files == [listener.fileno()]
    assert program == sys.executable
    assert command == [sys.executable, *sys.orig_argv[1:]]
    assert len(json.loads(environment["OUTRIDER_RESTARTED"])["begun"]) == 4


def test_what_was_left_for_another_process_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {"process": os.getpid() + 1, "begun": [1.0], "files": [0]}
    monkeypatch.setenv("OUTRIDER_RESTARTED", json.dumps(left))
    assert Past.of_process() == Past()
    assert "OUTRIDER_RESTARTED" not in os.environ


def test_a_request_without_scores_is_a_500_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm(tmp_path, dtype="fp32", drafter="none", max_batch=4)
    with live_server(llm) as live:
        undisturbed = [live.post("/v1/completions", **body).json()["choices"][0]["text"] for body in ASKED]
        bad = {"prompt": "the bad one", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        marked = llm.tokenizer.encode("the bad one")
        forward = llm.model.forward

        def spoiled(batch: Any) -> torch.Tensor:
            logits, row = forward(batch), 0
            running = {s.slot: s for s in llm.engine.scheduler.running}
            for rows in batch:
                wanted = len(rows.tokens) if rows.logits is None else len(rows.logits)
                its = running[rows.slot]
                if its.tokens[: len(marked)] == marked and its.generated > 5:
                    logits[row : row + wanted, 3] = torch.nan
                row += wanted
            return logits

        monkeypatch.setattr(llm.model, "forward", spoiled)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(live.post, "/v1/completions", **body) for body in (bad, *ASKED)]
            failed, *answers = [each.result() for each in asked]
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
        assert "not numbers" in failed.json()["error"]["message"]
        assert [answer.json()["choices"][0]["text"] for answer in answers] == undisturbed
        with live.http.stream("POST", "/v1/completions", json={**bad, "stream": True}) as stream:
            told = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
        assert "not numbers" in json.loads(told[-2])["error"]["message"]
        assert soon(lambda: live.metric("request_errors_total") == 2)
        assert live.metric("gpu_restarts_total") == 0
        assert live.http.get("/health").status_code == 200
