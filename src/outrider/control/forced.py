"""What a grammar leaves no choice about (keys, quotes, braces, the rest of a name) is drafted without any drafter, at
once and after what others draft; of theirs, what it forbids is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from outrider.core.draft import Draft
from outrider.core.request import Forced, GrammarWalk, RequestView

_CERTAIN, _SPELLED = 0.999, 0.97
"""What is claimed of a token that is the only one allowed, and of one whose text alone is known; how often they are
right is learned."""

NAME = "grammar"

_TRIED = 4
"""Nodes of others' drafts after which something forced is looked for, the likeliest: it takes time."""

_LEAST_CARRIED = 0.1
"""What a node must claim so that what a grammar has follow it is looked for, which takes time."""

_NOTHING = Draft()


def forced(known: Forced, nodes: int) -> Draft:
    """A single path of at most `nodes` nodes."""
    if not known.tokens or nodes < 1:
        return _NOTHING
    tokens = known.tokens[:nodes]
    claims = [_CERTAIN if i < known.certain else _SPELLED for i in range(len(tokens))]
    return Draft(tokens, range(-1, len(tokens) - 1), list(accumulate(claims, mul)), NAME)


def forced_of_all(requests: Sequence[RequestView], room: Sequence[int], most: int) -> list[Draft]:
    """For each what its grammar forces, of at most `most` nodes and as many as it has room for."""
    each = zip([s.walk for s in requests], room, strict=True)
    return [_NOTHING if walk is None else forced(walk.forced(), min(most, own)) for walk, own in each]


def allowed(request: RequestView, draft: Draft) -> Draft:
    """The draft without what the request's grammar forbids; one that was drawn stays whole."""
    if not draft.tokens or draft.q is not None or (walk := request.walk) is None:
        return draft
    nodes = walk.legal(draft)
    return draft if len(nodes) == len(draft.tokens) else draft.only(nodes)


def carried_on(walk: GrammarWalk, draft: Draft, nodes: int, least: float) -> Draft:
    """The draft with what the grammar has follow those of its nodes that claim at least `least`: a drafter does not
    know where nothing is left to choose."""
    claims = draft.confidence
    likely = [node for node in range(len(draft)) if claims[node] >= least and draft.proposer(node) != NAME]
    if draft.q is not None or not likely:
        return draft
    grown = _Growing(draft)
    for node in sorted(likely, key=claims.__getitem__, reverse=True)[:_TRIED]:
        path = [draft.tokens[i] for i in draft.path(node)]
        grown.add(node, forced(walk.forced(path), nodes - len(path)))
    return grown.draft() if len(grown.tokens) > len(draft) else draft


def all_carried_on(
    requests: Sequence[RequestView], drafts: list[Draft], limits: Sequence[int], worthwhile: float
) -> list[Draft]:
    """The drafts, each of at most so many nodes a path, with what grammars have follow nodes that claim as much as is
    `worthwhile`."""
    walks = [s.walk for s in requests]
    if not any(walks):
        return drafts
    least = max(_LEAST_CARRIED, worthwhile)
    each = zip(walks, drafts, limits, strict=True)
    return [draft if walk is None else carried_on(walk, draft, limit, least) for walk, draft, limit in each]


class _Growing:
    """A tree, and what is added to it."""

    def __init__(self, draft: Draft) -> None:
        self.tokens = list(draft.tokens)
        self._parents, self._confidence = list(draft.parents), list(draft.confidence)
        self._sources = list(draft.sources) or [draft.source] * len(draft)
        self._known = {place: node for node, place in enumerate(zip(self._parents, self.tokens, strict=True))}

    def add(self, after: int, run: Draft) -> None:
        """A single path that follows node `after`; what is there already is so under both names."""
        claim, node = self._confidence[after], after
        for token, confidence in zip(run.tokens, run.confidence, strict=True):
            place, claimed = (node, token), claim * confidence
            node = self._known.setdefault(place, len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self._parents.append(place[0])
                self._confidence.append(claimed)
                self._sources.append(NAME)
            elif NAME not in (names := self._sources[node]).split("&"):
                self._confidence[node] = max(claimed, self._confidence[node])
                self._sources[node] = f"{NAME}&{names}"

    def draft(self) -> Draft:
        names = dict.fromkeys(name for label in self._sources for name in label.split("&"))
        return Draft(self.tokens, self._parents, self._confidence, "+".join(names), sources=self._sources)
