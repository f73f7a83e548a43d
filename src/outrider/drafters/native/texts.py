"""Texts in C: one call finds the drafts of all requests of a step."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int32, c_void_p
from functools import cache, partial
from pathlib import Path
from struct import Struct
from weakref import finalize

from outrider import compiled
from outrider.core.draft import Budget, Draft
from outrider.core.request import RequestView
from outrider.drafters import suffix_search as reference
from outrider.drafters.suffix_texts import NAME, RunningText, SuffixConfig, SuffixTexts

_MOST_TOKENS = 2**28
"""That the C code's integers can count the states of."""
_NOTHING = Draft(source=NAME)


class _Rules(Structure):
    """Field by field as in lookup.h."""

    _fields_ = [
        ("own_trust", POINTER(c_double)),
        ("history_trust", POINTER(c_double)),
        ("least", c_double),
        ("longest", c_int32),
        ("most", c_int32),
        ("contexts", c_int32),
        ("fanout", c_int32),
        ("weighed", c_int32),
    ]


class _Ask(Structure):
    """Field by field as in lookup.h."""

    _fields_ = [
        ("text", c_void_p),
        ("history", c_void_p),
        ("floor", c_double),
        ("fresh", c_int32),
        ("nodes", c_int32),
        ("depth", c_int32),
        ("tree", c_int32),
    ]


class _Room(Structure):
    """Field by field as in lookup.h."""

    _fields_ = [
        ("asks", c_void_p),
        ("sizes", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("confidence", c_void_p),
    ]


_ASK = Struct("PPdiiii")
"""An `_Ask`, written in one go: field by field takes three times as long."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled lookup, or None where it was not built (no C compiler at install time)."""
    loaded = compiled.load(Path(__file__).parent, "_lookup", (_Rules, _Ask, _Room))
    if loaded is None:
        return None
    # A call takes microseconds: to let other threads run meanwhile, and to wait for them, would take longer.
    lookup = ctypes.PyDLL(None, handle=loaded._handle)
    for name, result, arguments in (
        ("text", c_void_p, [c_int32]),
        ("forget_text", None, [c_void_p]),
        ("history", c_void_p, [c_int32]),
        ("forget_history", None, [c_void_p]),
        ("learn", c_int32, [c_void_p, c_void_p, c_int32]),
        ("propose", c_int32, [c_void_p, c_void_p, c_int32, c_void_p]),
        ("continue", c_int32, [c_void_p, c_void_p, c_void_p]),
    ):
        function = getattr(lookup, f"outrider_{name}")
        function.restype, function.argtypes = result, arguments
    return lookup


class _History:
    """Texts of finished requests."""

    __slots__ = ("__weakref__", "_lookup", "handle", "size")

    def __init__(self, lookup: ctypes.CDLL, limit: int) -> None:
        self._lookup = lookup
        self.handle = _made(lookup.outrider_history(min(limit, _MOST_TOKENS)))
        self.size = 0
        finalize(self, lookup.outrider_forget_history, self.handle)

    def learn(self, tokens: Sequence[int]) -> None:
        new = array("i", tokens)
        self.size = _found(self._lookup.outrider_learn(self.handle, new.buffer_info()[0], len(new)))


class _Text(RunningText):
    """`history` is where it was last looked up: C knows it by its
    address, which nothing else may have meanwhile."""

    __slots__ = ("__weakref__", "handle", "history")

    def __init__(self, lookup: ctypes.CDLL, limit: int) -> None:
        super().__init__()
        self.handle = _made(lookup.outrider_text(min(limit, _MOST_TOKENS)))
        self.history: _History | None = None
        finalize(self, lookup.outrider_forget_text, self.handle)


class NativeTexts(SuffixTexts[_Text, _History]):
    """To be made where there is a `library` only."""

    def __init__(self, config: SuffixConfig) -> None:
        lookup = library()
        assert lookup is not None, "whoever makes one has looked"
        super().__init__(config, partial(_Text, lookup), partial(_History, lookup))
        self._lookup = lookup
        rules = _Rules(
            (c_double * len(reference.OWN_TRUST))(*reference.OWN_TRUST),
            (c_double * len(reference.HISTORY_TRUST))(*reference.HISTORY_TRUST),
            reference.LEAST,
            reference.LONGEST,
            reference.MOST,
            reference.CONTEXTS,
            reference.FANOUT,
            reference.WEIGHED,
        )
        self._rules = ctypes.pointer(rules)
        self._step = _Step(0, 0)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = [_NOTHING] * len(requests)
        places: list[int] = []
        fresh: list[int] = []
        step = self._step_of(len(requests), sum([max(0, budget.nodes) for budget in budgets]))
        for i, (request, budget) in enumerate(zip(requests, budgets, strict=True)):
            if budget.nodes > 0 and budget.depth > 0:
                fresh += self._ask(step, len(places), request, budget)
                places.append(i)
        new = array("i", fresh)
        nodes = self._lookup.outrider_propose(self._rules, step.room, len(places), new.buffer_info()[0])
        if not _found(nodes):
            return drafts
        start, tokens, parents, confidence = 0, *step.found(nodes)
        for place, size in zip(places, step.sizes, strict=False):
            if size:
                stop = start + size
                drafts[place] = Draft(tokens[start:stop], parents[start:stop], confidence[start:stop], NAME)
                start = stop
        return drafts

    def continuation(self, request: RequestView, count: int) -> Draft:
        step = self._step_of(1, count)
        fresh = array("i", self._ask(step, 0, request, Budget(count, count)))
        nodes = _found(self._lookup.outrider_continue(self._rules, step.room, fresh.buffer_info()[0]))
        tokens, _, confidence = step.found(nodes)
        return Draft(tokens, range(-1, nodes - 1), confidence, NAME)

    def _ask(self, step: _Step, place: int, request: RequestView, budget: Budget) -> Sequence[int]:
        """For this request as number `place` of a step; its new tokens, which are to be given with it."""
        text, known, tokens = self._texts[request.id], self._memory.of(request.cache_salt), request.tokens
        fresh = tokens[text.size :]
        text.size, text.history = len(tokens), known
        wanted = budget.floor, len(fresh), budget.nodes, budget.depth, budget.tree
        _ASK.pack_into(step.asks, place * _ASK.size, text.handle, known.handle, *wanted)
        return fresh

    def _step_of(self, requests: int, nodes: int) -> _Step:
        if len(self._step.sizes) < requests or len(self._step.tokens) < nodes:
            self._step = _Step(2 * requests, 2 * nodes)
        return self._step


class _Step:
    """Room for the requests of a step, and for what is found: C has the addresses, so it stays where it is."""

    __slots__ = ("asks", "confidence", "parents", "room", "sizes", "tokens")

    def __init__(self, requests: int, nodes: int) -> None:
        self.asks = array("b", bytes(_ASK.size * requests))
        self.sizes, self.tokens, self.parents = (array("i", bytes(4 * count)) for count in (requests, nodes, nodes))
        self.confidence = array("d", bytes(8 * nodes))
        parts = self.asks, self.sizes, self.tokens, self.parents, self.confidence
        self.room = ctypes.pointer(_Room(*[part.buffer_info()[0] for part in parts]))

    def found(self, nodes: int) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and confidence of all drafts' nodes."""
        return self.tokens[:nodes].tolist(), self.parents[:nodes].tolist(), self.confidence[:nodes].tolist()


def _made(handle: int | None) -> int:
    """NULL: no memory was left."""
    return _found(handle or -1)


def _found(count: int) -> int:
    """-1: no memory was left."""
    if count < 0:
        raise MemoryError("no memory is left to look up what was said")
    return count
