"""Every example of docs/server.md, run as it stands against a server started as it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import playground_site
import pytest

from outrider.server.keys import KeyFile

ROOT = Path(__file__).parents[2]
PATIENCE = 600
"""Seconds an example may take: the longest answer fills what the context leaves."""


class Block(NamedTuple):
    language: str
    text: str

    def with_address(self, address: str) -> str:
        """The example for a server elsewhere: that is all that is changed."""
        return self.text.replace("http://127.0.0.1:8000/", address).replace("http://127.0.0.1:8000", address[:-1])


PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
BLOCKS = [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]


def commands() -> list[str]:
    """Everything typed into a shell, continued lines joined."""
    typed = "".join(block.text for block in BLOCKS if block.language == "sh").replace("\\\n", " ")
    return [line for line in typed.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("fastapi", reason='the server is an extra: pip install "outrider[serve]"')
    started = [shlex.split(line, comments=True) for line in commands() if line.startswith("outrider serve")]
    assert len(started) == 1, "the page starts one server"
    with playground_site.live(*started[0][2:]) as address:
        yield address


def test_nothing_on_the_page_is_left_out() -> None:
    """A new kind of example needs a test here before it is shown to anybody."""
    assert {block.language for block in BLOCKS} == {"sh", "python", "json", "toml"}
    assert {shlex.split(line, comments=True)[0] for line in commands()} == {"pip", "outrider", "curl"}
    assert PAGE.count("```") == 2 * len(BLOCKS)


def test_the_file_of_keys_can_be_read(tmp_path: Path) -> None:
    (example,) = (block.text for block in BLOCKS if block.language == "toml")
    (tmp_path / "keys.toml").write_text(example)
    assert KeyFile(tmp_path / "keys.toml").names == ["ann", "ops"]


def test_what_is_installed_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"outrider\[(\w+)\]", PAGE)
    assert named
    assert set(named) <= set(extras)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(address: str) -> None:
    lines = [line for line in commands() if line.startswith("curl")]
    assert lines
    for line in lines:
        command = Block("sh", line).with_address(address)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stdout.rstrip().endswith("data: [DONE]"), done.stdout[-500:]
        assert '"finish_reason":"' in done.stdout.replace(" ", "")
        assert '"error"' not in done.stdout


def test_python(address: str) -> None:
    """One after the other in one session, as somebody who reads the page would type them."""
    session = "\nprint('\\n----')\n".join(block.with_address(address) for block in BLOCKS if block.language == "python")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", session]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("----")
    assert len(said) == sum(block.language == "python" for block in BLOCKS)
    assert all(each.strip() for each in said)


def ask(address: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 12, **fields}
    request = urllib.request.Request(
        f"{address}v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        whole: dict[str, Any] = json.load(answer)
    return whole


def shape(value: Any) -> Any:
    """Names and kinds; whole numbers count as numbers."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return "list" if isinstance(value, list) else "number" if isinstance(value, int | float) else type(value).__name__


def test_fragments(address: str) -> None:
    """What is shown of a request is taken, and what is shown of an answer is there."""
    shown = [json.loads(block.text) for block in BLOCKS if block.language == "json"]
    assert len(shown) == 2
    asked, told = sorted(shown, key=lambda fragment: "metrics" in fragment)
    answer = ask(address, **asked)
    assert "outrider" in answer["choices"][0], "the trace it asks for"
    assert {name: shape(answer[name]) for name in told} == shape(told)
