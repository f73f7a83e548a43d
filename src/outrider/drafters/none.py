"""The drafter that proposes nothing: plain decoding, through the same code as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.types import Budget, Commit, Draft, DraftsThere, SequenceView


class NoDrafter:
    """Every draft is empty."""

    name = "none"

    def open(self, sequence: SequenceView) -> None:
        pass

    def look_up(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose(sequences, budgets)

    def paid(self, sequence: SequenceView) -> str | None:
        return None

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft() for _ in sequences]

    @property
    def there(self) -> DraftsThere:
        return DraftsThere()

    def observe(self, commits: Sequence[Commit]) -> None:
        pass

    def close(self, sequence: SequenceView) -> None:
        pass
