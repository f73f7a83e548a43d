"""Nothing goes over the network but what was asked for: decoding with connections forbidden, and fetching offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_llm import tiny_gguf

from outrider.errors import ModelError
from outrider.models.checkpoints import hub
from outrider.models.checkpoints.checkpoint import open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress

FORBIDDEN = """
import socket, sys
from outrider.cli.main import main

def refused(self, address, *rest):
    raise AssertionError(f"somebody connects to {address}")

def looked_up(host, *rest, **more):
    raise AssertionError(f"somebody looks up {host}")

socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refused
socket.getaddrinfo = socket.gethostbyname = looked_up
main()
"""


def test_generating_connects_nowhere(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path)
    environment = {**os.environ, "OUTRIDER_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hub")}
    for name in ("HF_HUB_OFFLINE", "OUTRIDER_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        environment.pop(name, None)
    command = [
        sys.executable,
        "-c",
        FORBIDDEN,
        "generate",
        "hello",
        "--raw",
        "--model",
        str(model),
        "--max-tokens",
        "8",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "somebody" not in done.stderr


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What the hub's library is asked for; it has nothing that is not here."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        calls.append({"repository": repository, **options})
        if options["local_files_only"]:
            raise FileNotFoundError("not in the cache")
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    for name in ("HF_HUB_OFFLINE", "OUTRIDER_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_hub_ids_may_be_pinned(asked: list[dict[str, Any]]) -> None:
    for model in ("org/name", "org/name@1f2e3d4", "org/name@refs/pr/1"):
        with pytest.raises(ModelError, match=r"no config\.json"):  # an empty folder
            open_checkpoint(model, SilentProgress())
    assert [(call["repository"], call["revision"]) for call in asked] == [
        ("org/name", None),
        ("org/name", "1f2e3d4"),
        ("org/name", "refs/pr/1"),
    ]
    with pytest.raises(ModelError, match="no model 'org/name@'"):
        open_checkpoint("org/name@", SilentProgress())


@pytest.mark.parametrize("variable", ["OUTRIDER_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_fetched(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelError, match=r"org/name@v1 is not in the hub's cache"):
        open_checkpoint("org/name@v1", SilentProgress())
    with pytest.raises(ModelError, match=r"forbids to fetch it; give its file"):
        hub.pull("smollm2-135m", None, SilentProgress())
    monkeypatch.setenv(variable, "0")
    assert not hub.offline()
