"""Machines made up for the controller: a target and a drafter whose costs and acceptance are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toy import resolved

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import GrammarWalk, RequestView, ResolvedParams

NO_DRAFTS = FixedLength(0)

PASS = 0.013
"""Seconds of a pass of one row, when the machine is at its usual speed."""


PARAMS = resolved()


@dataclass
class Running:
    """A request, as far as a controller looks at it."""

    id: int
    tokens: list[int] = field(default_factory=lambda: [0] * 100)
    prompt_length: int = 0
    reused: int | None = None
    speculation: Speculation = field(default_factory=Speculation)
    params: ResolvedParams = PARAMS
    cache_salt: str | None = None
    walk: GrammarWalk | None = None


@dataclass
class World:
    """A target and a drafter with known costs (in passes of one row) and known acceptance.

    The drafter proposes one chain; `chance(request, step)` is the true chance of each further token and `claim` what
    the drafter says it is. `free`: it is a lookup, else every level takes it `per_level`. Measured times are noisy and
    drift; `spent` counts the true costs. The table given to the controller is the truth, unless `table` says otherwise.
    """

    rows: Callable[[int], float] = lambda rows: 1.0
    chance: Callable[[int, int], float] = lambda request, step: 0.8
    claim: Callable[[float], float] = lambda chance: chance
    per_level: float = 0.005
    free: bool = False
    noise: float = 0.08
    drift: float = 1.7
    seed: int = 0
    table: CostTable | None = None
    thinking: float = 0.0
    """What looking up takes the host, whatever is found."""
    besides: Callable[[int], float] = lambda draft: 0.0
    """What a paid draft takes beside its levels, by its number."""

    def auto(self, nodes: int = 16, rows: int = 32) -> AutoLength:
        line = [PASS * self.rows(r) for r in ROWS]
        cost = DraftCost(0.0, PASS * self.per_level)
        return AutoLength(nodes, rows, table=self.table or CostTable(ROWS, (0, 1), (line, line), 0.0, {"world": cost}))

    def run(self, controller: Controller, steps: int, requests: int = 1, length: int = 10**9) -> Ran:
        draw = random.Random(self.seed)
        ran, made = Ran(), 0
        running = [Running(i) for i in range(requests)]
        for step in range(steps):
            if step and step % length == 0:
                for old in running:
                    controller.forget(old)
                running = [Running(s.id + requests) for s in running]
            drafter = (Finder if self.free else Drafts)(self, step, requests)
            drafts = controller.draft(drafter, running, True, [1000] * requests)
            verified = []
            for request, draft in zip(running, drafts, strict=True):
                chance = self.chance(request.id % requests, step)
                right = 0
                while draw.random() < chance:
                    right += 1
                taken = min(right, len(draft))
                tokens = (*[7] * taken, 7 if right > taken else 8)  # the drafter says 7, the target 8 where it is wrong
                verified.append(VerifiedDraft(request, draft, tuple(range(taken)), tokens))
            rows = requests + sum(len(d) for d in drafts)
            target, proposing = self.rows(rows), self.per_level * drafter.levels
            if drafter.levels:
                proposing, made = proposing + self.besides(made), made + 1
            drafting = proposing + self.thinking * drafter.thoughts
            # The speed of the machine swings by `drift`, with hiccups on top.
            speed = PASS * math.exp(math.log(self.drift) * math.sin(step / 90) / 2 + draw.gauss(0, self.noise))
            hiccup = 4.0 if draw.random() < 0.01 else 1.0
            if isinstance(controller, AutoLength) and controller._paid is not None:
                controller._paid.seconds = proposing * speed  # as its clock would say, which stands still here
            controller.observe(verified, rows, drafting * speed, target * speed * hiccup)
            ran.note(
                target + drafting, [len(c.tokens) for c in verified], [len(draft) for draft in drafts], drafter.levels
            )
        return ran

    def best_fixed(self, steps: int, lengths: Sequence[int] = (0, 1, 2, 3, 4, 6, 8, 11, 15, 16)) -> float:
        """The best rate that `run` has with a fixed length and one request: all have the same luck there, and cost the
        same in every step, so it is drawn once for all of them."""
        draw, gained = random.Random(self.seed), dict.fromkeys(lengths, 0)
        for step in range(steps):
            right = 0
            while draw.random() < self.chance(0, step):
                right += 1
            for length in lengths:
                gained[length] += min(right, length) + 1
            draw.gauss(0, self.noise), draw.random()  # speed and hiccup
        drafting = self.thinking if self.free else self.per_level
        costs = {n: self.rows(1 + n) + drafting * (1 if self.free else n) for n in lengths}
        return max(gained[n] / steps / costs[n] for n in lengths)

    def plain(self, steps: int, requests: int = 1) -> float:
        return self.run(NO_DRAFTS, steps, requests).rate


class Drafts(Drafter):
    """The world's drafter in one step, and how many levels it was asked for."""

    name = "world"

    def __init__(self, world: World, step: int, requests: int) -> None:
        self._world, self._step, self._requests = world, step, requests
        self.levels = self.thoughts = 0

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = []
        for request, budget in zip(requests, budgets, strict=True):
            claim = self._world.claim(self._world.chance(request.id % self._requests, self._step))
            kept: list[float] = []
            for level in range(min(budget.nodes, budget.depth)):
                if kept and kept[-1] < budget.expand_level:
                    break
                self.levels = max(self.levels, level + 1)
                if claim ** (level + 1) < budget.floor:
                    break
                kept.append(claim ** (level + 1))
            drafts.append(Draft([7] * len(kept), range(-1, len(kept) - 1), kept, "world"))
        return drafts


class Finder(Drafts):
    """The same as a lookup."""

    looks_up = True

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        found = self.propose(requests, budgets)
        self.levels, self.thoughts = 0, 1
        return found

    def paid(self, request: RequestView) -> str | None:
        return None


class Predicts(Finder):
    name = "prediction"

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        told = [bool(s.speculation.prediction) and b.nodes > 0 for s, b in zip(requests, budgets, strict=True)]
        return [Draft([5, 6], [-1, 0], [0.01, 0.001], "prediction") if t else Draft() for t in told]


@dataclass
class Ran:
    """What a run came to, step by step."""

    costs: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    drafted: list[list[int]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)

    def note(self, cost: float, tokens: list[int], drafted: list[int], levels: int = 0) -> None:
        self.costs.append(cost)
        self.tokens.append(tokens)
        self.drafted.append(drafted)
        self.levels.append(levels)

    @property
    def rate(self) -> float:
        return self.since(0)

    def since(self, step: int) -> float:
        """Tokens per unit of cost from `step` on."""
        return sum(map(sum, self.tokens[step:])) / sum(self.costs[step:])


def flat(rows: int) -> float:
    return 1 + 0.004 * rows


def rising(slope: float) -> Callable[[int], float]:
    return lambda rows: 1 + slope * (rows - 1)


def always(chance: float) -> Callable[[int, int], float]:
    return lambda request, step: chance


def exact(cost: Callable[[int], float]) -> CostTable:
    line = [cost(r) for r in ROWS]
    return CostTable(ROWS, (0, 1), (line, line))


class Stopwatch:
    """A model whose passes cost what they are said to."""

    def __init__(self, cost: Callable[[int, int], float]) -> None:
        self._cost, self._draw = cost, random.Random(0)
        self.asked = 0

    def measure(self, rows: int, context: int) -> float:
        self.asked += 1
        return self._cost(rows, context) * math.exp(self._draw.gauss(0, 0.03))
