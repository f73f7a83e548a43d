"""The drafter that proposes nothing: plain decoding, through the same code as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Commit, DraftsThere
from outrider.core.request import RequestView


class NoDrafter:
    """Every draft is empty."""

    name = "none"

    def open(self, request: RequestView) -> None:
        pass

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(requests, budgets)

    def paid(self, request: RequestView) -> str | None:
        return None

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft() for _ in requests]

    @property
    def there(self) -> DraftsThere:
        return DraftsThere()

    def observe(self, commits: Sequence[Commit]) -> None:
        pass

    def close(self, request: RequestView) -> None:
        pass
