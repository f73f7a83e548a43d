"""What is known of one request beside paid drafters, and what they are asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.control.ledger import Ledger
from outrider.control.levels import PricedLevels
from outrider.control.pace import LONG_PAUSE
from outrider.core.draft import Budget, Draft

_EMPTY = Draft()


@dataclass(slots=True)
class PaidState:
    """What is known of one request's paid drafters."""

    read: bool | None = None
    """Whether its drafters were to read its prompt; None: they did so before it was known what that takes."""
    gains: dict[str, PricedLevels] = field(default_factory=dict)
    """By drafter."""
    drafter: str | None = None
    """Who was paid in the step under way, for so many `levels`."""
    levels: int = 0
    passes: int = 0
    """That its drafter made for them: it stops where nothing promising follows."""
    rows: int = 0
    """Of these passes."""
    idle: int = 0
    """Steps since somebody was paid to draft for it, or it came."""
    behind: int = 0
    """Tokens, about, that its drafter runs to catch up before it drafts, as far as it does not leave them out."""
    rest: int = 0
    """Steps for which nobody need be asked whether to pay."""
    lacks: int = 0
    """Tokens that its drafter must run before it drafts (`Drafter.lacks`)."""
    invests: bool | None = None
    """Whether drafts are expected to pay for those, where they are many; None: it has not been asked."""
    away: bool = False
    """Whether nobody was paid for it for some time, nor will be for long."""

    def decide(self, read: bool) -> None:
        """Whether its prompt is to be read: where it is not, its end waits to be."""
        self.read = read
        self.behind = 0 if read else LONG_PAUSE

    def pause(self, steps: int) -> None:
        """So many steps are over for which nobody was asked."""
        self.idle += steps
        self.behind = min(LONG_PAUSE, self.behind + steps)
        self.rest -= steps

    def end_step(self) -> None:
        if self.drafter is None:
            self.idle += 1
            self.behind = min(LONG_PAUSE, self.behind + 1)
        else:
            self.drafter, self.levels, self.passes, self.rows, self.idle, self.behind = None, 0, 0, 0, 0, 0


class Candidate(NamedTuple):
    """A request for which a paid drafter may draft."""

    state: PaidState
    ledger: Ledger
    drafter: str | None
    """Its paid drafter's name; None: it has none."""
    limit: int
    """The most nodes."""
    found: Draft
    """What was looked up for it."""
    chances: Sequence[float]
    """Of its nodes."""
    exclusive: bool
    """Whether only one of both can be verified, what was found or what is paid for."""

    def left(self, budget: Budget) -> Draft:
        """Of what was found, beside what is paid for."""
        return _EMPTY if self.exclusive and self.found.tokens and budget.nodes else self.found


def by_drafter(states: Sequence[PaidState]) -> dict[str, list[PaidState]]:
    """Of the step under way, those that somebody was paid for."""
    found: dict[str, list[PaidState]] = {}
    for state in states:
        if state.drafter:
            found.setdefault(state.drafter, []).append(state)
    return found
