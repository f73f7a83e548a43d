"""Drafters of people's own: what is wrong with one is said in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView
from outrider.drafters.router import RouterDrafter
from outrider.errors import DrafterError


class Miscounting(Drafter):
    name = "miscounting"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft()] * (len(requests) + 1)


def test_a_draft_for_each_request_is_asked_for() -> None:
    request: Any = SimpleNamespace(id=1, tokens=[1, 2], prompt_length=2, speculation=Speculation())
    drafter = RouterDrafter(Miscounting(), {})
    drafter.open(request)
    with pytest.raises(DrafterError, match="'miscounting' proposed 2 drafts for 1 requests; propose must return one"):
        drafter.propose([request], [Budget(4, 4)])
