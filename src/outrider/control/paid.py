"""Paid drafters, those that make passes (a head, a draft model): for whom they draft how much, and what that brings.

They draft where their levels are expected to gain more than they cost, net of what was looked up. No verdict is final:
where one is not asked, it is tried again, as often as the ledger can bear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.control.acceptance import Acceptance, covered, depths
from outrider.control.choice import depth, floor, joined
from outrider.control.costs import CostTable, DraftCost
from outrider.control.forced import allowed, is_forced
from outrider.control.ledger import SHARE, Ledger
from outrider.control.levels import PricedLevels
from outrider.control.pace import LONG_PAUSE, DraftPace
from outrider.control.prices import Prices
from outrider.control.silence import LATEST, SOONEST
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView

_NOTHING, _EMPTY = Budget(0, 0), Draft()
_TRIAL_NODES = 2
"""Of a draft that is only to find out."""
_UNKNOWN_LEVEL = 0.01
"""What a level is taken to cost, of a pass, by a drafter that the table does not have."""
_ANSWER = 128.0
"""Tokens that an answer is taken to have before one has ended."""
_LATELY = 1 / 16
"""How much the last answer counts."""
_READ_ANYWAY = 24
"""Prompts not read for them after which one is."""
_REST = 4
"""Steps for which one that was not asked need not be thought of: little changes in a step."""
_AFTER_PAUSE = 0.3
"""How much the first draft after a pause counts: more than what was true before it."""


@dataclass(slots=True)
class PaidState:
    """What is known of one request's paid drafters."""

    read: bool = True
    """Whether its drafters were to read its prompt."""
    gains: dict[str, PricedLevels] = field(default_factory=dict)
    """By drafter."""
    drafter: str | None = None
    """Who was paid in the step under way, for so many `levels`."""
    levels: int = 0
    idle: int = 0
    """Steps since somebody was paid to draft for it, or it came."""
    rest: int = 0
    """Steps for which nobody need be asked whether to pay."""
    away: bool = False
    """Whether nobody will be paid for it for long."""

    def end_step(self) -> None:
        if self.drafter is None:
            self.idle += 1
        else:
            self.drafter, self.levels, self.idle = None, 0, 0


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


