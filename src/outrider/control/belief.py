"""What a controller believes, for people: on /metrics, in traces and in the playground."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Belief(NamedTuple):
    """As of the last step. Costs are in plain passes of one request, which is what a token costs without drafts."""

    known: bool = True
    """Whether costs are known yet: until then decoding is plain."""
    measured: bool = False
    """Whether they were measured, or are guessed at and learned."""
    row: float = 0.0
    """What verifying one more token costs."""
    token: float = 1.0
    """What a token costs now: 1 without drafts, less with good ones."""
    drafting: Mapping[str, float] = {}
    """By drafter that makes passes: what one more level of a draft costs."""
    acceptance: Mapping[str, float] = {}
    """By drafter: how often a token that follows right ones has lately been right."""
    best: float = 0.0
    """The likeliest token proposed in the last step."""
    ledger: float = 0.0
    """What drafting may still lose, for the running request that may lose least."""
    drafted: int = 0
    """Nodes drafted in the last step."""
    passes: Mapping[int, float] = {}
    """By rows: what a pass of so many costs. Empty where a device's steps are timed as a whole."""

    @property
    def why(self) -> str:
        """Why so much was drafted, in a sentence."""
        if not self.known:
            return "what passes cost on this machine is still being measured"
        worth = f"a row costs {self.row:.2f} of a pass here and a token is worth {self.token:.2f}"
        if self.drafted:
            return f"{self.drafted} drafted: {worth}; the likeliest is right with {self.best:.2f}"
        if not self.best:
            return f"nothing was found to draft ({worth})"
        if self.ledger < self.row:
            return f"nothing drafted: drafts have lately cost more than they brought ({worth})"
        return f"nothing drafted: {worth}; the likeliest draft is right with {self.best:.2f}"
