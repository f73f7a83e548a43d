"""Newcomers: what paid drafters are expected to bring requests of which nothing is known yet, and for which of their
prompts that pays to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean

from outrider.control.acceptance import Acceptance
from outrider.control.levels import PricedLevels, SeenLevels
from outrider.control.pace import DraftPaces
from outrider.control.paid_state import PaidState
from outrider.control.together import Prospect, gain_of_many
from outrider.control.widths import Widths
from outrider.core.request import RequestView

_ANSWER = 128.0
"""Tokens that an answer is taken to have before one has ended."""
_LATELY = 1 / 16
"""How much the last answer counts."""
_READ_ANYWAY = 24
"""Prompts not read for drafters, after which one is."""
_ROWS_EACH = 8
"""Rows of a request in a step, at most, where it is asked whether a prompt should be read: with too few, drafts that
are known to be wide look as if they had to be short."""
_UNREAD = 0.95
"""How often a level is right where of its prompt but the first and last tokens were read, of how often it is where all
was, before that was seen."""
_FIRM = 1 / 64, 4.0
"""How firmly it is believed what drafts bring newcomers: what each counts for at least, and like how many a guess."""
MARGIN = 0.1
"""Plain tokens that a draft must be expected to gain beyond its cost: of many estimates the best flatter."""
_DEEP = 2
"""Levels after which a drafter about ends: by so many its claims are off, if they are."""
_LEAST = 1e-6
"""Tokens that a pass for a node that is right is taken to gain, at least."""


class Newcomers:
    def __init__(
        self,
        nodes: int,
        rows: int,
        acceptance: Acceptance,
        known: Mapping[str, Sequence[float]],
        paces: DraftPaces,
        widths: Mapping[str, Widths],
    ) -> None:
        """As for `PaidDrafters`; `paces` and `widths`, by drafter, are learned there."""
        self._nodes = nodes
        self._rows = rows
        self._acceptance = acceptance
        self._known = known
        self._paces = paces
        self._widths = widths
        self._levels: dict[tuple[str, bool], PricedLevels] = {}
        """By drafter, and whether it had read the prompt."""
        self._unread = 0
        """Prompts since one was read all the same."""
        self.answer = _ANSWER
        """Tokens that answers lately had."""

    def ended(self, tokens: int) -> None:
        """An answer has, with so many."""
        self.answer += _LATELY * (tokens - self.answer)

    def levels(self, name: str, read: bool) -> PricedLevels:
        """What a drafter's levels bring them."""
        known = self._levels.get((name, read))
        if known is None and read:
            hoped = self._known.get(name, ())
            known = self._levels[name, True] = PricedLevels.hoped(hoped, self._nodes, *_FIRM)
        return known or self.levels(name, True).copy(*_FIRM, _UNREAD)

    def observe(self, name: str, read: bool, seen: SeenLevels) -> None:
        """What they brought a request that newcomers are taken to be like."""
        self._levels.setdefault((name, read), self.levels(name, read)).observe(seen)

    def decide(self, prompts: Sequence[RequestView], states: Sequence[PaidState], unpaid: float, running: int) -> None:
        """Which of these prompts are read, of those of which that was not decided before: once for a whole prompt, for
        what is read of a part is of little use."""
        undecided = [i for i, state in enumerate(states) if state.read is None]
        if not undecided:
            return
        reads = self.pays(
            unpaid, running, fmean([prompts[i].prompt_length - (prompts[i].reused or 0) for i in undecided])
        )
        for i in undecided:
            states[i].decide(reads)
        drafting = [i for i in undecided if prompts[i].speculation.max_nodes != 0]
        if drafting and not reads and running < self._rows and self._reads_one_of(len(drafting)):
            # Rather one of the default drafter's: who names another may have no use for it.
            found = min(drafting, key=lambda i: prompts[i].speculation.drafter is not None)
            states[found].decide(True)

    def _reads_one_of(self, prompts: int) -> bool:
        """Whether one of so many for which it does not pay is read all the same: what drafts bring without is no
        measure of what they would."""
        self._unread += prompts
        reads = self._unread > _READ_ANYWAY
        if reads:
            self._unread = 0
        return reads

    def pays(self, unpaid: float, requests: int, prompt: float) -> bool:
        """Whether some drafter is expected to gain them more than it costs, and than reading a prompt of so many tokens
        does, where without any a token costs `unpaid` of what it costs plainly (`Prices.unpaid`) and so many requests
        run together; also where nothing is known of any."""
        names = self._paces.table.drafting
        if not names:
            return True
        if requests >= self._rows:
            return False
        passes = self._passes(requests)
        return any(self._gains_by_reading(name, unpaid, requests, prompt, passes) for name in names)

    def saves(self, name: str, unpaid: float, requests: int) -> float:
        """Seconds that drafts are expected to save one of so many whose prompt was run, by the end of its answer."""
        return self._brings(name, True, unpaid, requests, self._passes(requests))

    def _passes(self, requests: int) -> list[float]:
        """Seconds of passes of as many rows as that many requests may have in a step."""
        return self._paces.table.pass_seconds(min(_ROWS_EACH * requests, self._rows), self._paces.table.contexts[0])

    def _gains_by_reading(
        self, name: str, unpaid: float, requests: int, prompt: float, passes: Sequence[float]
    ) -> bool:
        read, unread = (self._brings(name, how, unpaid, requests, passes) for how in (True, False))
        return read - unread > prompt * self._paces.of(name).reading

    def _brings(self, name: str, read: bool, unpaid: float, requests: int, passes: Sequence[float]) -> float:
        """Seconds that drafts are expected to save a newcomer, of so many requests alike, by the end of its answer.
        A token is worth what it would cost without them: two ways to go on are compared here, not two steps."""
        known, cost, plain = self.levels(name, read), self._paces.of(name), passes[requests] / requests
        token, row = unpaid * plain, (passes[-1] - passes[requests]) / (len(passes) - 1 - requests)
        tokens, rows = zip(*known.verified(self._nodes, row / token), strict=True)
        wide = self._widths[name].at(cost.row / worth_of(known, token, self._acceptance.truth(name)))
        alike = Prospect(inf, tokens, rows, known.runs(self._nodes), 0.0, wide)
        gained, saved = gain_of_many(alike, requests, passes, token, cost, MARGIN * plain)
        return saved / requests * self.answer / (1 + gained)


def worth_of(known: PricedLevels, token: float, truth: float) -> float:
    """Of a pass for a node that is right, to a request of which so much is known, where a token costs so much, by a
    drafter of this `truth`."""
    return token * max(_LEAST, known.followed**2 * truth**_DEEP)
