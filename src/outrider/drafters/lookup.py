"""What drafters that make no passes have in common."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import DevicePart, Drafter
from outrider.core.request import RequestView


class LookupDrafter(Drafter):
    """All that it proposes is looked up; beside it a device may take plain steps, or verify what was found."""

    looks_up = True

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(requests, budgets)

    def paid(self, request: RequestView) -> str | None:
        return None

    @property
    def device_part(self) -> DevicePart:
        return DevicePart()
