"""The comparison with vLLM notices when our drafts were cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.draft import Draft
from outrider.core.request import StepTrace


def step(drafted: int, accepted: int, token: int | None = 5) -> StepTrace:
    draft = Draft(tuple(range(drafted)), tuple(range(-1, drafted - 1)), tuple([0.5] * drafted), "head")
    return StepTrace(draft, tuple(range(accepted)), token, "target")


def test_drafts_that_were_cut_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from vllm_head import Tally, cut_drafts

    whole = [step(0, 0), step(5, 3), step(5, 5), step(4, 4)]  # 11 tokens before the last step, 16 asked for
    assert cut_drafts(whole, 5, 16) == 0
    assert cut_drafts(whole, 5, 17) == 1
    assert cut_drafts([step(1, 1), step(1, 0), step(1, 1, None)], 5, 128) == 3
    total = Tally(short=1)
    total.add(Tally(short=2))
    assert total.report()["short"] == 3
