"""Draft as much as pays, from step to step; nothing where nothing pays.

The principle: a node is worth verifying if and only if

    (its chance of acceptance) × (what a token costs now) > (what one more row costs + drafting it).

All four are learned while running, separately for each source of drafts: acceptance per rank and level of the
draft and per sequence (`profile`), by what drafters claim (`calibration`), pass and draft costs (`cost`). Costs
are ratios to the passes made just now, because the machine's speed drifts. A token costs what the steps lately
cost divided by the tokens they lately brought; with that price, taking every node that pays is what maximises
tokens per second, plain decoding included.

No verdict is final. A sequence whose drafts do not pay is probed again, rarely enough that all probes
together cost about 2%, and while everything drafts a plain pass is made now and then, or the price of rows
could not be known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider.control.calibration import Calibration
from outrider.control.cost import CostCurve, DraftCost
from outrider.control.plan import share_rows, worthwhile_depth
from outrider.control.profile import Profile
from outrider.errors import InvalidRequest
from outrider.types import Budget, Commit, Draft, SequenceView

_PROBE_SHARE = 0.02
_PROBE_STEPS = 2
_PROBE_NODES = 4
_SHORTEST_PAUSE, _LONGEST_PAUSE = 16, 256
_SHORTEST_GAP, _LONGEST_GAP = 32, 512


_NOTHING = Budget(0, 0)


@dataclass(slots=True)
class _Chances:
    """How likely drafts are accepted, by rank and by level."""

    ranks: Profile
    levels: Profile

    def copy(self) -> _Chances:
        return _Chances(self.ranks.copy(), self.levels.copy())


class _Source:
    """What is known of one way to draft: a drafter may have several, and they differ in all of this."""

    def __init__(self, nodes: int) -> None:
        self.chances = _Chances(Profile.hopeful(nodes), Profile.hopeful(nodes))
        """What newcomers begin with."""
        self.calibration = Calibration()
        self.cost = DraftCost()


@dataclass(slots=True)
class _State:
    """What is known of one sequence."""

    source: str
    """Of its last draft: most likely of its next, too."""
    chances: dict[str, _Chances] = field(default_factory=dict)
    steps: int = 0
    idle: int = _SHORTEST_PAUSE // 2
    """Steps since the last draft; a new sequence that may not draft is probed a little sooner."""
    pause: int = _SHORTEST_PAUSE
    probes: int = 0
    """Steps of the current probe still to come."""
    active: int = 0
    """Drafting steps in a row that were decided, not probed."""
    issued: deque[Budget] = field(default_factory=deque)
    """Of the steps that have not been observed yet, the oldest first: a device is asked to draft one step ahead."""
    promised: bool = False
    """Whether a draft is owed in its next step: what the caller predicts is tried once, whatever is believed of it."""


_Route = tuple[str | None, bool]


def _route(sequence: SequenceView) -> _Route:
    """What tells beforehand who drafts for a sequence."""
    return sequence.speculation.drafter, bool(sequence.speculation.prediction)


class AutoLength:
    """Budgets of at most `nodes` nodes per sequence and `rows` verified rows per step (one per sequence
    included), but for the first step of a sequence that brings a prediction."""

    lengths = (0, 1, 2, 3, 4, 6, 8)

    def __init__(self, nodes: int = 16, rows: int = 32) -> None:
        if nodes < 1 or rows < 2:
            raise InvalidRequest(f"nodes={nodes} must be at least 1 and rows={rows} at least 2.")
        self.nodes = nodes
        self.rows = rows
        self.issued: Sequence[int] = ()
        self._curve = CostCurve(rows)
        self._sources: dict[str, _Source] = {}
        self._last = ""
        """Source of the last draft of any sequence."""
        self._lately: dict[_Route, str] = {}
        """The same among sequences that are drafted for alike."""
        self._states: dict[int, _State] = {}
        self._steps = 0
        self._cost_per_step = 1.0
        self._tokens_per_step = 0.0
        self._since_plain = 0
        self._gap = 8
        self._silent = 0
        """Steps of a device without a draft."""
        self._silence = _SHORTEST_PAUSE

    @property
    def held(self) -> int:
        """Sequences known."""
        return len(self._states)

    # -- deciding

    def budgets(self, sequences: Sequence[SequenceView], tree: bool, room: Sequence[int]) -> list[Budget]:
        states = [self._state(s) for s in sequences]
        limits = [max(0, min(self.nodes, most)) for _, most in zip(sequences, room, strict=True)]
        if self._since_plain >= self._gap or not self._steps or len(states) >= self.rows:
            budgets = [Budget(0, 0, 0.0, tree) for _ in states]
        else:
            budgets = self._decide(states, limits, tree)
        budgets = [self._kept(*each) for each in zip(states, limits, budgets, strict=True)]
        for state, budget in zip(states, budgets, strict=True):
            state.issued.append(budget)
        self.issued = [budget.nodes for budget in budgets]
        return budgets

    def length(self, sequences: Sequence[SequenceView], seconds: Mapping[int, float], limit: int) -> int:
        """The length with the most tokens expected a second. Where that is 0, another is tried now and then."""
        states = [self._state(s) for s in sequences]
        allowed = [s.speculation.max_nodes for s in sequences if s.speculation.max_nodes is not None]
        most = min([limit, self.nodes, *allowed])
        if not seconds:  # a guess, until something is measured
            seconds = {length: 1 + 0.1 * length for length in self.lengths}
        levels = [self._chances(state).levels for state in states]

        def rate(length: int) -> float:
            return sum(1 + sum(chances.expected(length)[0]) for chances in levels) / seconds[length]

        best = max((length for length in seconds if length <= most), key=rate, default=0)
        self._silent = 0 if best else self._silent + 1
        if self._silent >= self._silence:
            self._silent, self._silence = 0, min(_LONGEST_PAUSE, 2 * self._silence)
            best = min((length for length in seconds if 0 < length <= most), default=0)
        elif best:
            self._silence = _SHORTEST_PAUSE
        for state in states:
            state.issued.append(Budget(best, best, 0.0, tree=False))
        self.issued = [best] * len(states)
        return best

    def _decide(self, states: list[_State], limits: list[int], tree: bool) -> list[Budget]:
        plain = len(states)
        # Rows are doubled step by step: on unknown hardware the first wide pass must not be the widest.
        spare = min(self.rows, max(plain + 3, 2 * self._curve.widest)) - plain
        costs = self._curve.costs()
        value = self._token_value(costs[plain] / plain)
        sizes, row = share_rows([self._chances(s).ranks for s in states], limits, spare, value, costs)
        drafting = sum(1 for size in sizes if size) or 1
        spare -= sum(sizes)
        budgets = []
        floors: dict[str, float] = {}
        for state, size, limit in zip(states, sizes, limits, strict=True):
            source = self._known(state.source)
            per_level, fixed = source.cost.per_level / drafting, source.cost.fixed / drafting
            if state.source not in floors:
                floors[state.source] = source.calibration.claim_for((row + per_level) / value)
            floor = floors[state.source]
            depth = worthwhile_depth(self._chances(state).levels, size, value, row, per_level, fixed)
            if depth and floor <= 1:
                state.probes = 0
                budgets.append(Budget(size if tree else depth, depth, floor, tree))
                continue
            spare += size
            probe = min(_PROBE_NODES if source.cost.per_level < 0.05 else _PROBE_NODES // 2, limit, spare)
            if probe <= 0 or not self._probe_due(state, plain, probe):
                probe = 0
            spare -= probe
            budgets.append(Budget(probe, probe, 0.0, tree))
        return budgets

    @staticmethod
    def _kept(state: _State, limit: int, budget: Budget) -> Budget:
        """The budget, with what was promised. Only the first step is sure to find the prediction with something to say:
        nothing has been written yet that could differ from it."""
        if not state.promised:
            return budget
        state.promised = False
        nodes = max(budget.nodes, min(_PROBE_NODES, limit))
        return Budget(nodes, nodes, 0.0, budget.tree)

    def _probe_due(self, state: _State, plain: int, nodes: int) -> bool:
        if state.probes:
            return True
        costs = self._curve.costs()
        base, drafting = costs[plain], self._known(state.source).cost
        cost = drafting.fixed + nodes * drafting.per_level + costs[plain + nodes] - base
        # Every sequence of the batch may be on pause at once: each gets its part of the allowance.
        if state.idle < max(state.pause, _PROBE_STEPS * cost * plain / (_PROBE_SHARE * base)):
            return False
        state.probes = _PROBE_STEPS
        state.pause = min(_LONGEST_PAUSE, 2 * state.pause)
        return True

    # -- learning

    def observe(self, commits: Sequence[Commit], rows: int, draft_seconds: float, target_seconds: float) -> None:
        plain = len(commits)
        if not plain or target_seconds <= 0:
            return
        self._curve.observe(rows, target_seconds)
        level = self._curve.level
        self._note_plain(rows == plain)
        self._steps += 1
        for source in self._sources.values():
            source.calibration.tick()
        drafted, steady, deepest = False, True, 0
        shared = commits[self._steps % plain]  # what newcomers begin with is learned from one after the other
        for commit in commits:
            state = self._state(commit.sequence)
            issued = state.issued.popleft() if state.issued else _NOTHING
            if not issued.nodes:
                state.idle += 1
                state.active = 0
                continue
            drafted = True
            depth = _depth_of(commit.draft)
            deepest = max(deepest, depth)
            # After a pause the drafter may first have to catch up with the text: no measure of its cost.
            steady = steady and state.idle == 0
            self._learn(state, issued, commit, depth, commit is shared)
        if drafted and steady and len({commit.draft.source for commit in commits if commit.draft.tokens}) <= 1:
            self._known(self._last).cost.observe(deepest, draft_seconds / level)
        rate = max(1 / 16, 1 / (self._steps + 1))
        tokens = sum(len(c.tokens) for c in commits)
        self._tokens_per_step += rate * (tokens - self._tokens_per_step)
        self._cost_per_step += rate * ((draft_seconds + target_seconds) / level - self._cost_per_step)

    def _learn(self, state: _State, issued: Budget, commit: Commit, depth: int, shared: bool) -> None:
        draft = commit.draft
        tried, deepest = max(issued.nodes, len(draft)), max(issued.depth, depth)  # a device may draft a little more
        if draft.tokens:
            state.source = self._last = self._lately[_route(commit.sequence)] = draft.source
            self._known(draft.source).calibration.observe(draft, commit.path)
        chances = self._chances(state)
        order = sorted(range(len(draft)), key=draft.confidence.__getitem__, reverse=True)
        path = set(commit.path)
        hits = {rank for rank, node in enumerate(order) if node in path} if path else ()
        state.steps += 1
        # A probe follows a long silence: what it finds weighs more than what was true then.
        rate = 0.3 if state.probes else max(1 / 24, 1 / (state.steps + 8))
        chances.ranks.observe(tried, len(draft), hits, rate)
        chances.levels.observe(deepest, depth, range(len(path)), rate)
        if shared:
            slow = max(1 / 64, 1 / (self._steps + 4))
            everybody = self._known(state.source).chances
            everybody.ranks.observe(tried, len(draft), hits, slow)
            everybody.levels.observe(deepest, depth, range(len(path)), slow)
        if state.probes:
            state.probes -= 1
            state.active = 0
        else:
            state.active += 1
            if state.active >= _SHORTEST_PAUSE:
                state.pause = _SHORTEST_PAUSE
        state.idle = 0

    def forget(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    def _note_plain(self, plain: bool) -> None:
        """Keep the price of rows known: a plain pass once in a while, sooner when the last one was a
        surprise."""
        if not plain:
            self._since_plain += 1
            return
        if self._since_plain >= self._gap:
            surprised = abs(self._curve.surprise) > 0.25
            self._gap = max(_SHORTEST_GAP if self._steps > 64 else 8, self._gap // 2) if surprised else self._gap * 2
            self._gap = min(_LONGEST_GAP, self._gap)
        self._since_plain = 0

    # -- small things

    def _state(self, sequence: SequenceView) -> _State:
        state = self._states.get(sequence.id)
        if state is None:
            route = _route(sequence)
            state = self._states[sequence.id] = _State(self._lately.get(route, ""), promised=route[1])
        return state

    def _known(self, name: str) -> _Source:
        source = self._sources.get(name)
        if source is None:
            # Before the first draft nobody knows its name: what was assumed then is the first one's.
            source = self._sources.pop("") if "" in self._sources else _Source(self.nodes)
            self._sources[name] = source
        return source

    def _chances(self, state: _State) -> _Chances:
        chances = state.chances.get(state.source)
        if chances is None:
            chances = state.chances[state.source] = self._known(state.source).chances.copy()
        return chances

    def _token_value(self, price: float) -> float:
        """What a token costs now. Never more than `price`, plain decoding: that is always to be had, and a
        price inflated by bad drafts would justify more of them."""
        return min(price, self._cost_per_step / self._tokens_per_step) if self._tokens_per_step else price


def _depth_of(draft: Draft) -> int:
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)
