"""Other programs as arms: real processes, a real server on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import environments
from outrider.bench.endpoint import EndpointArm
from outrider.bench.names import parse
from outrider.bench.peer import PeerArm
from outrider.bench.timing import ArmUnavailable, Sampling, Timing
from outrider.errors import OutriderError
from outrider.models.checkpoints.checkpoint import Checkpoint


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    folder = checkpoint.path
    return {
        "folder": str(folder), "gguf": str(folder / "model.gguf"), "dtype": "fp32", "device": "cpu", "threads": 1,
        "max_context": 256,
    }  # fmt: skip


def _prompt(checkpoint: Checkpoint) -> list[int]:
    text = "Say this: the red fox, the red fox, the red fox."
    return checkpoint.tokenizer.apply_chat_template([{"role": "user", "content": text}])


def _answers(arm: PeerArm, prompt: Sequence[int]) -> Timing:
    try:
        arm.prepare()
        assert arm.versions
        assert len(arm.pids) == 1
        return arm.run(prompt, Sampling(16, 0.0, 0))
    finally:
        arm.close()


@pytest.mark.slow
def test_lookup_of_a_peer_gains_several_tokens_a_pass(default_checkpoint: Checkpoint) -> None:
    arm = PeerArm(parse("transformers-lookup"), _config(default_checkpoint))
    timing = _answers(arm, _prompt(default_checkpoint))
    assert timing.token_ids is not None
    assert timing.passes is not None
    assert timing.tokens == len(timing.token_ids) == sum(timing.passes) == 16
    assert len(timing.passes) < 16
    assert timing.prefill_seconds > 0
    assert timing.decode_seconds > 0
    assert arm.pids == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-lookup", "openvino", "openvino-lookup"])
def test_installed_peers_answer(name: str, default_checkpoint: Checkpoint) -> None:
    if environments.python_of(parse(name).program) is None:
        pytest.skip(f"{name} is not installed")
    timing = _answers(PeerArm(parse(name), _config(default_checkpoint)), _prompt(default_checkpoint))
    assert timing.passes is not None
    assert timing.tokens == sum(timing.passes) == 16
    assert ("lookup" in name) == (len(timing.passes) < 16)


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


@pytest.mark.slow
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
        timing = arm.run(_prompt(default_checkpoint), Sampling(9, 0.0, 0))
        assert (timing.tokens, timing.token_ids, timing.passes) == (9, None, None)
        assert arm.versions == {"model": "served"}
    finally:
        server.kill()
        server.communicate()
    with pytest.raises(ArmUnavailable, match="is the server up"):
        arm.run([1], Sampling(9, 0.0, 0))
