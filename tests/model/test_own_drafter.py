"""An LLM with somebody's own drafter that is at fault: whoever asked is told, nothing else suffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_llm import VOCAB, tiny_llm

from outrider import Budget, Draft, Drafter, RequestView, SamplingParams
from outrider.control.controller import FixedLength
from outrider.errors import DrafterError

PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=4, ignore_eos=True)


class Beyond(Drafter):
    """Proposes a token that there is not."""

    name = "beyond"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft([VOCAB], [-1], [0.9], self.name) for _ in requests]


@pytest.mark.parametrize("way", ["LLM", "with_drafter"])
def test_a_token_that_there_is_not_is_refused(tmp_path: Path, way: str) -> None:
    plain = tiny_llm(tmp_path)
    expected = plain.generate("abcabc", PARAMS, speculate=False)[0].token_ids
    mine = plain.with_drafter(Beyond(), FixedLength(4)) if way != "LLM" else tiny_llm(tmp_path, drafter=Beyond())
    with pytest.raises(DrafterError, match=f"^drafter 'beyond': token {VOCAB} is not among the target's {VOCAB}$"):
        mine.generate("abcabc", PARAMS)
    assert not mine.engine.leaks()
    assert plain.generate("abcabc", PARAMS)[0].token_ids == expected
    if way == "LLM":
        assert mine.generate("abcabc", PARAMS, speculate=False)[0].token_ids == expected
