"""What a grammar leaves no choice about (keys, quotes, braces, the rest of a name) is drafted without any drafter."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from outrider.core.draft import Draft
from outrider.core.request import Forced

_CERTAIN, _SPELLED = 0.999, 0.97
"""What is claimed of a token that is the only one allowed, and of one whose text alone is known; how often they are
right is learned."""

NAME = "grammar"

_NOTHING = Draft()


def forced(known: Forced | None, nodes: int) -> Draft:
    """A single path of at most `nodes` nodes."""
    if known is None or not known.tokens or nodes < 1:
        return _NOTHING
    tokens = known.tokens[:nodes]
    claims = [_CERTAIN if i < known.certain else _SPELLED for i in range(len(tokens))]
    return Draft(tokens, range(-1, len(tokens) - 1), list(accumulate(claims, mul)), NAME)
