"""Draft as much as pays, from step to step; nothing where nothing pays.

Four parts, each of which estimates one thing: the cost table (`costs`; `survey` measures it, `pace` keeps it at the
machine's present speed), acceptance (`acceptance`), the choice that follows from both (`choice`), and a ledger per
request that stops whatever costs more than it brings (`ledger`). Here they meet:

    look up      what costs nothing is found at every step, and scored at every step
    pay          drafters that make passes draft for those requests where that is expected to gain more than it costs
    choose       of all that was proposed, the nodes whose chance is worth their row
    observe      hold everything proposed against the tokens that came

No verdict is final: a paid drafter that is not asked is tried again, as often as the ledger can bear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider.control.acceptance import Calibration, Leaning, Levels, truths
from outrider.control.belief import Belief
from outrider.control.choice import chosen, depth
from outrider.control.costs import CostTable, DraftCost, assumed
from outrider.control.ledger import SHARE, Ledger
from outrider.control.pace import LONG_PAUSE, DraftPace, Pace
from outrider.control.survey import Survey
from outrider.errors import InvalidRequest
from outrider.types import ROOT, Budget, Commit, Draft, Drafter, LooksUp, SequenceView

_PROBE_NODES = 2
_PROMISED_NODES = 4
_SOONEST = 10
"""Steps after which a paid drafter that was not asked may be tried again."""
_LONGEST_PAUSE = 256
_HOPE = 0.66
"""A drafter is taken to be right two times in three before it has been tried."""
_CHEAP_ROW = 0.02
"""What a row is taken to cost, of a pass, where costs cannot be measured."""
_SLACK, _FEW_LEVELS = 0.7, 8
"""Drafters leave out what claims less than this share of what is worth a row (what exactly is, is chosen afterwards);
those that are too modest, less by as much as that makes over a few levels."""
_PLAIN_EVERY, _PLAIN_OFTEN = 128, 12
"""Drafting steps in a row before a plain one: what that takes, all else is compared with. Sooner where costs were not
measured, at first."""
_SELDOM = 4
"""Steps after which what changes slowly is looked at again."""
_NOTHING, _EMPTY = Budget(0, 0), Draft()


@dataclass(slots=True)
class _State:
    """What is known of one request."""

    chain: Levels
    """Of the chains a device drafts: how often each level was right."""
    promised: bool
    """Whether a draft is owed in its next step: what the caller predicts is tried once, whatever is believed of it."""
    ledger: Ledger = field(default_factory=Ledger)
    leanings: dict[str, Leaning] = field(default_factory=dict)
    gains: dict[str, Levels] = field(default_factory=dict)
    """By paid drafter: tokens that each level gained, net of its rows."""
    idle: int = 0
    """Steps since somebody was paid to draft for it, or it came."""
    proposed: Draft = _EMPTY
    """In the step under way: everything, also what was not worth a row."""
    chances: list[float] = field(default_factory=list)
    paid: str | None = None
    """Who was paid in the step under way, for so many `levels`."""
    levels: int = 0
    nodes: int = 0
    expected: float = 0.0
    """Of its draft in the step under way: its size, and the tokens expected of it."""
    rest: int = 0
    """Steps for which nobody need be asked whether to pay: nothing paid lately, and little changes in a step."""
    away: bool = False
    """Whether nobody will be paid for it for long."""
    issued: deque[tuple[int, float]] = field(default_factory=deque)
    """Lengths of a device's steps that have not been observed yet, the oldest first, and how much longer than a plain
    one each takes."""


class AutoLength:
    """Drafts of at most `nodes` nodes per sequence and `rows` verified rows per step (one per sequence included), but
    for the first step of a sequence that brings a prediction."""

    lengths = (0, 1, 2, 3, 4, 6, 8)

    def __init__(
        self, nodes: int = 16, rows: int = 32, *, table: CostTable | None = None, survey: Survey | None = None
    ) -> None:
        """Costs are known from a `table`, or will be from a `survey`, until when decoding is plain; with neither they
        are guessed at and learned."""
        if nodes < 1 or rows < 2:
            raise InvalidRequest(f"nodes={nodes} must be at least 1 and rows={rows} at least 2.")
        self.nodes = nodes
        self.rows = rows
        self.issued: Sequence[int] = ()
        self._table = table or (None if survey else assumed(_CHEAP_ROW))
        self._survey = survey
        self._pace = Pace(self._table, rows) if self._table else None
        self._drafter: Drafter | None = None
        """The one asked last, and what it can look up."""
        self._lookup: LooksUp | None = None
        self._drafting: dict[str, DraftPace] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._newcomer: dict[str, Levels] = {}
        """What each paid drafter's levels gain a request of which nothing is known yet."""
        self._chain = Levels([_HOPE**k for k in range(1, nodes + 1)], _HOPE, 1 / 64, 4)
        self._states: dict[int, _State] = {}
        self._steps = 0
        self._efficiency = 1.0
        """What a token costs now, of what it costs plainly."""
        self._row = self._price = self._plain = 0.0
        """What a row costs, what a token is worth, and what it costs plainly, as of the last step, in the table's
        seconds."""
        self._best = 0.0
        """The likeliest node proposed in the last step."""
        self._away = False
        self._modesty = 1.0
        """Of the lookup that claims too little."""
        self._since_plain = _PLAIN_EVERY
        self._silent = 0
        """Steps in a row without a draft."""
        self._silence = _SOONEST

    @property
    def held(self) -> int:
        """Sequences known."""
        return len(self._states)

    # -- deciding

    def draft(
        self, drafter: Drafter, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]
    ) -> list[Draft]:
        states = [self._state(s) for s in sequences]
        limits = [max(0, min(self.nodes, most)) for most in room]
        plain, owed = len(states), any(state.promised for state in states)
        self._since_plain += 1
        measured = self._table is not None and self._table.measured
        every = _PLAIN_EVERY if measured else min(_PLAIN_EVERY, _PLAIN_OFTEN + self._steps // _PLAIN_OFTEN)
        if (self._pace is None or plain >= self.rows or self._since_plain > every) and not owed:
            return self._given([_EMPTY] * plain)
        pace = self._pace or Pace(assumed(_CHEAP_ROW), self.rows)
        costs = pace.costs(_context(sequences))
        if plain >= len(costs):
            costs = [*costs, *[costs[-1]] * (plain + 1 - len(costs))]
        self._plain = costs[plain] / plain
        self._price = min(1.0, self._efficiency) * self._plain
        self._row = costs[plain + 1] - costs[plain] if plain < self.rows else costs[plain]
        if drafter is not self._drafter:
            self._drafter, self._lookup = drafter, drafter if isinstance(drafter, LooksUp) else None
        found = self._found(sequences, limits, tree)
        names = [self._lookup.paid(s) for s in sequences] if self._lookup else [drafter.name] * plain
        budgets = [_NOTHING] * plain
        if self._pace is not None and any(names):  # nobody is paid before it is known what they cost
            budgets = self._paid(names, sequences, states, limits, found, costs, tree)
            self._away = all(state.away for state in states)
        if any(budget.nodes for budget in budgets):
            guessed = drafter.propose(sequences, budgets)
            found = [self._both(*pair, tree) for pair in zip(found, guessed, strict=True)]
        return self._given(self._chosen(states, found, limits, costs))

    def _found(self, sequences: Sequence[SequenceView], limits: Sequence[int], tree: bool) -> list[Draft]:
        """What lookups find, all that could be worth a row."""
        if self._lookup is None:
            return [_EMPTY] * len(sequences)
        if not self._steps % _SELDOM:
            labels = [label for label in self._calibrations if label not in self._drafting]
            self._modesty = max((self._calibrations[label].modesty for label in labels), default=1.0)
        floor = _SLACK * self._row / self._price / self._modesty**_FEW_LEVELS
        return self._lookup.look_up(sequences, [Budget(limit, limit, floor, tree) for limit in limits])

    def _paid(
        self,
        names: Sequence[str | None],
        sequences: Sequence[SequenceView],
        states: Sequence[_State],
        limits: Sequence[int],
        found: list[Draft],
        costs: Sequence[float],
        tree: bool,
    ) -> list[Budget]:
        """How many levels the drafters that make passes draft for each; drops what was found where both cannot be."""
        plain = len(states)
        for state in states:
            state.rest -= 1
        if all(state.rest > 0 for state in states):
            return [_NOTHING] * plain
        hopes: list[list[float]] = []  # what each level is expected to gain
        for i, (state, name, limit) in enumerate(zip(states, names, limits, strict=True)):
            if name is None or not limit:
                hopes.append([])
                continue
            gains = self._gains(state, name).expected(limit)
            if found[i].tokens:
                known = self._covered(state, found[i], limit)
                gains = [gain * (1 - here) for gain, here in zip(gains, known, strict=True)]
            hopes.append([gain * self._price for gain in gains])
        sharing = sum(1 for hope in hopes if hope and hope[0] > 0) or 1
        bearable = min(state.ledger.patience for state in states) * costs[plain]
        budgets = []
        for i, (state, name, hope) in enumerate(zip(states, names, hopes, strict=True)):
            state.paid, state.levels = None, 0
            if name is None or not hope:
                budgets.append(_NOTHING)
                continue
            cost = self._cost(name)
            begin = cost.beginning(state.idle)
            levels = depth(hope, begin / sharing, cost.per_level / sharing)
            floor = self._floor(name)
            nodes = limits[i]
            alone = sharing < plain and begin + levels * cost.per_level > bearable
            charge = (begin + levels * cost.per_level) / sharing / (costs[plain] / plain)
            if not levels or alone or not state.ledger.affords(charge):
                levels, floor, nodes = 1, 0.0, min(limits[i], _PROBE_NODES)
                charge = (begin + cost.per_level) / (costs[plain] / plain)
                due = min(_LONGEST_PAUSE, max(_SOONEST, charge / SHARE))
                state.away = due - state.idle > LONG_PAUSE
                if state.idle < due or not state.ledger.affords(charge):
                    state.rest = _SELDOM
                    budgets.append(_NOTHING)
                    continue
            if sequences[i].params.verify == "rejection" and found[i].tokens:
                # What is drawn to be rejected or not may not be dropped, nor joined: one of the two.
                if sum(self._covered(state, found[i], limits[i])) * self._price >= sum(hope):
                    budgets.append(_NOTHING)
                    continue
                found[i] = _EMPTY
            state.paid, state.levels, state.away = name, levels, False
            budgets.append(Budget(nodes, levels, floor, tree))
        return budgets

    def _both(self, found: Draft, guessed: Draft, tree: bool) -> Draft:
        if guessed.q is not None:
            return guessed
        if not tree and found.tokens and guessed.tokens:
            return max(found, guessed, key=lambda draft: sum(draft.confidence))
        return found.merged(guessed)

    def _chosen(
        self, states: Sequence[_State], drafts: Sequence[Draft], limits: Sequence[int], costs: Sequence[float]
    ) -> list[Draft]:
        """Of everything proposed, what is worth its row."""
        plain = len(states)
        if not any(draft.tokens for draft in drafts) and not any(state.paid for state in states):
            self._best = 0.0
            for state in states:
                state.promised = False
            return list(drafts)
        own = costs[plain] / plain
        drawn = sum(len(draft) for draft in drafts if draft.q is not None)
        orders: list[list[int]] = []
        for state, draft, limit in zip(states, drafts, limits, strict=True):
            state.proposed, state.chances = draft, self._chances(state, draft)
            order = sorted(range(len(draft)), key=lambda i: (-state.chances[i], i))
            orders.append([] if draft.q is not None else order[:limit])
        self._best = max((max(state.chances) for state in states if state.chances), default=0.0)
        lines = [[s.chances[i] for i in order] for s, order in zip(states, orders, strict=True)]
        sizes, row = chosen(lines, costs[: self.rows + 1 - drawn], self._price, [s.ledger.patience for s in states])
        self._row = row or self._row
        kept = []
        for state, draft, order, size, limit in zip(states, drafts, orders, sizes, limits, strict=True):
            while size and not state.ledger.affords(size * row / own):
                size -= 1
            if state.promised and "prediction" in (draft.source, *draft.sources):
                size = max(size, min(_PROMISED_NODES, limit, len(order)))
            state.promised = False
            state.nodes = len(draft) if draft.q is not None else size
            state.expected = sum(state.chances if draft.q is not None else [state.chances[i] for i in order[:size]])
            whole = draft.q is not None or size == len(draft)
            kept.append(draft if whole else draft.only(sorted(order[:size])))
            if state.paid is not None:
                self._rate(state, state.paid, draft, set(order[:size]))
        return kept

    def _rate(self, state: _State, name: str, draft: Draft, kept: set[int]) -> None:
        """What a paid drafter adds: tokens expected of the nodes that only it proposed, net of their rows."""
        brought, first, depths = [0.0] * state.levels, 0.0, _depths(draft)
        for i, (level, chance) in enumerate(zip(depths, state.chances, strict=True)):
            label = draft.label(i)
            if not level and name in label.split("&"):
                first += chance
            if label == name and level < state.levels and (i in kept or draft.q is not None):
                brought[level] += chance - self._row / self._price
        probe = 0.3 if state.idle else 0.0  # after a long silence what is found weighs more than what was true then
        self._gains(state, name).observe(brought, first, probe)
        self._newcomers(name).observe(brought, first)

    def _given(self, drafts: list[Draft]) -> list[Draft]:
        self.issued = [len(draft) for draft in drafts]
        self._silent = 0 if any(self.issued) else self._silent + 1
        return drafts

    @property
    def belief(self) -> Belief:
        if self._table is None or not self._plain:
            return Belief(known=self._table is not None)
        return Belief(
            measured=self._table.measured,
            row=self._row / self._plain,
            token=self._price / self._plain,
            drafting={name: cost.per_level / self._plain for name, cost in self._drafting.items()},
            acceptance={label: known.rate for label, known in self._calibrations.items()},
            best=self._best,
            ledger=min((state.ledger.left for state in self._states.values()), default=0.0),
            drafted=sum(self.issued),
        )

    @property
    def pays(self) -> bool:
        table = self._table
        return table is None or not table.drafting or any(self._pays(name, table) for name in table.drafting)

    def _pays(self, name: str, table: CostTable) -> bool:
        """Whether a drafter gains newcomers more than it costs."""
        gains, cost = self._newcomers(name).expected(self.nodes), self._cost(name)
        price = min(1.0, self._efficiency) * table.first
        return depth([gain * price for gain in gains], cost.fixed, cost.per_level) > 0

    @property
    def away(self) -> bool:
        return self._away

    @property
    def paused(self) -> bool:
        return self._silent > _SOONEST

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        """The length with the most tokens expected a second, so that no request pays much for another's. Where that is
        0, another is tried now and then."""
        states = [self._state(s) for s in sequences]
        allowed = [s.speculation.max_nodes for s in sequences if s.speculation.max_nodes is not None]
        most = min([limit, self.nodes, *allowed])
        if not seconds:  # a guess, until something is measured
            seconds = {length: 1 + 0.1 * length for length in self.lengths}
        plain = seconds[min(seconds)]
        gained = {length: [sum(state.chain.expected(length)) for state in states] for length in seconds}

        def rate(length: int) -> float:
            return (len(states) + sum(gained[length])) / seconds[length]

        def fair(length: int) -> bool:
            stretch = seconds[length] / plain - 1
            bearable = [s.ledger.patience + own for s, own in zip(states, gained[length], strict=True)]
            return stretch <= min(bearable) and stretch * len(states) <= sum(s.ledger.left for s in states)

        lengths = [length for length in seconds if length <= most and (not length or fair(length))]
        best = max(lengths, key=rate, default=0)
        self._silent = 0 if best else self._silent + 1
        if self._silent >= self._silence:
            self._silent, self._silence = 0, min(_LONGEST_PAUSE, 2 * self._silence)
            best = min((length for length in seconds if 0 < length <= most), default=0)
        elif best:
            self._silence = _SOONEST
        for state in states:
            state.issued.append((best, seconds[best] / plain - 1))
        self.issued = [best] * len(states)
        return best

    # -- learning

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        if not commits or target_seconds <= 0:
            return
        self._steps += 1
        states = [self._state(commit.sequence) for commit in commits]
        context = _context([commit.sequence for commit in commits])
        if self._survey is not None and self._steps > 1:  # nobody waits longer for a first token
            table = self._survey.advance(rows, context, target_seconds)
            if table is not None:
                self._table, self._pace, self._survey = table, Pace(table, self.rows), None
        for calibration in self._calibrations.values():
            calibration.tick()
        if any(state.issued for state in states):
            self._observe_device(states, commits)
            return
        pace = self._pace
        if pace is None:
            for state in states:
                state.proposed, state.nodes = _EMPTY, 0
            return
        if rows == len(commits):
            self._since_plain = 0
        if rows <= self.rows:
            pace.observe(rows, context, target_seconds)
        plain = len(states)
        if rows == plain and not any(state.paid for state in states):
            charges = [0.0] * plain
        else:
            self._learn_drafting(states, draft_seconds / pace.level)
            charges = self._charges(states, context, rows, (draft_seconds + target_seconds) / pace.level)
        stretch = sum(charges) / plain
        expected = sum(state.expected for state in states)
        for state, commit, charge in zip(states, commits, charges, strict=True):
            if state.proposed.tokens:
                self._score(state, commit)
            state.ledger.step(charge, len(commit.tokens) - 1, stretch)
            state.idle = 0 if state.paid else state.idle + 1
            state.paid, state.levels, state.nodes, state.expected = None, 0, 0, 0.0
        # By what was expected, not by what came: luck must not make everything look dear.
        relative = (plain + sum(charges)) / (plain + expected)
        self._efficiency += max(1 / 32, 1 / (self._steps + 1)) * (relative - self._efficiency)

    def _observe_device(self, states: Sequence[_State], commits: Sequence[Commit]) -> None:
        shared = self._steps % len(states)  # what newcomers begin with is learned from one after the other
        for i, (state, commit) in enumerate(zip(states, commits, strict=True)):
            length, stretch = state.issued.popleft() if state.issued else (0, 0.0)
            length = max(length, len(commit.draft))
            state.ledger.step(stretch, len(commit.tokens) - 1, stretch)
            if not length:
                continue
            right = len(commit.path)
            hits = [1.0] * right + [0.0] * (length - right)
            state.chain.observe(hits, hits[0])
            if i == shared:
                self._chain.observe(hits, hits[0])

    def _learn_drafting(self, states: Sequence[_State], seconds: float) -> None:
        names = {state.paid for state in states if state.paid}
        # After a pause a drafter may first have to catch up with the text: no measure of its cost.
        if len(names) == 1 and not any(state.idle for state in states if state.paid):
            self._cost(names.pop()).observe(max(state.levels for state in states), seconds)

    def _charges(self, states: Sequence[_State], context: float, rows: int, seconds: float) -> list[float]:
        """What drafting has added to this step, in plain passes of one request, for each of them."""
        assert self._pace is not None
        plain, costs = len(states), self._pace.costs(context)
        paid = [state for state in states if state.paid]
        if (rows == plain and not paid) or plain >= len(costs):
            return [0.0] * plain
        base = costs[plain]
        row = (costs[min(rows, len(costs) - 1)] - base) / max(1, rows - plain)
        drafting = 0.0
        for state in paid:
            cost = self._cost(state.paid or "")
            drafting = max(drafting, cost.beginning(state.idle) + state.levels * cost.per_level)
        expected = row * (rows - plain) + drafting
        if expected <= 0:
            return [0.0] * plain
        # A step that was disturbed tells nothing of its drafts.
        added = seconds - base if seconds < 1.5 * (base + expected) else expected
        scale = min(2.0, max(0.5, added / expected))
        own = base / plain
        each = drafting / max(1, len(paid))
        return [scale * (s.nodes * row + (each if s.paid else 0.0)) / own for s in states]

    def _score(self, state: _State, commit: Commit) -> None:
        """Hold what was proposed against the tokens that came."""
        draft = state.proposed
        sums: dict[str, tuple[float, int]] = {}
        right = truths(draft, commit.tokens)
        for i, parent in enumerate(draft.parents):
            if right[i] is None or not (parent == ROOT or right[parent]):
                continue  # nothing can be said of what follows a wrong token
            label, claim = draft.label(i), _claim(draft, i)
            expected, hits = sums.get(label, (0.0, 0))
            sums[label] = expected + self._calibration(label).acceptance(claim), hits + bool(right[i])
            self._calibration(label).observe(claim, bool(right[i]))
        for label, (expected, hits) in sums.items():
            state.leanings.setdefault(label, Leaning()).observe(expected, hits)
        state.proposed, state.chances = _EMPTY, []

    def forget(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    # -- small things

    def _state(self, sequence: SequenceView) -> _State:
        state = self._states.get(sequence.id)
        if state is None:
            chain = self._chain.copy(rate=1 / 24, weight=8)
            state = self._states[sequence.id] = _State(chain, promised=bool(sequence.speculation.prediction))
        return state

    def _calibration(self, label: str) -> Calibration:
        known = self._calibrations.get(label)
        if known is None:
            known = self._calibrations[label] = Calibration()
        return known

    def _floor(self, label: str) -> float:
        """The claim, of a whole path, below which hardly anything is worth a row."""
        return _SLACK * self._row / self._price / self._calibration(label).modesty ** _FEW_LEVELS

    def _cost(self, name: str) -> DraftPace:
        """In the table's seconds."""
        cost = self._drafting.get(name)
        if cost is None:
            assert self._table is not None, "nobody is paid before"
            known = self._table.drafting.get(name) or DraftCost(0.0, 0.01 * self._table.first)
            cost = self._drafting[name] = DraftPace(known.fixed, known.per_level, known.resume)
        return cost

    def _gains(self, state: _State, name: str) -> Levels:
        gains = state.gains.get(name)
        if gains is None:
            gains = state.gains[name] = self._newcomers(name).copy(rate=1 / 16, weight=3)
        return gains

    def _newcomers(self, name: str) -> Levels:
        known = self._newcomer.get(name)
        if known is None:
            assert self._table is not None, "nobody is paid before"
            row = self._table.second / self._table.first
            hope = [max(0.0, _HOPE**k - row) for k in range(1, self.nodes + 1)]
            known = self._newcomer[name] = Levels(hope, _HOPE, 1 / 64, 4)
        return known

    def _chances(self, state: _State, draft: Draft) -> list[float]:
        """How likely each node is accepted; never more than its parent."""
        chances: list[float] = []
        for i, parent in enumerate(draft.parents):
            label = draft.label(i)
            chance = self._calibration(label).acceptance(_claim(draft, i))
            if label in state.leanings:
                chance = min(1.0, chance * state.leanings[label].ratio)
            chances.append(chance if parent == ROOT else chance * chances[parent])
        return chances

    def _covered(self, state: _State, draft: Draft, levels: int) -> list[float]:
        """How likely each level is right already, by what was found."""
        covered = [0.0] * levels
        for level, chance in zip(_depths(draft), self._chances(state, draft), strict=True):
            if level < levels:
                covered[level] = min(1.0, covered[level] + chance)
        return covered


def _context(sequences: Sequence[SequenceView]) -> float:
    return sum(len(s.tokens) for s in sequences) / len(sequences)


def _claim(draft: Draft, node: int) -> float:
    """How likely the node is said to be right where its parent is."""
    parent = draft.parents[node]
    above = 1.0 if parent == ROOT else draft.confidence[parent]
    return min(1.0, draft.confidence[node] / above) if above > 0 else 0.0


def _depths(draft: Draft) -> list[int]:
    """Levels between each node and the root: 0 for its children."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    return depths
