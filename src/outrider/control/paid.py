"""Paid drafters, those that make passes (a head, a draft model): for whom they draft how much, and what that brings.

They draft where their levels are expected to gain more than they cost, net of what was looked up. No verdict is final:
where one is not asked, it is tried again, as often as the ledger can bear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from time import perf_counter

from outrider.control.acceptance import Acceptance, covered, depths
from outrider.control.choice import joined
from outrider.control.costs import CostTable
from outrider.control.forced import allowed
from outrider.control.ledger import SHARE
from outrider.control.levels import PricedLevels, SeenLevels
from outrider.control.newcomers import MARGIN, Newcomers, worth_of
from outrider.control.pace import LONG_PAUSE, DraftPace, DraftPaces, DraftRun
from outrider.control.paid_state import Candidate, PaidState, by_drafter
from outrider.control.prices import Prices
from outrider.control.sharing import Shared, usual_row
from outrider.control.silence import LATEST, SOONEST
from outrider.control.together import Prospect, together
from outrider.control.widths import Widths, followed_up
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView

_NOTHING = Budget(0, 0)
_TRIAL_NODES = 2
"""Of a draft that is only to find out."""
_KNOWN = 16
"""Drafts, those that a guess counts for among them, after which it is known what a drafter brings."""
_FIND_OUT = 0.05
"""Of an answer's plain time, what running its prompt by a drafter may take before that is known."""
_STAYS = 32
"""Steps for which one that was asked again drafts, at most: so many share what catching up takes."""
_REST = 4
"""Steps for which one that was not paid for need not be thought of: little changes in a step."""
_DEAR = 2.0
"""How many times as long as `SHARE` asks for nobody has drafted when one is tried whose price no ledger bears."""
_TRIED, _ALSO = 8, 0.05
"""Requests tried at once, at most, and what those beyond the first may take, of what that does: much more is known
then."""
_TEACH = 4
"""Requests of a step, at most, from which it is learned how wide drafts are, and what newcomers begin with."""
_AFTER_PAUSE = 0.3
"""How much the first draft after a pause counts: more than what was true before it."""


