"""Suffix lookup, the reference: what may follow a text, by every earlier continuation of every suffix of it.

Two texts are searched: the request's own prompt and output, and the outputs of finished requests of the same
salt. In both a suffix automaton is grown token by token, so the longest match is always at hand (see `automaton`).
What the target may say next is estimated like a data compressor would (PPM): the longest matching suffix predicts with
a trust that grows with its length and with how often it was seen, and passes the rest of the probability to
the next shorter suffix, of either text. The draft is then the most probable set of continuations that fits
the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from outrider.core.draft import ROOT, Budget, Draft
from outrider.core.request import RequestView
from outrider.drafters.automaton import NO_TOKEN, RollingAutomaton, SuffixAutomaton
from outrider.drafters.suffix_texts import NAME, RunningText, SuffixConfig, SuffixTexts

REMATCH = 64
"""Tokens matched anew against the shared history after it dropped its oldest half."""
CONTEXTS = 4
"""Suffixes asked per node, over both texts; by then hardly any probability is left to pass on."""
FANOUT = 24
"""Continuations considered per suffix: the first ones seen, and frequent ones are seen early."""
LEAST = 1e-3
"""Nodes less likely than this are never proposed: no row is that cheap."""
WEIGHED = 2
"""First tokens of a long continuation that are chosen among all suffixes."""
LONGEST, MOST = 64, 8
"""Longer matches and higher counts are trusted no more than these."""

_Context = tuple[int, int, int, int]
"""Longest match of a path in both texts: (own state, matched tokens, history state, matched tokens)."""


def _trust(scale: float, power: float) -> list[float]:
    """Chance that one of the known continuations of a suffix is right, at [length × (MOST + 1) + occurrences
    per continuation].

    Fitted by likelihood to 9,000 tokens a small chat model wrote (greedy; edits, instructions, maths), and
    calibrated on other text: a suffix of the own text of m tokens, seen once, is right with about m / (m + 2).
    """
    odds = [scale * length**power * max(1, count) ** 1.37 for length in range(LONGEST + 1) for count in range(MOST + 1)]
    return [value / (1 + value) for value in odds]


OWN_TRUST = _trust(0.47, 0.83)
HISTORY_TRUST = _trust(0.1, 1.0)


class _Text(RunningText):
    """The automaton of its text and its place in the shared history."""

    __slots__ = ("_epoch", "_history", "_matched", "_state", "own")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.own = RollingAutomaton(limit)
        self._state = 0
        self._matched = 0
        self._history: RollingAutomaton | None = None
        self._epoch = -1

    def update(self, tokens: Sequence[int], history: RollingAutomaton) -> None:
        """Take in what is new. Also needed when nothing is: the history may have changed meanwhile."""
        new = tokens[self.size :]
        self.own.extend(new)
        self.size = len(tokens)
        live = history.live
        if self._history is not history or self._epoch != history.epoch:
            self._history, self._epoch = history, history.epoch
            self._state, self._matched = live.match(tokens[-REMATCH:])
            return
        state, matched = live.settle(self._state, self._matched), self._matched
        for token in new:
            state, matched = live.advance(state, matched, token)
        self._state, self._matched = state, matched

    def context(self) -> _Context:
        own = self.own.live
        state = max(0, own.link[own.last])
        return state, own.length[state], self._state, self._matched


class ReferenceTexts(SuffixTexts[_Text, RollingAutomaton]):
    """Texts in Python: the definition, and what finds where there was no compiler."""

    def __init__(self, config: SuffixConfig) -> None:
        super().__init__(config, _Text, RollingAutomaton)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(s, b) for s, b in zip(requests, budgets, strict=True)]

    def continuation(self, request: RequestView, count: int) -> Draft:
        text, known = self._texts[request.id], self._memory.of(request.cache_salt)
        text.update(request.tokens, known)
        own, history = text.own.live, known.live
        context, chance = text.context(), 1.0
        tokens: list[int] = []
        confidence: list[float] = []
        while len(tokens) < min(WEIGHED, count):
            likely = continuations(own, history, context, LEAST / chance)
            token = max(likely, key=likely.__getitem__, default=NO_TOKEN)
            if token == NO_TOKEN or chance * likely[token] < LEAST:
                return Draft(tokens, range(-1, len(tokens) - 1), confidence, NAME)
            chance *= likely[token]
            tokens.append(token)
            confidence.append(chance)
            state, matched, other, other_matched = context
            context = own.advance(state, matched, token) + history.advance(other, other_matched, token)
        for token, share in islice(copied(own, history, context), count - len(tokens)):
            chance *= share
            if chance < LEAST:
                break
            tokens.append(token)
            confidence.append(chance)
        return Draft(tokens, range(-1, len(tokens) - 1), confidence, NAME)

    def _propose(self, request: RequestView, budget: Budget) -> Draft:
        if min(budget.nodes, budget.depth) <= 0:
            return Draft(source=NAME)
        text, known = self._texts[request.id], self._memory.of(request.cache_salt)
        text.update(request.tokens, known)
        own, history = text.own.live, known.live
        floor = max(budget.floor, LEAST)
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        contexts = [text.context()]  # of node i at i + 1, of the root at 0; the same for depths
        depths = [0]
        heap: list[tuple[float, int, int, int]] = []  # (-confidence, order of discovery, parent, token)
        found = 0
        node, chance = ROOT, 1.0
        while True:
            if depths[node + 1] < budget.depth:
                likely = continuations(own, history, contexts[node + 1], floor / chance)
                if not budget.tree and likely:
                    best = max(likely, key=likely.__getitem__)
                    likely = {best: likely[best]}
                for token, share in likely.items():
                    value = chance * share
                    if value >= floor:
                        heappush(heap, (-value, found, node, token))
                        found += 1
            if not heap:
                break
            value, _, parent, token = heappop(heap)
            node, chance = len(tokens), -value
            tokens.append(token)
            parents.append(parent)
            confidence.append(chance)
            if node + 1 == budget.nodes:
                break
            state, matched, other, other_matched = contexts[parent + 1]
            contexts.append(own.advance(state, matched, token) + history.advance(other, other_matched, token))
            depths.append(depths[parent + 1] + 1)
        return Draft(tokens, parents, confidence, NAME)


def copied(own: SuffixAutomaton, history: SuffixAutomaton, context: _Context) -> Iterator[tuple[int, float]]:
    """What followed the longest match, token by token, in the text that has it; with how far each is trusted."""
    state, matched, other_state, other_matched = context
    text, trust = own, OWN_TRUST
    if other_matched > matched + 1 or (other_matched and not matched):
        text, trust, state, matched = history, HISTORY_TRUST, other_state, other_matched
    first, target, branches, count = text.first, text.target, text.branches, text.count
    while matched:
        token, place = first[state], target[state]
        if token == NO_TOKEN:  # the end of the text: a shorter match goes on
            state = text.link[state]
            matched = text.length[state]
            continue
        total = seen = count[place]
        others = branches[state]
        if others is not None:
            for other, there in islice(others.items(), FANOUT):
                total += count[there]
                if count[there] > seen:
                    token, place, seen = other, there, count[there]
        yield token, trust[min(matched, LONGEST) * (MOST + 1) + min(seen, MOST)] * seen / max(1, total)
        state, matched = place, matched + 1


def continuations(own: SuffixAutomaton, history: SuffixAutomaton, context: _Context, least: float) -> dict[int, float]:
    """Probability of each likely next token after `context`; together at most 1.

    Suffixes are asked from the longest to the shortest, those of the history only while clearly longer than
    the own ones. Each gives its trust to its known continuations in proportion to their counts, and the rest
    of `mass` to the next suffix; once less than `least` is left, nothing new can matter.
    """
    state, matched, other_state, other_matched = context
    likely: dict[int, float] = {}
    mass = 1.0
    for _ in range(CONTEXTS):
        if other_matched > matched + 1 or (other_matched and not matched):
            text, trust, here, length = history, HISTORY_TRUST, other_state, other_matched
            other_state = text.link[here]
            other_matched = text.length[other_state]
        elif matched:
            text, trust, here, length = own, OWN_TRUST, state, matched
            state = text.link[here]
            matched = text.length[state]
        else:
            break
        token = text.first[here]
        if token == NO_TOKEN:  # the end of the text: nothing has followed yet
            continue
        count = text.count
        branches = text.branches[here]
        seen = count[text.target[here]]
        if branches is None:
            given = mass * trust[min(length, LONGEST) * (MOST + 1) + min(seen, MOST)]
            likely[token] = likely.get(token, 0.0) + given
        else:
            counts = [(token, seen)]
            total = seen
            for other, target in islice(branches.items(), FANOUT):
                seen = count[target]
                total += seen
                counts.append((other, seen))
            if len(branches) > FANOUT:
                total = max(total, count[here])
            average = total // (len(branches) + 1)
            given = mass * trust[min(length, LONGEST) * (MOST + 1) + min(average, MOST)]
            unit = given / total
            for other, seen in counts:
                likely[other] = likely.get(other, 0.0) + unit * seen
        mass -= given
        if mass < least:
            break
    return likely
