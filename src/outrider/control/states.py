"""What the automatic controller knows of each running request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.control.acceptance import Leanings
from outrider.control.chains import ChainState
from outrider.control.ledger import Ledger
from outrider.control.paid_state import Candidate, PaidState
from outrider.core.draft import Draft
from outrider.core.request import RequestView

EMPTY = Draft()


@dataclass(slots=True)
class State:
    """Of one request. Only their own parts change `chain`, `paid` and `leanings`."""

    chain: ChainState
    promised: bool
    """Whether a draft is owed in its next step: what the caller predicts is tried once, whatever is believed of it."""
    ledger: Ledger = field(default_factory=Ledger)
    paid: PaidState = field(default_factory=PaidState)
    leanings: Leanings = field(default_factory=dict)
    proposed: Draft = EMPTY
    """In the step under way: everything, also what was not worth a row."""
    nodes: int = 0
    expected: float = 0.0
    """Of its draft in the step under way: its size, and the tokens expected of it."""

    def candidate(
        self, request: RequestView, name: str | None, limit: int, found: Draft, chances: Sequence[float]
    ) -> Candidate:
        """For a drafter of that name to be paid for at most `limit` nodes beside what was found."""
        # What is drawn to be rejected or not may not be dropped, nor joined with what was found.
        exclusive = request.params.verify == "rejection"
        return Candidate(self.paid, self.ledger, name, limit, found, chances, exclusive)

    def rest(self, steps: int) -> None:
        """So many plain steps that nothing was thought about are over."""
        self.ledger.rest(steps)
        self.paid.pause(steps)

    def clear(self) -> None:
        """No step is under way."""
        self.proposed, self.nodes, self.expected = EMPTY, 0, 0.0


class States:
    """Of all requests; one that ends must be forgotten."""

    def __init__(self, newcomer: Callable[[RequestView], State]) -> None:
        """`newcomer`: what is known of a request that was never seen."""
        self._newcomer = newcomer
        self._known: dict[int, State] = {}

    def of(self, requests: Sequence[RequestView]) -> list[State]:
        known = self._known
        try:
            return [known[request.id] for request in requests]
        except KeyError:  # a newcomer
            for request in requests:
                if request.id not in known:
                    known[request.id] = self._newcomer(request)
            return [known[request.id] for request in requests]

    def get(self, request: RequestView) -> State | None:
        return self._known.get(request.id)

    def forget(self, request: RequestView) -> State | None:
        """What was known of it."""
        return self._known.pop(request.id, None)

    def __iter__(self) -> Iterator[State]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)
