"""A device that steps requests, pretended: each step is planned before the one before is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from control_world import PARAMS

from outrider.control.controller import Controller
from outrider.control.steps import shapes
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.core.step import StepPlan, StepShape
from outrider.drafters.lookup import LookupDrafter

Chance = Callable[[int, int], float]
"""Of one more token to be right, by request and position in its text."""
LENGTHS = (0, 1, 2, 3, 4, 6, 8)


def machine(level: float, row: float, drafts: bool = True) -> dict[StepShape, float]:
    """What steps take, in plain ones: so much more for every level drafted and every token verified."""
    found = shapes(LENGTHS if drafts else (), (4, 8, 16))
    return {shape: 1 + level * shape.drafted + row * shape.verified for shape in found}


class Texts(LookupDrafter):
    """That is right about each token with some chance, of texts nobody else knows."""

    name = "suffix"
    continues = True

    def __init__(self, right: Chance, seed: int = 0) -> None:
        self._right, self._seed = right, seed
        self._truths: dict[tuple[int, int], int] = {}
        self._told: dict[tuple[int, int], int] = {}
        self.asked: list[int] = []

    def truth(self, request: int, position: int) -> int:
        place = request, position
        if place not in self._truths:
            self._truths[place] = Random(f"{self._seed} {request} {position}").randrange(1000)
        return self._truths[place]

    def told(self, request: int, position: int) -> int:
        place = request, position
        if place not in self._told:
            right = Random(f"told {self._seed} {request} {position}").random() < self._right(request, position)
            self._told[place] = self.truth(request, position) + (0 if right else 1)
        return self._told[place]

    def continuation(self, request: RequestView, count: int) -> Draft:
        self.asked.append(request.id)
        if not self._right(request.id, len(request.tokens)):
            return Draft(source="suffix")
        at = len(request.tokens)
        tokens = [self.told(request.id, at + i) for i in range(count)]
        return Draft(tokens, range(-1, count - 1), [0.8 ** (i + 1) for i in range(count)], "suffix")

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.continuation(s, b.nodes) for s, b in zip(requests, budgets, strict=True)]


class Device:
    """`drafted`: of each further token that a head drafts there to be right."""

    def __init__(
        self, controller: Controller, texts: Texts, drafted: Chance, seconds: dict[StepShape, float], count: int
    ) -> None:
        self._controller, self._texts, self._drafted, self._seconds = controller, texts, drafted, seconds
        self.requests: list[Any] = [
            SimpleNamespace(id=i, tokens=[], prompt_length=0, speculation=Speculation(), params=PARAMS, walk=None)
            for i in range(count)
        ]
        self._draw = Random(1)
        self._under_way: deque[StepPlan] = deque()
        self.plans: list[StepPlan] = []
        self.spent: list[tuple[float, int]] = []
        """Of every step: what it took and brought."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            plan = self._controller.plan(self.requests, self._seconds, 16, self._texts)
            self.plans.append(plan)
            self._under_way.append(plan)
            if len(self._under_way) > 1:
                self._read(self._under_way.popleft())

    def rate(self, since: int = 0) -> float:
        """Tokens of each request in what a plain step takes."""
        taken = self.spent[since:]
        return sum(gained for _, gained in taken) / sum(seconds for seconds, _ in taken) / len(self.requests)

    def _read(self, plan: StepPlan) -> None:
        verified = [self._step(plan, i) for i in range(len(self.requests))]
        seconds = self._seconds[plan.shape]
        self.spent.append((seconds, sum(len(each.tokens) for each in verified)))
        self._controller.observe(verified, len(verified) * (1 + plan.shape.verified), 0.0, seconds)

    def _step(self, plan: StepPlan, i: int) -> VerifiedDraft:
        request, offer, right = self.requests[i], plan.offers.get(i), 0
        at = len(request.tokens)
        draft, source = [0] * plan.shape.drafted, "head"
        while right < plan.shape.drafted and self._draw.random() < self._drafted(request.id, at + right):
            right += 1
        if offer is not None:
            came = at - offer.start
            if 0 <= came < len(offer.tokens) and list(offer.tokens[:came]) == request.tokens[offer.start :]:
                draft, source = list(offer.tokens[came : came + plan.shape.verified]), "suffix"
                truths = [self._texts.truth(request.id, at + k) for k in range(len(draft))]
                right = next((k for k, token in enumerate(truths) if draft[k] != token), len(draft))
        tokens = tuple(self._texts.truth(request.id, at + k) for k in range(right + 1))
        request.tokens.extend(tokens)
        claims = [0.8 ** (k + 1) for k in range(len(draft))]
        proposed = Draft(draft, range(-1, len(draft) - 1), claims, source) if draft else Draft()
        return VerifiedDraft(request, proposed, tuple(range(right)), tokens)
