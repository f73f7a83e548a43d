"""A request's place in the caches of target and drafter: found, with what is already there of its tokens, and left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.engine.request import NO_SLOT, Request
from outrider.kvcache.prefix_cache import Prefix, PrefixCache, common_prefix

LEAST = 16
"""Fewer common tokens are run again: most texts begin with the same few."""


_PART = 32
"""Who waits for another's rows misses a pass: they must be this part of what a pass takes."""


class _Found(NamedTuple):
    prefix: Prefix
    length: int


class SlotManager:
    """Slots of one target and one drafter. Whatever is reused, the next logits are those of a fresh prefill: only what
    both requests begin with is taken over, and no more than the drafter can follow. Nothing passes between requests
    of different salts, in the drafter's caches neither: it is told here whom to go on from."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        self._prefixes = PrefixCache(model, LEAST)
        self._awaited = max(LEAST, model.chunk // _PART)
        """Common tokens that a request waits for until another has run them."""
        self.hits = 0
        """Requests that began with tokens of another."""
        self.reused = 0
        """Tokens they did not have to run."""

    @property
    def kept(self) -> int:
        """Tokens that finished requests have left and that may be reused."""
        return sum(map(self._prefixes.length, self._prefixes.left))

    def take(self, request: Request, running: Sequence[Request]) -> None:
        """Give the request a slot, with as many of its tokens as some slot holds; how many it lacks is its
        `num_uncomputed_tokens`.

        If another of those running is about to run what this one needs, it gets none yet: that one becomes its
        `prefix_donor`, and it is to ask again in the next step.
        """
        request.num_uncomputed_tokens = len(request.tokens) - 1
        found = None if request.scoring else self._find(request)
        length = found.length if found else 0
        request.prefix_donor = None if request.scoring else self._donor(request, running, length)
        if request.prefix_donor is not None:
            return
        if request.reused is None:
            request.reused = min(length, request.prompt_length)
        if found is None:
            request.slot = self._prefixes.open(request)
            self._drafter.open(request)
            return
        prefix = found.prefix
        keep = prefix.left is None or _worth_keeping(length, self._prefixes.length(prefix))
        request.slot = self._prefixes.open_from(request, prefix, length, keep)
        self._drafter.open_from(request, prefix.request, length, keep)
        request.num_uncomputed_tokens -= length
        self.hits += 1
        self.reused += length

    def leave(self, request: Request) -> None:
        """Let go of everything held for the request; what its slot holds may be reused until the slot is."""
        request.slot = NO_SLOT
        self._prefixes.close(request)
        self._drafter.close(request)

    def forget(self, like: Request | None = None) -> None:
        """What the caches hold now is not reused: nothing of it, or nothing that begins like this request."""
        self._prefixes.forget(like)

    def trim(self, most: int) -> None:
        """Forget what was left beyond so many tokens."""
        self._prefixes.trim(most)

    def _find(self, request: Request) -> _Found | None:
        """The slot with most of the request's tokens; one that nobody uses where there is a choice."""
        best: _Found | None = None
        tokens, beaten = request.tokens, LEAST - 1
        if len(tokens) <= LEAST:
            return None
        for prefix in self._prefixes.all:
            if prefix.namespace != request.cache_salt:
                continue
            cached = self._prefixes.length(prefix)
            if cached <= beaten or tokens[beaten] != prefix.tokens[beaten]:  # most are told apart so
                continue
            length = self._reach(request, prefix.request, min(common_prefix(tokens, prefix.tokens), cached))
            if length > beaten:
                best, beaten = _Found(prefix, length), length
        return best

    def _donor(self, request: Request, running: Sequence[Request], length: int) -> Request | None:
        """One that will soon hold clearly more of the tokens than the `length` to be had now."""
        if not self._model.keeps_prefixes or len(request.tokens) - 1 - length < self._awaited:
            return None
        for other in running:
            if other.slot != NO_SLOT and other.num_uncomputed_tokens and other.cache_salt == request.cache_salt:
                shared = self._reach(request, other.id, common_prefix(request.tokens, other.tokens))
                if shared - max(length, self._model.length(other.slot)) >= self._awaited:
                    return other
        return None

    def _reach(self, request: Request, source: int, common: int) -> int:
        """Of the `common` tokens, those it need not run: the last is always run, and what the drafter cannot follow."""
        return min(self._drafter.reach(request, source, common), common, len(request.tokens) - 1)


def _worth_keeping(length: int, cached: int) -> bool:
    """Whether a slot of so many tokens of which `length` are of use now should be copied rather than taken over: what
    would be lost is a good part of it, so somebody else may come back for it."""
    return 2 * (cached - length) > length
