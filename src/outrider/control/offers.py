"""What is looked up for requests that a device steps: found while a step is under way, offered to the next one.

The host knows a text up to the step before, so what it finds is long enough to reach beyond what may have come
meanwhile. It is followed from step to step and held against every token that comes, verified or not: as long as all are
right it stays an offer, and nothing need be looked up again before it runs out.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import pairwise

from outrider.control.acceptance import Acceptance, Leanings, claimed
from outrider.control.forced import allowed, forced
from outrider.core.draft import Draft
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView
from outrider.core.step import Offer

OFFERED = 40
"""Tokens looked up, at most."""
_MORE = 8
"""Tokens looked up beyond those wanted now, for steps to come."""
_AT_ONCE = 4
"""Requests looked up in one step, at most: the host has to be done before the device is."""


class Found:
    """A continuation of one request's text, of which `came` tokens have come, all right."""

    __slots__ = ("_came", "_chances", "_draft", "_sums", "start")

    def __init__(self, draft: Draft, chances: Sequence[float], start: int) -> None:
        """`chances[k]`: of its first k + 1 tokens to be right. It follows `start` tokens."""
        self._draft = draft
        self._chances = [1.0, *chances]
        self._sums = [0.0]
        for chance in chances:
            self._sums.append(self._sums[-1] + chance)
        self._came = 0
        self.start = start

    @property
    def left(self) -> int:
        return len(self._draft) - self._came

    @property
    def source(self) -> str:
        return self._draft.source

    @property
    def offer(self) -> Offer:
        return Offer(self.start, self._draft.tokens[self._came :], self._draft.source)

    def holds(self, ahead: int) -> float:
        """How likely the next `ahead` tokens, which the device may have by now, are right: else the offer is void."""
        return self._chances[self._came + ahead] / self._so_far if ahead < self.left else 0.0

    def gain(self, ahead: int, length: int) -> float:
        """Tokens expected of the `length` after those."""
        count = len(self._draft)
        first = min(self._came + ahead, count)
        return (self._sums[min(first + length, count)] - self._sums[first]) / self._so_far

    def follow(self, tokens: Sequence[int]) -> tuple[list[float], int]:
        """The text has grown to `tokens`: what was claimed of each of the new ones, where those before were right, and
        how many were. One that is wrong leaves nothing to offer."""
        came, draft = self._came, self._draft
        new = tokens[self.start : self.start + self.left]
        right = next((i for i, token in enumerate(new) if token != draft.tokens[came + i]), len(new))
        paths = [draft.confidence[came - 1] if came else 1.0, *draft.confidence[came : came + len(new)]]
        self._came = came + right if right == len(new) else len(draft)
        self.start = len(tokens)
        return [claimed(path, above) for above, path in pairwise(paths)], right

    @property
    def _so_far(self) -> float:
        return max(1e-9, self._chances[self._came])


class Offers:
    """Of all requests; one that ends must be forgotten."""

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._found: dict[int, Found] = {}
        self._asked: dict[int, int] = {}
        """By request: the step in which something was looked up for it."""
        self._steps = 0

    def step(
        self,
        lookup: Drafter | None,
        requests: Sequence[RequestView],
        leanings: Sequence[Leanings],
        wanted: Sequence[int],
    ) -> dict[int, Found]:
        """What there is to offer, by places of `requests`; without a `lookup`, to those with a grammar alone.
        `wanted[i]`: tokens that it should reach. Where more requests need something than can be asked for, those asked
        longest ago come first."""
        self._steps += 1
        due, asking = [], []
        for i, (request, leaning) in enumerate(zip(requests, leanings, strict=True)):
            if lookup is None and request.walk is None:
                continue
            asking.append(i)
            if self._followed(request, leaning) < wanted[i]:
                due.append(i)
        for i in nsmallest(_AT_ONCE, due, key=lambda i: self._asked.get(requests[i].id, -1)):
            self._look_up(lookup, requests[i], leanings[i], min(OFFERED, wanted[i] + _MORE))
        found = self._found
        return {i: found[requests[i].id] for i in asking if requests[i].id in found}

    def _followed(self, request: RequestView, leanings: Leanings) -> int:
        """Hold what was found against what came; how many tokens of it are left."""
        found = self._found.get(request.id)
        if found is None:
            return 0
        if found.start < len(request.tokens):
            claims, right = found.follow(request.tokens)
            self._acceptance.followed(found.source, claims, right, leanings)
        if not found.left:
            del self._found[request.id]
        return found.left

    def _look_up(self, lookup: Drafter | None, request: RequestView, leanings: Leanings, count: int) -> None:
        """What a grammar forces goes before what was said elsewhere, and what it forbids is dropped."""
        self._asked[request.id] = self._steps
        draft = Draft() if request.walk is None else forced(request.walk.forced(), count)
        if not draft.tokens and lookup is not None:
            draft = allowed(request, lookup.continuation(request, count))
        if draft.tokens:
            self._found[request.id] = Found(draft, self._acceptance.along(draft, leanings), len(request.tokens))

    @property
    def held(self) -> int:
        return len(self._asked)

    def forget(self, request: RequestView) -> None:
        self._found.pop(request.id, None)
        self._asked.pop(request.id, None)
