"""What the slots of a cache hold of requests, running and gone, so that a new one can go on from there.

Conversations come back with all they said before, and requests share instructions. A slot that a request has left
keeps its tokens until it is needed, and a new request that begins alike takes them over, if it is of the same
namespace: how soon it answers tells how much of it somebody has sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.model import CachedNetwork
from outrider.core.request import RequestView


@dataclass(slots=True, eq=False)
class Prefix:
    """A slot, and the request whose tokens it holds, or held when it was closed: the first `length` of `tokens`."""

    slot: int
    request: int
    tokens: Sequence[int]
    namespace: str | None
    left: tuple[int, int] | None = None
    """The slot's length and epoch when the request left it; None: it is still running there."""
    sound: bool = True
    """Whether the rows it holds may be reused."""


class PrefixCache:
    """The slots of one target, or of one drafter's network, as one engine uses them. Others may use the same network:
    what is left in a slot is forgotten once somebody has opened that."""

    def __init__(self, network: CachedNetwork, least: int = 1) -> None:
        """`least`: what holds fewer tokens is not worth remembering."""
        self._network = network
        self._least = least
        self._running: dict[int, Prefix] = {}
        """By request."""
        self._left: dict[int, Prefix] = {}
        """By slot, the one unused for longest first."""

    def open(self, request: RequestView) -> int:
        """An empty slot."""
        return self._enter(request, self._network.open())

    def open_from(self, request: RequestView, source: Prefix | None, length: int, keep: bool) -> int:
        """A slot with the first `length` tokens of `source`, at most as many as can be had. `keep`: they must still be
        there afterwards, as they must where it is running."""
        if source is None or not length:
            return self.open(request)
        if source.left is None or keep:
            slot = self._network.fork(source.slot, length)
            if source.slot in self._left:  # it was of use: it is forgotten last
                self._left[source.slot] = self._left.pop(source.slot)
        else:
            slot = source.slot
            self._network.reopen(slot, length)
        return self._enter(request, slot)

    def close(self, request: RequestView) -> None:
        """What the slot holds may be reused until the slot is."""
        prefix = self._running.pop(request.id)
        length = self._network.length(prefix.slot)
        self._network.close(prefix.slot)
        if self._network.keeps_prefixes and prefix.sound and length >= self._least:
            prefix.left = length, self._network.epoch(prefix.slot)
            self._left[prefix.slot] = prefix

    def _enter(self, request: RequestView, slot: int) -> int:
        self._left.pop(slot, None)
        self._running[request.id] = Prefix(slot, request.id, request.tokens, request.cache_salt)
        return slot

    def length(self, prefix: Prefix | None) -> int:
        """Tokens (or rows) that can be had of it."""
        if prefix is None or not self._network.keeps_prefixes:
            return 0
        return self._network.length(prefix.slot) if prefix.left is None else prefix.left[0]

    def find(self, request: int) -> Prefix | None:
        """What this request holds, or left last."""
        if request in self._running:
            return self._running[request]
        return next((prefix for prefix in reversed(self.left) if prefix.request == request), None)

    @property
    def left(self) -> list[Prefix]:
        """What is left and still there, the one unused for longest first."""
        gone = [slot for slot, p in self._left.items() if p.left is None or p.left[1] != self._network.epoch(slot)]
        for slot in gone:
            del self._left[slot]
        return list(self._left.values())

    @property
    def all(self) -> list[Prefix]:
        """What is left, then what runs; nothing where the network cannot keep any."""
        running = [prefix for prefix in self._running.values() if prefix.sound]
        return [*self.left, *running] if self._network.keeps_prefixes else []

    def forget(self, like: RequestView | None = None) -> None:
        """Nothing that is here now is reused: all of it, or of a request's namespace what begins like it and so may
        have the same rows. What runs goes on."""
        for prefix in (*self._left.values(), *self._running.values()):
            if like is None or (like.cache_salt == prefix.namespace and self._alike(like, prefix)):
                prefix.sound = False
        self._left = {slot: prefix for slot, prefix in self._left.items() if prefix.sound}

    def _alike(self, request: RequestView, prefix: Prefix) -> bool:
        return prefix.request == request.id or common_prefix(request.tokens, prefix.tokens) >= self._least

    def trim(self, most: int) -> None:
        """Forget what was unused for longest until at most so many tokens are left."""
        if sum([prefix.left[0] for prefix in self._left.values() if prefix.left]) <= most:  # some may be gone, too
            return
        left = sum(map(self.length, self.left))
        for slot in list(self._left):
            if left <= most:
                return
            left -= self.length(self._left.pop(slot))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with. Halves are compared whole, which Python does without a loop."""
    low, high = 0, min(len(one), len(other))
    if not high or one[0] != other[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
