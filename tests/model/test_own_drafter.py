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


class Unopened(Drafter):
    """Cannot take a request."""

    name = "unopened"
    broken = True

    def open(self, request: RequestView) -> None:
        if self.broken:
            raise RuntimeError("no room for another")

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft()] * len(requests)


def test_one_that_cannot_be_opened_says_why_itself(tmp_path: Path) -> None:
    drafter = Unopened()
    llm = tiny_llm(tmp_path, drafter=drafter)
    with pytest.raises(RuntimeError, match=r"^no room for another$"):
        llm.generate(["abcabc", "cba"], PARAMS)
    assert not llm.engine.leaks()
    drafter.broken = False
    plain, fast = (llm.generate("abcabc", PARAMS, speculate=speculate)[0] for speculate in (False, True))
    assert fast.token_ids == plain.token_ids
