"""A request's place in the caches of target and drafter: found, with what is already there of its tokens, and left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.engine.prefixes import LEAST, Holder, Prefixes, common_prefix, worth_keeping
from outrider.engine.request import NO_SLOT, Request


class _Found(NamedTuple):
    holder: Holder
    length: int


class SlotManager:
    """Slots of one target and one drafter. Whatever is reused, the next logits are those of a fresh prefill: only what
    both requests begin with is taken over, and no more than the drafter can follow. Nothing passes between requests
    of different salts, in the drafter's caches neither: it is told here whom to go on from."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        self._prefixes = Prefixes()
        self.hits = 0
        """Requests that began with tokens of another."""
        self.reused = 0
        """Tokens they did not have to run."""

    @property
    def kept(self) -> int:
        """Tokens that finished requests have left and that may be reused."""
        return sum(holder.cached for holder in self._left())

    def take(self, request: Request, running: Sequence[Request]) -> None:
        """Give the request a slot, with as many of its tokens as some slot holds; how many it lacks is its
        `num_uncomputed_tokens`.

        If another of those running is about to run what this one needs, it gets none yet: that one becomes its
        `prefix_donor`, and it is to ask again in the next step.
        """
        request.num_uncomputed_tokens = len(request.tokens) - 1
        found = None if request.scoring else self._find(request, running)
        length = found.length if found else 0
        request.prefix_donor = None if request.scoring else self._leader(request, running, length)
        if request.prefix_donor is not None:
            return
        if request.reused is None:
            request.reused = min(length, request.prompt_length)
        if found is None:
            request.slot = self._model.open()
            self._drafter.open(request)
            return
        holder, length = found
        running_there = holder.epoch is None
        keep = running_there or worth_keeping(length, holder.cached)
        if keep:
            request.slot = self._model.fork(holder.slot, length)
            self._prefixes.touch(holder.slot)
        else:
            self._model.reopen(holder.slot, length)
            request.slot = holder.slot
        self._drafter.open_from(request, holder.request, length, keep)
        request.num_uncomputed_tokens -= length
        self.hits += 1
        self.reused += length

    def leave(self, request: Request) -> None:
        """Let go of everything held for the request; what its slot holds may be reused until the slot is."""
        slot, request.slot = request.slot, NO_SLOT
        length = self._model.length(slot)
        self._model.close(slot)
        if self._model.keeps_prefixes and length >= LEAST:
            epoch = self._model.epoch(slot)
            self._prefixes.leave(Holder(slot, request.tokens, length, request.id, request.cache_salt, epoch))
        self._drafter.close(request)

    def trim(self, most: int) -> None:
        """Forget what was left beyond so many tokens."""
        self._prefixes.trim(most)

    def _left(self) -> list[Holder]:
        """What is left and still there: another engine over the same model may have used the slot."""
        for holder in self._prefixes.left:
            if self._model.epoch(holder.slot) != holder.epoch:
                self._prefixes.forget(holder.slot)
        return self._prefixes.left

    def _find(self, request: Request, running: Sequence[Request]) -> _Found | None:
        """The slot with most of the request's tokens; one that nobody uses where there is a choice."""
        if not self._model.keeps_prefixes:
            return None
        held = [
            Holder(s.slot, s.tokens, self._model.length(s.slot), s.id, s.cache_salt, None)
            for s in running
            if s.slot != NO_SLOT
        ]
        best: _Found | None = None
        tokens, beaten = request.tokens, LEAST - 1
        for holder in (*self._left(), *held):
            if holder.salt != request.cache_salt or holder.cached <= beaten or len(tokens) <= beaten:
                continue
            if tokens[beaten] != holder.tokens[beaten]:  # most are told apart so
                continue
            common = common_prefix(tokens, holder.tokens)
            length = min(self._reach(request, holder.request, common), holder.cached)
            if length > beaten:
                best, beaten = _Found(holder, length), length
        return best

    def _leader(self, request: Request, running: Sequence[Request], length: int) -> Request | None:
        """One that will soon hold clearly more of the tokens than the `length` to be had now."""
        if not self._model.keeps_prefixes:
            return None
        for other in running:
            if other.slot != NO_SLOT and other.num_uncomputed_tokens and other.cache_salt == request.cache_salt:
                shared = self._reach(request, other.id, common_prefix(request.tokens, other.tokens))
                if shared - max(length, self._model.length(other.slot)) >= LEAST:
                    return other
        return None

    def _reach(self, request: Request, source: int, common: int) -> int:
        """Of the `common` tokens, those it need not run: the last is always run, and what the drafter cannot follow."""
        return min(self._drafter.reach(request, source, common), common, len(request.tokens) - 1)
