"""The drafter that proposes nothing: plain decoding, through the same code as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.draft import Budget, Draft
from outrider.core.request import RequestView
from outrider.drafters.lookup import LookupDrafter


class NoDrafter(LookupDrafter):
    """Every draft is empty."""

    name = "none"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft() for _ in requests]
