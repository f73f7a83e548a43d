"""What the command line says about an answer, without running a model."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from outrider.cli import trace
from outrider.cli.attribution import Attribution
from outrider.cli.options import Settings
from outrider.cli.report import verdict
from outrider.core.draft import Draft
from outrider.core.request import Completion, StepTrace
from outrider.errors import InvalidRequest
from outrider.version import __version__


def test_attribution_follows_tokens_through_characters_and_held_back_text() -> None:
    pieces = {0: b"a\xe2\x82", 1: b"\xacb", 2: b"END", 3: b"\xe2"}
    owners = Attribution(pieces.__getitem__, strips_leading_space=False)
    # Token 0 ends inside a character, which token 1 completes.
    assert owners.take([0, 1], ["target", "suffix"], "a€b") == [("a", "target"), ("€b", "suffix")]
    # Text held back is attributed when it is shown, in a later step.
    assert owners.take([2], ["ngram"], "") == []
    assert owners.take([3], ["target"], "END\ufffd") == [("END", "ngram"), ("\ufffd", "target")]


def test_attribution_drops_the_space_the_engine_drops() -> None:
    owners = Attribution({0: b" a", 1: b" b"}.__getitem__, strips_leading_space=True)
    assert owners.take([0, 1], ["target", "suffix"], "a b") == [("a", "target"), (" b", "suffix")]


def completion(tokens: list[int], seconds: float) -> Completion:
    return Completion("", tokens, "length", ["target"] * len(tokens), 1, 0, len(tokens), 0, 0, seconds, 0.0)


@pytest.mark.parametrize(
    ("ours", "plain", "verify", "said"),
    [
        (completion([1] * 128, 1.0), completion([1] * 128, 2.4), "coupled", "2.4x faster, same 128 tokens"),
        (completion([1], 2.0), completion([1], 1.0), "coupled", "2.0x slower, same 1 token"),
        (
            completion([1, 2], 1.0),
            completion([1, 2], 1.01),
            "coupled",
            "as fast as plain decoding, same 2 tokens",
        ),
        (
            completion([1, 2, 3], 1.0),
            completion([1, 3, 3], 2.0),
            "coupled",
            "2.0x faster, DIFFERENT from token 2",
        ),
        (completion([1, 2], 1.0), completion([1], 1.0), "rejection", "2.0x faster, DIFFERENT from token 2"),
    ],
)
def test_verdict_says_what_is_true(ours: Completion, plain: Completion, verify: str, said: str) -> None:
    assert verdict(ours, plain, verify).startswith(said)


def test_trace_draws_trees() -> None:
    draft = Draft([10, 11, 12, 13], [-1, 0, 0, 2], [1.0] * 4, "suffix")
    shown = io.StringIO()
    table = trace.table([StepTrace(draft, (0, 2), 99, "recovered")], lambda token: f"t{token}")
    Console(width=80, file=shown).print(table)
    rows = [re.sub(" +", " ", line).strip() for line in shown.getvalue().splitlines() if "t1" in line]
    assert rows == ["1 t10 t10 t12 t99 (recovered) suffix", "├ t11", "└ t12 t13"]


def demo() -> ModuleType:
    """examples/demo.py."""
    path = Path(__file__).parents[2] / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_never_boasts_of_being_slower() -> None:
    verdict = demo().verdict
    assert verdict(completion([1] * 9, 1.0), completion([1] * 9, 1.8), "coupled", "") == "1.8x faster, same 9 tokens"
    said = verdict(completion([1] * 9, 1.2), completion([1] * 9, 1.0), "coupled", "a row costs 0.6 of a pass here")
    assert "slower" not in said
    assert "does not pay" in said
    assert "9.0 tokens/s, same 9 tokens" in said
    assert said.endswith("A row costs 0.6 of a pass here.")


def test_the_demo_has_its_prompt_and_a_number_format() -> None:
    assert "print_report" in demo().PROMPT.read_text(encoding="utf-8")
    assert demo().dtype_here() in ("auto", "int8")


def test_logprobs_that_nobody_would_see_are_refused() -> None:
    assert Settings(logprobs=2, json=True).sampling_params().logprobs == 2
    with pytest.raises(InvalidRequest, match="--json"):
        Settings(logprobs=2).sampling_params()


def test_the_package_runs_as_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "outrider", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"outrider {__version__}\n"
