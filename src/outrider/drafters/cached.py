"""What drafters with a network and a cache of their own have in common: slots for requests, and drafts that are grown
level by level, one pass for all requests together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import DevicePart, Drafter
from outrider.core.model import CachedNetwork
from outrider.core.request import RequestView
from outrider.core.step import HandedOver, PendingFeatures
from outrider.drafters.best_first_tree import BestFirstTree
from outrider.drafters.tree_builder import TreeBuilder
from outrider.kvcache.prefix_cache import PrefixCache
from outrider.sampling.history import History
from outrider.sampling.random_source import RandomSource

Chance = Callable[[int, int, int], RandomSource]
"""Outcomes for (seed, choice, step); the exactness tests enumerate them."""


@dataclass(slots=True)
class Held:
    """A request as a drafter has it in its own cache."""

    slot: int
    prompt_length: int
    history: History

    def count(self, tokens: Sequence[int]) -> None:
        """Its text has grown to `tokens`."""
        self.history.append(tokens[self.prompt_length + self.history.generated :])


H = TypeVar("H", bound=Held)
_NO_STATES = torch.empty(0)


class Plan(Generic[H]):
    """The draft of one request in one step."""

    def __init__(self, request: RequestView, held: H, growth: TreeBuilder | BestFirstTree, chance: Chance) -> None:
        params = request.params
        self.request = request
        self.held = held
        self.growth = growth
        self.chance = chance(params.seed, params.choice, len(request.tokens) - request.prompt_length)
        self.q: list[Tensor] = []
        """Per node, where nodes are sampled: the log-probabilities [V] at its parent."""
        self.states = _NO_STATES
        """After each node of the level before the last, where the network drafts on from its own."""

    def paths(self) -> list[list[int]]:
        """The tokens that lead to each node of the last level."""
        return [self.growth.path(node) for node in self.growth.level]

    def draft(self, source: str) -> Draft:
        tokens, parents, confidence = self.growth.tree()
        return Draft(tokens, parents, confidence, source if tokens else "none", torch.stack(self.q) if self.q else None)


class CachedDrafter(Drafter, Generic[H]):
    """Drafts by passes of `network`. In its stead a device can draft, chains at least."""

    def __init__(self, network: CachedNetwork, branching: int, chance: Chance) -> None:
        self._branching = branching if network.supports_trees else 1
        self._chance = chance
        self._held: dict[int, H] = {}
        self._network = network
        self._prefixes = PrefixCache(network)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def networks(self) -> Mapping[str, CachedNetwork]:
        return {self.name: self._network}

    @property
    def chains(self) -> bool:
        """Whether every draft is a single path."""
        return self._branching == 1

    @property
    def device_part(self) -> DevicePart | None:
        return DevicePart(self, self._network) if self.chains else None

    def open(self, request: RequestView) -> None:
        self._hold(request, self._prefixes.open(request))

    def close(self, request: RequestView) -> None:
        self._prefixes.close(request)
        del self._held[request.id]

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """What is not drafted for costs nothing here; the network catches up with its text when it is, in bulk."""
        wanted = [i for i, budget in enumerate(budgets) if budget.nodes]
        plans = [self._plan(requests[i], budgets[i]) for i in wanted]
        if active := growing(plans):
            self._grow(active)
        drafts = [Draft()] * len(budgets)
        for i, plan in zip(wanted, plans, strict=True):
            drafts[i] = plan.draft(self.name)
        return drafts

    @abstractmethod
    def _hold(self, request: RequestView, slot: int) -> H:
        """Note that the request has this slot, with what is in it."""

    @abstractmethod
    def _plan(self, request: RequestView, budget: Budget) -> Plan[H]:
        """An empty draft, its budget cut to what the network and its cache can take."""

    @abstractmethod
    def _grow(self, plans: list[Plan[H]]) -> None:
        """Bring the cache up to each request's last token, and grow the drafts from there to their ends."""

    @abstractmethod
    def hand_over(self, requests: Sequence[RequestView], soon: bool) -> list[HandedOver]: ...

    @abstractmethod
    def take_back(self, request: RequestView, left: PendingFeatures) -> None: ...

    @abstractmethod
    def leave(self, request: RequestView, seen: int) -> None: ...


def growing(plans: Sequence[Plan[H]]) -> list[Plan[H]]:
    """Those that another level may be added to."""
    return [plan for plan in plans if plan.growth.growing]