class PaidDrafters:
    def __init__(
        self, table: CostTable, nodes: int, acceptance: Acceptance, known: Mapping[str, Sequence[float]]
    ) -> None:
        """Drafts of at most `nodes` nodes. Nobody is paid before there is a table: it is not known what they cost.
        `known`: how often their levels are right, as far as that was measured before (`DraftHead.acceptance`)."""
        self._table = table
        self._nodes = nodes
        self._acceptance = acceptance
        self._known = known
        self._costs: dict[str, DraftPace] = {}
        self._newcomers: dict[tuple[str, bool], PricedLevels] = {}
        """What each drafter's levels bring a request of which nothing is known yet but whether its prompt was read."""
        self._reading = True
        """The last answer of `pays`: what newcomers are taken to have had."""
        self._unread = 0
        """Times in a row that it was no."""
        self._answer = _ANSWER
        """Tokens that answers lately had."""

    def newcomer(self) -> PaidState:
        return PaidState(self._reading)

    @property
    def costs(self) -> Mapping[str, DraftPace]:
        """Of each drafter thought of so far, in the table's seconds."""
        return self._costs

    def ended(self, tokens: int) -> None:
        """An answer has, with so many."""
        self._answer += _LATELY * (tokens - self._answer)

    def pays(self, efficiency: float, requests: int, prompt: float) -> bool:
        """Whether some drafter is expected to gain newcomers more than it costs, and than reading a prompt of so many
        tokens does, where a token costs `efficiency` of what it costs plainly and so many requests run together; also
        where nothing is known of any."""
        names, efficiency = self._table.drafting, min(1.0, efficiency)
        if not names:
            return True
        costs = self._table.pass_seconds(2 * requests, self._table.contexts[0])
        token, row = efficiency * costs[requests] / requests, (costs[-1] - costs[requests]) / requests
        # What drafts bring without is no measure of them: now and then a prompt is read all the same.
        brings = any(self._brings(name, token, row, requests) > prompt * self._cost(name).reading for name in names)
        self._reading = brings or self._unread >= _READ_ANYWAY
        self._unread = 0 if self._reading else self._unread + 1
        return self._reading

    def _brings(self, name: str, token: float, row: float, requests: int) -> float:
        """Seconds that drafts are expected to save a newcomer, of so many requests alike, by the end of its answer."""
        newcomer, cost = self._newcomer(name, True), self._cost(name)
        level = cost.per_level / requests
        gains = [gain * token for gain in newcomer.expected(self._nodes, row / token)]
        levels = depth(gains, cost.fixed / requests, level)
        gained = sum(gains[:levels])
        steps = self._answer / (1 + gained / token)
        return steps * (gained - cost.fixed / requests - levels * level) if levels else 0.0

    def rests(self, states: Collection[PaidState]) -> bool:
        """A step begins: whether nobody need be paid in it, without a closer look."""
        rests = True
        for state in states:
            state.rest -= 1
            rests &= state.rest > 0
        return rests

    def drafts(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        candidates: Sequence[Candidate],
        prices: Prices,
        tree: bool,
    ) -> list[Draft]:
        """For each what was found, joined with what is worth paying for; nothing at all where nothing is."""
        budgets = self._budgets(candidates, prices, tree)
        if not any(budget.nodes for budget in budgets):
            return []
        left = [candidate.left(budget) for candidate, budget in zip(candidates, budgets, strict=True)]
        proposed = drafter.propose(requests, budgets)
        return [joined(*pair, tree) for pair in zip(left, map(allowed, requests, proposed), strict=True)]

    def _budgets(self, candidates: Sequence[Candidate], prices: Prices, tree: bool) -> list[Budget]:
        hopes = [self._hopes(candidate, prices) for candidate in candidates]
        sharing = sum(1 for hope in hopes if hope and hope[0] > 0) or 1
        shared = sharing >= len(candidates)
        bearable = min(candidate.ledger.patience for candidate in candidates) * prices.plain_step
        budgets = []
        for candidate, hope in zip(candidates, hopes, strict=True):
            candidate.state.drafter, candidate.state.levels = None, 0
            budgets.append(self._budget(candidate, hope, sharing, None if shared else bearable, prices, tree))
        return budgets

    def _hopes(self, candidate: Candidate, prices: Prices) -> list[float]:
        """What each level is expected to gain, in seconds; empty where nothing can be drafted."""
        if candidate.drafter is None or not candidate.limit:
            return []
        known, price = self._gains(candidate.state, candidate.drafter), prices.token
        gains = known.expected(candidate.limit, (prices.usual_row or prices.row) / price)
        if candidate.found.tokens:
            found = self._covered(candidate)
            gains = [gain * (1 - here) for gain, here in zip(gains, found, strict=True)]
        return [gain * price for gain in gains]

    def _budget(
        self,
        candidate: Candidate,
        hope: Sequence[float],
        sharing: int,
        bearable: float | None,
        prices: Prices,
        tree: bool,
    ) -> Budget:
        """`sharing`: candidates that share a drafter's passes. `bearable`: how long these may take for the sake of the
        requests that do not gain by them; None: all do."""
        state, ledger, name, limit = candidate.state, candidate.ledger, candidate.drafter, candidate.limit
        if name is None or not hope:
            return _NOTHING
        cost = self._cost(name)
        begin = cost.beginning(state.idle)
        levels = depth(hope, begin / sharing, cost.per_level / sharing)
        nodes, least = limit, floor(prices.row, prices.token, self._acceptance.modesty(name))
        whole = begin + levels * cost.per_level
        unfair = bearable is not None and whole > bearable
        if not levels or unfair or not ledger.affords(whole / sharing / prices.plain_token):
            levels, nodes, least = 1, min(limit, _TRIAL_NODES), 0.0
            charge = (begin + cost.per_level) / prices.plain_token
            due = min(LATEST, max(SOONEST, charge / SHARE))
            state.away = due - state.idle > LONG_PAUSE
            if state.idle < due or not ledger.affords(charge):
                state.rest = 0 if is_forced(candidate.found) else _REST  # the next step may be free
                return _NOTHING
        contested = candidate.exclusive and candidate.found.tokens
        if contested and sum(self._covered(candidate)) * prices.token >= sum(hope):
            return _NOTHING
        state.drafter, state.levels, state.away = name, levels, False
        return Budget(nodes, levels, least, tree)

    def rate(self, state: PaidState, draft: Draft, chances: Sequence[float], kept: Collection[int]) -> None:
        """Learn what the one paid in this step adds: the nodes that only it proposed, the likeliest of each level and
        all those `kept`."""
        name = state.drafter
        if name is None:
            return
        best, tokens, rows, first = [0.0] * state.levels, [0.0] * state.levels, [0.0] * state.levels, 0.0
        for i, (level, chance) in enumerate(zip(depths(draft), chances, strict=True)):
            label = draft.label(i)
            if not level and name in label.split("&"):
                first += chance
            if label == name and level < state.levels:
                best[level] = max(best[level], chance)
                if i in kept:
                    tokens[level] += chance
                    rows[level] += 1
        self._gains(state, name).observe(best, tokens, rows, first, _AFTER_PAUSE if state.idle else 0.0)
        self._newcomer(name, state.read).observe(best, tokens, rows, first)

    def expected_seconds(self, states: Sequence[PaidState]) -> float:
        """What drafting should have taken in the step under way, in the table's seconds."""
        longest = 0.0
        for state in states:
            if state.drafter:
                cost = self._cost(state.drafter)
                longest = max(longest, cost.beginning(state.idle) + state.levels * cost.per_level)
        return longest

    def observe(self, states: Sequence[PaidState], seconds: float) -> None:
        """Drafting took so long in the step under way, in the table's seconds."""
        names = {state.drafter for state in states if state.drafter}
        # After a pause a drafter may first have to catch up with the text: no measure of its cost.
        if len(names) == 1 and not any(state.idle for state in states if state.drafter):
            self._cost(names.pop()).observe(max(state.levels for state in states), seconds)

    def _covered(self, candidate: Candidate) -> list[float]:
        """How likely each level is right already, by what was found."""
        return covered(candidate.found, candidate.chances, candidate.limit)

    def _cost(self, name: str) -> DraftPace:
        cost = self._costs.get(name)
        if cost is None:
            known = self._table.drafting.get(name) or DraftCost(0.0, _UNKNOWN_LEVEL * self._table.first)
            cost = self._costs[name] = DraftPace(known.fixed, known.per_level, known.resume)
        return cost

    def _gains(self, state: PaidState, name: str) -> PricedLevels:
        gains = state.gains.get(name)
        if gains is None:
            gains = state.gains[name] = self._newcomer(name, state.read).copy(rate=1 / 16, weight=3)
        return gains

    def _newcomer(self, name: str, read: bool) -> PricedLevels:
        known = self._newcomers.get((name, read))
        if known is None:
            known = PricedLevels.hoped(self._known.get(name, ()), self._nodes, 1 / 64, 4)
            self._newcomers[name, read] = known
        return known
