"""What docs/extending.md shows: its drafter works as it stands, its processor once its changes are made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_llm import tiny_gguf, tiny_llm

from outrider import SamplingParams

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafter(tmp_path: Path, temperature: float) -> None:
    names: dict[str, Any] = {}
    (source,) = blocks("python")
    exec(source, names)
    llm = tiny_llm(tmp_path, drafter=names["EchoDrafter"](), draft_length=3)
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=2, ignore_eos=True)
    prompts = ["abcabcabc", "hello hello"]
    plain, fast = (llm.generate(prompts, params, speculate=speculate) for speculate in (False, True))
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert all(c.sources["echo"].drafted for c in fast)


def apply(patch: str, root: Path) -> None:
    """In each hunk, the lines that are there already stand in a row in the file; the others come between them."""
    head, _, body = patch.partition("\n")
    path = root / head.removeprefix("--- ")
    text = path.read_text(encoding="utf-8")
    for hunk in body.split("@@\n"):
        lines = hunk.splitlines()
        before = "\n".join(line[1:] for line in lines if line.startswith(" "))
        assert text.count(before) == 1, f"{path.name} has no single place like:\n{before}"
        text = text.replace(before, "\n".join(line[1:] for line in lines))
    path.write_text(text, encoding="utf-8")


SCRIPT = """
import sys
from outrider import LLM, SamplingParams
llm = LLM(sys.argv[1], drafter="suffix", draft_length=4, max_batch=3)
for temperature in (0.0, 1.0):
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=5, ignore_eos=True, logit_bias={40: 100.0})
    from dataclasses import replace
    free = llm.generate("hello", params)[0].token_ids
    assert any(a == b for a, b in zip(free, free[1:])), "it says the same twice unless it is kept from it"
    strict = replace(params, no_doubles=True)
    plain, fast = (llm.generate("hello", strict, speculate=s)[0] for s in (False, True))
    assert fast.token_ids == plain.token_ids
    assert not any(a == b for a, b in zip(plain.token_ids, plain.token_ids[1:]))
print("as told")
"""


def test_the_processor(tmp_path: Path) -> None:
    copied = shutil.ignore_patterns("model.safetensors", "__pycache__", "playground")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=copied)
    for patch in blocks("diff"):
        apply(patch, tmp_path)
    model = tiny_gguf(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)],
        env={"PYTHONPATH": str(tmp_path / "src"), "OUTRIDER_CACHE": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "as told", done.stderr[-2000:]
