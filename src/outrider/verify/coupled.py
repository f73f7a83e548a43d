"""The coupled rule: follow the target's own choice for as long as the draft contains it.

Each choice is a pure function of (distribution, seed, position), so the tokens are those of plain decoding
whatever was drafted: a draft can only decide how many of them one pass yields.
"""

from __future__ import annotations

from outrider.core.draft import ROOT, Draft, Verdict
from outrider.sampling.random_source import RandomSource
from outrider.verify.rule import Target


def coupled(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """Needs no chance: the noise is in the target's choices."""
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    path: list[int] = []
    node = ROOT
    while True:
        token = target.choose(node)
        following = child.get((node, token))
        if following is None:
            return Verdict(tuple(path), token)
        path.append(following)
        node = following
