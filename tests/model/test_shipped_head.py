"""The head that comes with the package: small enough, used by default, exact, and worth using."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.control.controller import FixedLength
from outrider.drafters.mix import MixDrafter
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.shipped import shipped_head

ROOT = Path(__file__).parents[2]
PROMPTS = (
    "Why is the sky blue?",
    "Tom has 12 apples. He gives away 5 and buys 8 more. How many apples does he have?",
    "Translate into English: Die Katze schläft auf dem Sofa.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = shipped_head("smollm2-135m")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu", max_batch=3, max_context=512)


def test_it_is_whole_and_small(folder: Path) -> None:
    head = HeadCheckpoint.read(folder)
    assert head.about["target"] == "smollm2-135m"
    assert head.about["command"].startswith("outrider train")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 16 << 20
    assert shipped_head("no-such-model") is None
    assert shipped_head("") is None
    assert shipped_head(str(folder)) is None, "a model's own folder is no head for it"


def test_the_wheel_takes_it_along(folder: Path) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["outrider"]
    root = ROOT / "src" / "outrider"
    packed = {path for pattern in packages for path in root.glob(pattern)}
    assert {path for path in folder.iterdir() if path.is_file()} <= packed


def test_it_is_used_by_default(llm: LLM) -> None:
    assert isinstance(llm.drafter, MixDrafter)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_text_in_fewer_passes(llm: LLM, temperature: float) -> None:
    params = SamplingParams(max_tokens=32, temperature=temperature, seed=7, ignore_eos=True)
    prompts = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    plain = llm.generate(prompts, params, speculate=False)
    for way in (llm, llm.with_drafter(llm.drafter, FixedLength(16))):
        drafted = way.generate(prompts, params)
        assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
    per_pass = sum(len(each.token_ids) for each in drafted) / sum(each.steps for each in drafted)
    assert per_pass > 1.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_context_is_filled_to_its_end(temperature: float) -> None:
    """Looking further ahead than it proposes, the head must not run out of its own cache."""
    llm = LLM("smollm2-135m", drafter="head", draft_length=16, max_batch=1, max_context=48)
    prompt = llm.encode_chat([{"role": "user", "content": "Hello"}])
    params = SamplingParams(max_tokens=None, temperature=temperature, seed=1, ignore_eos=True)
    done = llm.generate([prompt], params)[0]
    assert len(prompt) + len(done.token_ids) == 48
    assert done.token_ids == llm.generate([prompt], params, speculate=False)[0].token_ids
    assert done.accepted > 0
