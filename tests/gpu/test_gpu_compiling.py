"""Kernels compiled by processes of their own, for a GPU that is not at hand: we find what they have stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

try:
    PTXAS = Path(triton.knobs.nvidia.ptxas.path).exists()
except RuntimeError:
    PTXAS = False

pytestmark = pytest.mark.skipif(not PTXAS, reason="this Triton comes without an assembler for NVIDIA's GPUs")
FEW = ["count_kernel", "skip_kernel"]


def run(*command: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    run = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    program = Path(__file__).parents[1] / "support" / "compiled_aside.py"
    lines = run(str(program), str(tmp_path_factory.mktemp("caches"))).splitlines()
    return {what: told for line in lines for what, told in json.loads(line).items()}


def test_what_processes_compile_is_found_where_we_look_for_it(told: dict[str, dict[str, Any]]) -> None:
    """Also what is written in Gluon; without PyTorch, which they would import for longer than they compile."""
    by_them = told["compile"]
    assert {"accept_kernel", "place_kernel", "stream_hopper_kernel"} <= set(by_them["launched"])
    assert by_them["ours"] == []
    assert by_them["loaded"] == len(by_them["launched"])
    assert by_them["workers"] == 3
    assert by_them["ended"]


def test_nobody_is_started_for_what_is_stored(told: dict[str, dict[str, Any]]) -> None:
    stored = told["are not needed"]
    assert stored["launched"] == told["compile"]["launched"]
    assert stored["loaded"] == len(stored["launched"])
    assert (stored["ours"], stored["workers"]) == ([], 0)


@pytest.mark.parametrize("what", ["die", "talk nonsense", "do not listen", "hang", "are killed", "fail"])
def test_we_compile_what_processes_do_not(told: dict[str, dict[str, Any]], what: str) -> None:
    assert told[what] == {"launched": FEW, "loaded": 2, "ours": FEW, "workers": 2, "ended": True}


@pytest.mark.parametrize("what", ["cannot be started", "would gain nothing"])
def test_we_compile_where_there_are_no_processes(told: dict[str, dict[str, Any]], what: str) -> None:
    assert told[what] == {"launched": FEW, "loaded": 2, "ours": FEW, "workers": 0, "ended": True}


def test_other_threads_launch_and_compile_while_we_look(told: dict[str, dict[str, Any]]) -> None:
    """Another model may run in this process: what it launches is not taken for ours, nor refused."""
    assert told["meanwhile"] == {"kept": [False], "compiled": FEW}


def test_without_assertions_all_is_compiled_too() -> None:
    program = """
from types import SimpleNamespace
from triton.runtime import jit
from outrider.models.cuda import compile_worker, compiling
class Asked:
    @property
    def cache_key(self): print("key")
    @property
    def run(self): print("run")
    def preload(self, what): return self
compiling._load(Asked(), "")
jit.DependenciesFinder._update_hash = lambda self, called: None
compile_worker.settle_keys()
jit.DependenciesFinder._update_hash(None, Asked())
"""
    assert run("-O", "-c", program) == "run\nkey\n"


def test_they_are_started_where_no_locale_knows_the_letters_of_a_path() -> None:
    program = """
import sys
from outrider.models.cuda import compiling
sys.path.append("/m\\u00fcller")
worker = compiling._Worker({})
worker.end()
print("ended")
"""
    assert run("-c", program, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == "ended\n"


def test_no_kernel_imports_pytorch() -> None:
    everything = """
import sys, pkgutil, importlib
from outrider.models.cuda import compile_worker, kernels
for each in pkgutil.iter_modules(kernels.__path__):
    importlib.import_module(f"{kernels.__name__}.{each.name}")
print("torch" in sys.modules)
"""
    assert run("-c", everything) == "False\n"
