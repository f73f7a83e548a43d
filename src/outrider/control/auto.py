"""Draft as much as pays, from step to step; nothing where nothing pays.

Four parts, each of which estimates one thing: the cost table (`costs`; `survey` measures it, `pace` keeps it at the
machine's present speed, `prices` says what a row and a token cost by it), acceptance (`acceptance`), the choice that
follows from both (`choice`), and a ledger per request that stops whatever costs more than it brings (`ledger`). Here
they meet:

    look up      what costs nothing is found at every step, and scored at every step
    pay          drafters that make passes draft for those requests where that is expected to gain more than it costs
                 (`paid`)
    choose       of all that was proposed, the nodes whose chance is worth their row
    observe      hold everything proposed against the tokens that came

Where a device takes the steps, it is told how long its chains are and what was looked up (`device_steps`).

Where drafts bring less than all this takes, it is done less often (`thrift`).

No verdict is final: a paid drafter that is not asked is tried again, as often as the ledger can bear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from outrider.control.acceptance import Acceptance
from outrider.control.belief import Belief
from outrider.control.chains import LENGTHS, OFFERED_LENGTHS
from outrider.control.choice import Chosen, chosen, floor, joined, kept, level
from outrider.control.costs import ROWS, CostTable
from outrider.control.device_steps import DeviceSteps
from outrider.control.forced import all_carried_on, allowed, forced_of_all
from outrider.control.ledger import Overrun, charges, lend
from outrider.control.paid import PaidDrafters
from outrider.control.prices import Prices
from outrider.control.silence import LATEST, Silence
from outrider.control.states import EMPTY, State, States
from outrider.control.survey import Survey
from outrider.control.thrift import Thrift
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import RequestView
from outrider.core.step import StepPlan, StepShape
from outrider.errors import InvalidRequest

_PROMISED_NODES = 4
"""Of what the caller predicts, that are tried once."""
_LIKELY = 0.5
"""What a node is right with that is verified now and then where rows seem too dear."""
_SELDOM, _OTHERS = 4, 8
"""Steps after which what changes slowly is looked at again, and whether others run by now."""


class AutoLength:
    """Drafts of at most `nodes` nodes per request and `rows` verified rows per step (one per request included), but
    for the first step of a request that brings a prediction. What a grammar forces may be more than `nodes`."""

    lengths = LENGTHS
    offered_lengths = OFFERED_LENGTHS

    def __init__(
        self,
        nodes: int = 16,
        rows: int = 64,
        *,
        table: CostTable | None = None,
        survey: Survey | None = None,
        acceptance: Mapping[str, Sequence[float]] | None = None,
        trees: Sequence[int] = (),
    ) -> None:
        """Costs are known from a `table`, or will be from a `survey`: decoding is plain until they are, roughly; with
        neither they are guessed at and learned. `acceptance`: what is known beforehand of drafters, by name
        (`DraftHead.acceptance`). `trees`: nodes of those that a device may be asked for, beside chains of `nodes`."""
        if nodes < 1 or rows < 2:
            raise InvalidRequest(f"nodes={nodes} must be at least 1 and rows={rows} at least 2.")
        self.nodes = nodes
        self.rows = rows
        self.trees = trees
        self.issued: Sequence[int] = ()
        self._acceptance = Acceptance()
        self._known = acceptance or {}
        self._prices = Prices(rows, table, survey)
        self._paid = self._paid_from(self._prices.table)
        """None until costs are known."""
        self._silence = Silence()
        self._thrifts = defaultdict[int, Thrift](Thrift)
        """By how many requests run, to a power of two: what pays for one may be nothing among sixteen."""
        self._thrift = self._thrifts[0]
        """Of the last step for which it was asked."""
        self._overrun = Overrun()
        self._resting = False
        """Whether nothing was thought about in the step under way, to save the time."""
        self._thinking = False
        """Whether drafts were thought about in it."""
        self._asked = False
        """Whether it was asked for them at all."""
        self._unasked = 0
        """Steps since the last one for which it was."""
        self._never = self._last = False
        """Whether nobody in that one may have drafts, and whether there was no room for any."""
        known = next(iter(self._known.values()), ())
        self._device = DeviceSteps(max([nodes, *trees]), self._silence, self._acceptance, known)
        self._states = States(self._newcomer)
        self._steps = 0
        self._modesty = 1.0
        """Of the lookup that claims too little."""
        self._best = 0.0
        """The likeliest node proposed in the last step."""
        self._away = False

    # -- deciding

    def draft(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        tree: bool,
        room: Sequence[int],
        seconds: Mapping[StepShape, float] | None = None,
    ) -> list[Draft]:
        states, nodes, self._asked = self._states.of(requests), self.nodes, True
        for s, state in zip(requests, states, strict=True) if self._unasked else ():
            state.rest(min(self._unasked, len(s.tokens) - s.prompt_length))
        self._unasked = 0
        limits = [nodes if most > nodes else most if most > 0 else 0 for most in room]
        full = seconds is None and len(states) >= self.rows
        self._never, self._last = full or all(s.speculation.max_nodes == 0 for s in requests), not any(limits)
        if not any(limits):  # they are decoded plainly, which says nothing of what drafts are worth
            self._resting, self.issued = True, limits
            return [EMPTY] * len(states)
        self._thrift = self._thrifts[(len(states) - 1).bit_length()]
        owed, plain_due = any(state.promised for state in states), self._prices.plain_due()
        # A grammar may leave no choice at any step.
        silent = self._silence.settled and all(s.params.grammar is None for s in requests)
        self._resting = not owed and self._thrift.rests(silent)
        self._thinking = owed or not (self._resting or plain_due or self._paid is None or full)
        if not self._thinking:
            return self._given([EMPTY] * len(states))
        costs = self._prices.step(len(states), _context(requests), seconds)
        lend([state.ledger for state in states])
        # What grammars force is so sure that there may be more of it than of other drafts.
        known = forced_of_all(requests, room, len(costs) - 1 - len(requests))
        found = self._looked_up(drafter, requests, limits, known, tree)
        chances = self._acceptance.chances(found, [state.leanings for state in states])
        self._prices.found(len(states), chances)
        drafts = self._paid_for(drafter, requests, states, limits, found, chances, tree)
        if tree:
            worthwhile = floor(self._prices.row, self._prices.token, 1.0)
            drafts = all_carried_on(requests, drafts, limits, worthwhile)
        if drafts is not found:
            chances = self._acceptance.chances(drafts, [state.leanings for state in states])
        limits = [max(limit, len(given.tokens)) for limit, given in zip(limits, known, strict=True)]
        choose = chosen if seconds is None else level
        return self._given(self._chosen(states, drafts, chances, limits, costs, choose))

    def _looked_up(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        limits: Sequence[int],
        known: list[Draft],
        tree: bool,
    ) -> list[Draft]:
        """What is `known` and what lookups find, all that could be worth a row."""
        if not drafter.looks_up:
            return known
        if not self._steps % _SELDOM:
            self._modesty = self._acceptance.greatest_modesty(self._paid.costs if self._paid else ())
        least = floor(self._prices.row, self._prices.token, self._modesty)
        budgets = {limit: Budget(limit, limit, least, tree) for limit in set(limits)}
        found = drafter.look_up(requests, [budgets[limit] for limit in limits])
        both = zip(known, map(allowed, requests, found), strict=True)
        return [joined(mine, more, tree) if mine.tokens else more if more.tokens else EMPTY for mine, more in both]

    def _paid_for(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        states: Sequence[State],
        limits: Sequence[int],
        found: list[Draft],
        chances: Sequence[Sequence[float]],
        tree: bool,
    ) -> list[Draft]:
        """What was found, with its chances, joined with what drafters that make passes are paid to add; before it is
        known what they cost nobody is paid."""
        if self._paid is None:
            return found
        drafts = found
        if not self._paid.rests([state.paid for state in states]):
            names = [drafter.paid(s) for s in requests]
            if not any(names):
                return found
            candidates = list(map(State.candidate, states, requests, names, limits, found, chances))
            drafts = self._paid.drafts(drafter, requests, candidates, self._prices, tree, self._away) or found
        self._away = all(state.paid.away for state in states)
        return drafts

    def _chosen(
        self,
        states: Sequence[State],
        drafts: Sequence[Draft],
        chances: Sequence[Sequence[float]],
        limits: Sequence[int],
        costs: Sequence[float],
        choose: Callable[..., Chosen],
    ) -> list[Draft]:
        """Of everything proposed, what is worth its row."""
        self._best = max([max(mine) for mine in chances if mine], default=0.0)
        owed = [_owed(draft) if state.promised else 0 for state, draft in zip(states, drafts, strict=True)]
        for state in states:
            state.promised = False
        if self._silence.steps >= LATEST and self._best > _LIKELY:  # what is never run never turns out to be cheap
            likeliest = max(range(len(states)), key=lambda i: max(chances[i], default=0.0))
            owed[likeliest] = max(owed[likeliest], 1)
        if not any(chances) and not any(state.paid.drafter for state in states):
            return list(drafts)
        ledgers = [state.ledger for state in states]
        nodes, row = kept(drafts, chances, limits, owed, costs, self._prices.token, ledgers, choose)
        if row:
            self._prices.row = self._prices.usual_row = row
        given = []
        for i, (state, draft, mine, taken) in enumerate(zip(states, drafts, chances, nodes, strict=True)):
            state.proposed, state.nodes, state.expected = draft, len(taken), sum([mine[i] for i in taken])
            given.append(draft if len(taken) == len(mine) else draft.only(sorted(taken)) if taken else EMPTY)
            if self._paid is not None and state.paid.drafter is not None:
                self._paid.rate(state.paid, draft, mine, taken, self._paid.teaches(i, len(states)))
        return given

    def _given(self, drafts: list[Draft]) -> list[Draft]:
        self.issued = [len(draft.tokens) for draft in drafts]
        self._silence.step(any(self.issued))
        return drafts

    def plan(
        self,
        requests: Sequence[RequestView],
        seconds: Mapping[StepShape, float],
        limit: int,
        lookup: Drafter | None = None,
    ) -> StepPlan:
        plan = self._device.plan(requests, self._states, seconds, limit, lookup)
        self.issued = [plan.shape.size] * len(requests)
        return plan

    # -- learning

    def observe(
        self, verified: Sequence[VerifiedDraft], rows: int, draft_seconds: float, target_seconds: float
    ) -> None:
        device = self._device.under_way > 0
        issued = self._device.over() if device else None
        if not verified:
            self._asked = False
            return
        self._steps += 1
        if device and issued is None:
            return
        if self._paid is not None:
            self._paid.tick()
        if not device and not self._asked:
            self._rested()
            return
        self._acceptance.tick()
        requests, self._asked = [each.request for each in verified], False
        states, timed = self._states.of(requests), target_seconds > 0
        context = _context(requests) if issued is None or self._paid is None else 0.0
        if timed and self._steps > 1:  # nobody waits longer for a first token
            self._survey(rows, len(states), context, target_seconds)
        if issued is not None:
            self._device.observe(issued, states, verified)
            return
        if self._resting and timed:
            self._prices.rested()
            for state in states:
                state.rest(1)
            return
        if self._paid is None or not timed:
            for state in states:
                state.clear()
            return
        self._prices.observe(len(states), rows, context, target_seconds)
        drafting = self._paid.seconds if any(state.paid.drafter for state in states) else 0.0
        if self._thinking:
            self._thrift.observe(max(0.0, draft_seconds - drafting), self._prices.plain_step * self._prices.level)
        charged = self._charges(self._paid, states, rows, drafting, target_seconds)
        total, expected = sum(charged), sum([state.expected for state in states])
        if self._thinking:
            right = self._paid.tries and any(map(_tried_right, states, verified))
            self._thrift.value((expected - total) / len(states), right)
        share = total / len(states)
        for state, each, charge in zip(states, verified, charged, strict=True):
            if state.proposed.tokens:
                self._acceptance.observe(state.proposed, state.leanings, each.tokens)
            gained = len(each.tokens) - 1
            state.ledger.step(charge, gained, state.expected - share)
            state.paid.end_step()
            state.clear()
        self._prices.value(len(states), total, expected, self._steps)

    def _rested(self) -> None:
        """A plain step is over for which no drafts were asked for. What that is to its requests shows when they are
        again: among many, to look at each at every step takes the host longer than the device."""
        self._unasked += 1
        self._thrift.rested()
        self._silence.step(False)
        self._prices.rested()

    def _survey(self, rows: int, requests: int, context: float, seconds: float) -> None:
        table = self._prices.survey(rows, requests, context, seconds)
        if self._paid is None:
            self._paid = self._paid_from(table)
        elif table is not None:
            self._paid.reprice(table)

    def _charges(
        self,
        paid: PaidDrafters,
        states: Sequence[State],
        rows: int,
        drafting: float,
        target: float,
    ) -> list[float]:
        """What drafting has added to this step for each, in plain passes of one request; what it took is learned."""
        asked = [state.paid.drafter is not None for state in states]
        if rows == len(states) and not any(asked):
            return [0.0] * len(states)
        drafters, pace = [state.paid for state in states], self._prices.level
        paid.observe(drafters, drafting / pace)
        nodes, costs = [state.nodes for state in states], self._prices.passes
        shared = [paid.tries or mine for mine in asked]  # what is only tried, all pay for
        expected = charges(nodes, shared, paid.expected_seconds(drafters), rows, costs)
        if len(nodes) < len(costs):
            base = costs[len(nodes)]
            self._overrun.observe((drafting + target) / pace - base, sum(expected) * base / len(nodes))
        return [self._overrun.scale * charge for charge in expected]

    def lost(self, request: RequestView) -> None:
        if state := self._states.get(request):
            state.chain.since = None

    def abandon(self) -> None:
        self._device.abandon()

    def forget(self, request: RequestView) -> None:
        tokens = len(request.tokens) - request.prompt_length
        if self._states.forget(request) and tokens and self._paid is not None:
            self._paid.newcomers.ended(tokens)
        self._device.forget(request)

    def _newcomer(self, request: RequestView) -> State:
        return State(self._device.newcomer(request), bool(request.speculation.prediction))

    def _paid_from(self, table: CostTable | None) -> PaidDrafters | None:
        return PaidDrafters(table, self.nodes, self.rows, self._acceptance, self._known) if table else None

    # -- watching

    @property
    def held(self) -> int:
        """Requests known."""
        return len(self._states)

    @property
    def belief(self) -> Belief:
        prices, table = self._prices, self._prices.table
        if table is None or not prices.plain_token:
            return Belief(known=table is not None)
        drafting, costs = self._paid.costs.items() if self._paid else (), prices.passes
        return Belief(
            measured=table.measured,
            row=prices.row / prices.plain_token,
            token=prices.token / prices.plain_token,
            drafting={name: cost.per_level / prices.plain_token for name, cost in drafting},
            acceptance=self._acceptance.rates(),
            best=self._best,
            ledger=min((state.ledger.left for state in self._states), default=0.0),
            drafted=sum(self.issued),
            passes={rows: costs[rows] / costs[1] for rows in ROWS if rows < len(costs)},
        )

    def pays(self, prompts: Sequence[RequestView], running: int) -> list[bool]:
        if self._device.any:
            return [self._device.reads()] * len(prompts)
        states = self._states.of(prompts)
        if self._paid is not None:
            self._paid.newcomers.decide(prompts, [state.paid for state in states], self._prices.unpaid, running)
        return [state.paid.read is not False for state in states]

    @property
    def away(self) -> bool:
        return self._away

    @property
    def rest(self) -> int:
        if self._never:
            return _OTHERS
        return 0 if self._last or any(self.issued) else self._thrift.left


def _owed(draft: Draft) -> int:
    """Nodes of a promised one that are verified whatever is believed of them."""
    return _PROMISED_NODES if "prediction" in (draft.source, *draft.sources) else 0


def _tried_right(state: State, verified: VerifiedDraft) -> bool:
    """Whether the first token that somebody was paid to propose is what came, be it verified or not."""
    return state.paid.drafter is not None and verified.tokens[:1] == tuple(state.proposed.tokens[:1])


def _context(requests: Sequence[RequestView]) -> float:
    return sum([len(s.tokens) for s in requests]) / len(requests)