class PaidDrafters:
    def __init__(
        self,
        table: CostTable,
        nodes: int,
        rows: int,
        acceptance: Acceptance,
        known: Mapping[str, Sequence[float]],
    ) -> None:
        """Drafts of at most `nodes` nodes, in steps of at most `rows` rows. Nobody is paid before there is a table: it
        is not known what they cost. `known`: how often their levels are right, as far as that was measured before
        (`DraftHead.acceptance`)."""
        self._acceptance = acceptance
        self._paces = DraftPaces(table)
        self._widths = defaultdict[str, Widths](Widths)
        self.newcomers = Newcomers(nodes, rows, acceptance, known, self._paces, self._widths)
        self._steps = 0
        self._tried: dict[str, int] = {}
        """By drafter, the step in which it was last tried, for whomever."""
        self._asked: dict[str, int] = {}
        """And in which it was last asked at all."""
        self.tries = False
        """Whether somebody is tried in the step under way."""
        self.seconds = 0.0
        """That drafters took when they were last asked."""

    @property
    def costs(self) -> Mapping[str, DraftPace]:
        """Of each drafter thought of so far, in the table's seconds."""
        return self._paces.known

    def reprice(self, table: CostTable) -> None:
        """Costs were measured better."""
        self._paces.reprice(table)

    def tick(self) -> None:
        """A step is over, whoever drafted."""
        self._steps += 1

    @property
    def _stays(self) -> float:
        """Steps, about, that share what catching up takes: half an answer is still to come."""
        return min(_STAYS, self.newcomers.answer / 2)

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
        blind: bool,
    ) -> list[Draft]:
        """For each what was found, joined with what is worth paying for; nothing at all where nothing is. `blind`:
        drafters have not seen the last step, as nobody was to be paid for long, and can draft in the next."""
        for request, candidate in zip(requests, candidates, strict=True):
            candidate.state.lacks = drafter.lacks(request) if candidate.drafter and candidate.limit else 0
        budgets, tried = self._budgets(candidates, prices, tree)
        if not any(budget.nodes for budget in budgets):
            return []
        if blind:
            for candidate in candidates:
                candidate.state.drafter, candidate.state.levels = None, 0
            return []
        self._tried.update(tried)
        self.tries = bool(tried)
        left = [candidate.left(budget) for candidate, budget in zip(candidates, budgets, strict=True)]
        began = perf_counter()
        proposed = drafter.propose(requests, budgets)
        self.seconds = perf_counter() - began
        for i, (candidate, budget, draft) in enumerate(zip(candidates, budgets, proposed, strict=True)):
            if candidate.state.drafter is not None:
                self._count(candidate.state, candidate.state.drafter, budget, draft, self.teaches(i, len(candidates)))
        return [joined(*pair, tree) for pair in zip(left, map(allowed, requests, proposed), strict=True)]

    def _count(self, state: PaidState, name: str, budget: Budget, draft: Draft, teaches: bool) -> None:
        """The passes that a draft took, and their rows."""
        levels = depths(draft)
        # The last pass of a draft that ends early is the one that found nothing.
        state.passes = state.rows = min(state.levels, 2 + max(levels, default=-1))
        for claims in followed_up(levels, draft.confidence, state.passes):
            state.rows += max(0, sum([claim >= budget.expand_node for claim in claims]) - 1)
            if teaches:
                self._widths[name].observe(claims)

    def _budgets(
        self, candidates: Sequence[Candidate], prices: Prices, tree: bool
    ) -> tuple[list[Budget], dict[str, int]]:
        """For each; and who is only tried, as `_tried`."""
        budgets, tried = [_NOTHING] * len(candidates), {}
        for candidate in candidates:
            state = candidate.state
            state.drafter, state.levels, state.passes, state.rows = None, 0, 0, 0
            if not (candidate.drafter and candidate.limit):
                state.rest = _REST
        for name in sorted({c.drafter for c in candidates if c.drafter and c.limit}):
            asked = [i for i, c in enumerate(candidates) if c.drafter == name and c.limit]
            shared = Shared(self._paces.of(name), len(asked), prices, self._acceptance.truth(name))
            paid = self._worthwhile(name, candidates, asked, shared, prices)
            sharing = sum(map(bool, paid))
            for i in asked:
                candidate, levels = candidates[i], paid[i]
                if levels:
                    budgets[i] = self._budget(candidate, name, levels, sharing, shared, prices, tree)
                elif not any(chance > shared.least for chance in candidate.chances):
                    candidate.state.rest = _REST  # with something found, the next step may be worth it without
            spare, left = inf, _TRIED
            for i in sorted([i for i in asked if not paid[i]], key=lambda i: -candidates[i].state.idle):
                takes = _trial(candidates[i].state, shared.cost, sharing > 0 or name in tried)
                if left and takes <= spare and self._is_tried(candidates[i], name, takes, shared, prices):
                    budgets[i] = Budget(min(candidates[i].limit, _TRIAL_NODES), 1, 0.0, tree)
                    spare, left = spare - takes if name in tried else _ALSO * takes, left - 1
                    tried[name] = self._steps
            for i in asked:
                if budgets[i].nodes:
                    state = candidates[i].state
                    state.drafter, state.levels, state.away, state.rest = name, budgets[i].depth, False, 0
                    self._asked[name] = self._steps
        return budgets, tried

    def _worthwhile(
        self, name: str, candidates: Sequence[Candidate], asked: Sequence[int], shared: Shared, prices: Prices
    ) -> list[int]:
        """How deep a drafter is paid to draft for each; only for those `asked`."""
        prospects = [Prospect(candidate.ledger.bears) for candidate in candidates]
        for i in asked:
            prospects[i] = self._beside(prospects[i], candidates[i], name, shared, prices)
        if not any(prospect.tokens for prospect in prospects):
            return [0] * len(candidates)
        return together(prospects, prices.passes, prices.token, shared.cost, MARGIN * prices.plain_token)

    def _beside(self, found: Prospect, candidate: Candidate, name: str, shared: Shared, prices: Prices) -> Prospect:
        """What was found for it, and what a drafter's levels would bring beside that."""
        if not self._invests(candidate.state, name, shared, prices):
            return found
        known, catching_up = self._gains(candidate.state, name), shared.cost.catching_up(candidate.state.behind)
        most = min(candidate.limit, shared.levels(candidate.ledger, catching_up))
        if most <= 0 or self._is_outdone(candidate, name, prices):
            return found
        levels = known.verified(most, shared.row)
        if candidate.found.tokens:
            left = [1 - chance for chance in covered(candidate.found, candidate.chances, most)]
            levels = [(tokens * share, rows * share) for (tokens, rows), share in zip(levels, left, strict=True)]
        tokens, rows = shared.worthwhile(levels)
        if not tokens:
            return found
        # How likely a node must be for its pass to be worth it to this request.
        wide = self._widths[name].at(shared.cost.row / worth_of(known, prices.token, shared.truth))
        return Prospect(found.patience, tokens, rows, known.runs(len(tokens)), catching_up / self._stays, wide)

    def _invests(self, state: PaidState, name: str, shared: Shared, prices: Prices) -> bool:
        """Whether drafts are expected to save more by the end of an answer than its drafter takes to run what it lacks,
        where that is more than a pause leaves: a draft model has seen nothing of a new prompt. Of one that nobody knows
        yet it is found out, where that takes little of an answer. Asked once, as whether a prompt is read."""
        if state.lacks <= LONG_PAUSE:
            return True
        if state.invests is None:
            takes = state.lacks * shared.cost.reading
            if self.newcomers.levels(name, True).weight < _KNOWN:
                state.invests = takes <= _FIND_OUT * self.newcomers.answer * prices.plain_step
            else:
                state.invests = self.newcomers.saves(name, prices.unpaid, shared.requests) > takes
        return state.invests

    def _budget(
        self,
        candidate: Candidate,
        name: str,
        levels: int,
        sharing: int,
        shared: Shared,
        prices: Prices,
        tree: bool,
    ) -> Budget:
        """Of one that is paid for, as so many are."""
        cost, worth = shared.cost, worth_of(self._gains(candidate.state, name), prices.token, shared.truth)
        further = min(1.0, cost.level(sharing) / sharing / worth)
        # No more than a step has rows for, were all alike: each takes the host time, whether it is verified or not.
        most = min(candidate.limit, max(levels, (len(prices.passes) - 1) // sharing))
        return Budget(most, levels, shared.floor, tree, cost.row / worth, further)

    def _is_tried(self, candidate: Candidate, name: str, takes: float, shared: Shared, prices: Prices) -> bool:
        """Whether one that is not expected to pay is asked all the same, to find out, which `takes` so long. All in the
        step wait for that, and all pay for it: so it depends on no request alone how long nobody is asked, for many
        may be in a step, and their answers short. What it is taken to cost may be wrong, too: however much that is,
        the time in which it was not asked pays for it at last. Where not even drafts that are always right would pay,
        there is only that to find out, and no hurry."""
        state = candidate.state
        charge, since = takes / prices.plain_step, self._steps - self._tried.get(name, 0)
        due = min(LATEST, max(SOONEST, charge / SHARE)) if shared.could_pay else LATEST
        state.away = state.idle >= SOONEST and due - since > LONG_PAUSE
        silent = self._steps - self._asked.get(name, 0)
        bears = candidate.ledger.affords(charge) or silent > max(LATEST, _DEAR * charge / SHARE)
        if (state.idle < SOONEST and silent < LATEST) or since < due or not bears:
            return False
        return not self._is_outdone(candidate, name, prices)

    def teaches(self, place: int, requests: int) -> bool:
        """Whether it is learned from this one of so many requests of the step under way how drafts are like, and what
        newcomers begin with: from a few of many, one after the other."""
        return (place + self._steps) % -(-requests // _TEACH) == 0

    def rate(
        self, state: PaidState, draft: Draft, chances: Sequence[float], kept: Collection[int], teaches: bool = True
    ) -> None:
        """Learn what the one paid in this step brings: the nodes that it proposed, the likeliest of each level and all
        those `kept`, also where others proposed the same. What of that is left to bring is asked before each draft
        (`_beside`). `teaches`: newcomers are taken to be like it."""
        name = state.drafter
        if name is None:
            return
        levels, first, taken = state.levels, 0.0, set(kept)
        best, tokens, rows = [0.0] * levels, [0.0] * levels, [0.0] * levels
        runs = [1.0] * state.passes + [0.0] * (levels - state.passes)
        labels = draft.sources or (draft.source,) * len(chances)
        mine = {label for label in set(labels) if name in label.split("&")}
        for i, (level, chance, label) in enumerate(zip(depths(draft), chances, labels, strict=True)):
            if label not in mine:
                continue
            if not level:
                first += chance
            if level < levels:
                if chance > best[level]:
                    best[level] = chance
                if i in taken:
                    tokens[level] += chance
                    rows[level] += 1
        seen = SeenLevels(best, tokens, rows, runs, first)
        self._gains(state, name).observe(seen, _AFTER_PAUSE if state.idle > 1 else 0.0)
        if teaches:
            self.newcomers.observe(name, _has_read(state), seen)

    def expected_seconds(self, states: Sequence[PaidState]) -> float:
        """What drafting should have taken in the step under way, in the table's seconds."""
        took = 0.0
        for name, paid in by_drafter(states).items():
            cost = self._paces.of(name)
            took += cost.seconds(_run(paid)) + cost.catching_up(_behind(paid))
        return took

    def observe(self, states: Sequence[PaidState], seconds: float) -> None:
        """Drafting took so long in the step under way, in the table's seconds; also what running a prompt took, which a
        request invests in (`_invests`) and is not charged for."""
        drafters = by_drafter(states)
        for name, paid in drafters.items():
            if len(drafters) == 1:
                ran = sum([state.lacks if state.lacks > LONG_PAUSE else state.behind for state in paid])
                self._paces.of(name).observe(_run(paid), seconds, ran)

    def _is_outdone(self, candidate: Candidate, name: str, prices: Prices) -> bool:
        """Whether what was found is better than its draft would be, where only one of both can be verified."""
        if not (candidate.exclusive and candidate.found.tokens):
            return False
        gains = self._gains(candidate.state, name).expected(candidate.limit, usual_row(prices))
        found = self._covered(candidate)
        return sum(found) >= sum([gain * (1 - chance) for gain, chance in zip(gains, found, strict=True)])

    def _covered(self, candidate: Candidate) -> list[float]:
        """How likely each level is right already, by what was found."""
        return covered(candidate.found, candidate.chances, candidate.limit)

    def _gains(self, state: PaidState, name: str) -> PricedLevels:
        gains = state.gains.get(name)
        if gains is None:
            gains = state.gains[name] = self.newcomers.levels(name, _has_read(state)).copy(rate=1 / 16, weight=3)
        return gains


def _has_read(state: PaidState) -> bool:
    """Whether its drafter knows the prompt, when it drafts: it was read for it, or the drafter is one of those that run
    what they lack by themselves."""
    return state.read is not False or state.invests is not None


def _trial(state: PaidState, cost: DraftPace, shares: bool) -> float:
    """What a try takes for it; whether it `shares` the drafter's pass with others."""
    late = state.lacks * cost.reading if state.lacks > LONG_PAUSE else cost.catching_up(state.behind)
    return late + (cost.row if shares else cost.fixed + cost.level(1))


def _behind(paid: Sequence[PaidState]) -> int:
    """Tokens that its drafter runs for all of them before it drafts."""
    return sum([state.behind for state in paid])


def _run(paid: Sequence[PaidState]) -> DraftRun:
    """By a drafter in the step under way, for these."""
    return DraftRun(max([state.passes for state in paid]), sum([state.rows for state in paid]))
