"""What a drafter's own cache still holds of requests that were closed."""

from __future__ import annotations

from typing import NamedTuple

from outrider.core.model import CachedNetwork


class _Left(NamedTuple):
    request: int
    length: int
    epoch: int


class Remains:
    """Opens and closes slots of one cache, and finds what a request has in it or left in it.

    Slots in use are named by the caller, who knows them; a cache that cannot keep anything gives empty slots."""

    def __init__(self, cache: CachedNetwork) -> None:
        self._cache = cache
        self._keeps = cache if cache.keeps_prefixes else None
        self._left: dict[int, _Left] = {}  # by slot

    def close(self, request: int, slot: int) -> None:
        if self._keeps is not None:
            self._left = {at: left for at, left in self._left.items() if left.request != request}
            self._left[slot] = _Left(request, self._keeps.length(slot), self._keeps.epoch(slot))
        self._cache.close(slot)

    def length(self, source: int, slot: int | None) -> int:
        """Tokens (or rows) held of the request `source`, which has `slot` or (None) was closed."""
        if self._keeps is None:
            return 0
        if slot is not None:
            return self._keeps.length(slot)
        left = self._find(source)
        return 0 if left is None else self._left[left].length

    def open(self, source: int, slot: int | None, length: int, keep: bool) -> int:
        """A slot with the first `length` tokens of `source`, at most what `length` says it holds. `keep`: the source
        must still hold them afterwards, if it was closed."""
        if self._keeps is None or not length:
            return self._cache.open()
        at = self._find(source) if slot is None else slot
        assert at is not None, "ask for the length first"
        if slot is not None or keep:
            return self._keeps.fork(at, length)
        self._keeps.reopen(at, length)
        return at

    def _find(self, source: int) -> int | None:
        """The closed slot that still holds what `source` left."""
        for slot, left in self._left.items():
            if left.request == source and self._keeps is not None and self._keeps.epoch(slot) == left.epoch:
                return slot
        return None
