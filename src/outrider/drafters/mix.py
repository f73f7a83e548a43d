"""Two drafters for every request: what is looked up where text repeats, a head's guesses beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from outrider.drafters.head import HeadDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.types import Budget, Commit, Draft, DraftsThere, Rows, SequenceView


class MixDrafter:
    """Looking up costs next to nothing, so it is always done; the head is asked (`propose`) where it is expected to add
    to what was found. The controller joins the two trees. The head reads the target's features whoever drafted, so it
    is ready at any step."""

    name = "head+suffix"

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter) -> None:
        self._head, self._suffix = head, suffix

    @property
    def head(self) -> HeadDrafter:
        return self._head

    @property
    def there(self) -> DraftsThere | None:
        return self._head.there

    def continuation(self, sequence: SequenceView, count: int) -> Draft:
        return self._suffix.continuation(sequence, count)

    @property
    def networks(self) -> Mapping[str, object]:
        return self._head.networks

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        return self._head.acceptance

    def open(self, sequence: SequenceView) -> None:
        self._head.open(sequence)
        self._suffix.open(sequence)

    def reach(self, sequence: SequenceView, source: int, common: int) -> int:
        return self._head.reach(sequence, source, common)

    def open_from(self, sequence: SequenceView, source: int, length: int, keep: bool) -> None:
        self._head.open_from(sequence, source, length, keep)
        self._suffix.open(sequence)

    @property
    def held(self) -> int:
        return max(self._head.held, self._suffix.held)

    def close(self, sequence: SequenceView) -> None:
        self._head.close(sequence)
        self._suffix.close(sequence)

    def read(self, sequences: Sequence[SequenceView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        self._head.read(sequences, batch, features, soon)

    def look_up(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]:
        return self._suffix.look_up(sequences, budgets)

    def paid(self, sequence: SequenceView) -> str | None:
        return self._head.name

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]:
        return self._head.propose(sequences, budgets)

    def observe(self, commits: Sequence[Commit]) -> None:
        self._head.observe(commits)
        self._suffix.observe(commits)
