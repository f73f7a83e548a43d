"""The scripts in examples/ run as they are, on a tiny model, and do what they say."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import live_server
from tiny_llm import tiny_gguf, tiny_llm

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[[str, str], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A script with its argument, as the command line runs it; what it prints."""

    def ran(name: str, argument: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, argument])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return ran


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("model")))


def test_batch(run: Run, model: str) -> None:
    assert run("batch.py", model).count("→") == 4


def test_streaming(run: Run, model: str) -> None:
    told = run("streaming.py", model)
    first, last = (told.index(word) for word in ("rivers: ", "stones: "))
    assert max(first, last) < told.rindex("rivers: "), "they come by turns"


def test_own_drafter(run: Run, model: str) -> None:
    told = re.search(r"(\d+) passes at first, (\d+) the second time", run("own_drafter.py", model))
    assert told is not None
    assert int(told[1]) > 3 * int(told[2])


def test_structured_output(run: Run) -> None:
    """By the real model: a random one fills the page with blanks."""
    pytest.importorskip("llguidance")
    written, _, passes = run("structured_output.py", "smollm2-135m").rpartition("}")
    assert set(json.loads(f"{written}}}")) == {"city", "weather", "temperature_celsius"}
    assert "passes" in passes


def test_async_client(run: Run, tmp_path: Path) -> None:
    llm = tiny_llm(tmp_path, template="{% for m in messages %}{{ m.content }}{% endfor %}", max_batch=4)
    with live_server(llm) as live:
        told = run("async_client.py", live.url)
    assert all(f"Name a {thing}." in told for thing in ("river", "mountain", "lake"))


def test_the_readme_names_every_example() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+\.py)\)", page)) == scripts
