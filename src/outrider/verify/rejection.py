"""The rejection rule: accept or refuse drafted tokens so that every emitted one is an exact sample.

At a node the target has distribution p and its children x1, x2, … were drawn in this order, without
replacement, from q. Child x is accepted with probability min(1, p(x)/q(x)); if refused, what is still to be
sampled is the residual p ← norm(max(p - q, 0)), and the next child was drawn from q ← q without x,
renormalised. When no child is left, the token comes from p itself. Induction over the children shows that the
result is distributed as p, however the number of children was decided, as long as no decision saw a draw that
was still to come and no drawn child was dropped. A chain is the case of one child; a point mass (no q
declared) that of q(x) = 1.

All distributions are in fixed point (`sampling/shares.py`). Of a chain nothing is scaled after a refusal, so a device
that judges chains gets the same numbers, in whatever order it adds up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.draft import ROOT, Draft, Verdict
from outrider.sampling.random_source import RandomSource, Stream
from outrider.sampling.shares import scaled, shares
from outrider.verify.rule import Target


def rejection(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
    """Each child is accepted or refused in turn; what it costs to refuse one is paid by the residual."""
    path: list[int] = []
    node = ROOT
    while True:
        p = shares(target.logp(node))
        children = draft.children(node)
        q = shares(draft.q[children[0]]) if children and draft.q is not None else torch.zeros_like(p)
        for child in children:
            x = draft.tokens[child]
            if child != children[0]:
                p, q = scaled(p), scaled(q)
            # What was not sampled (no q, or a token outside its support) is a bare proposal: a point mass.
            sampled = bool(q[x] > 0)
            odds = float(p[x] / q[x]) if sampled else float(p[x])
            if chance.bernoulli(min(odds, 1.0), Stream.ACCEPT, child):  # in this order a NaN stays one
                path.append(child)
                node = child
                break
            # No mass left means that nothing but rounding has refused x: p stays as it is.
            left = (p - q).clamp_(min=0) if sampled else _without(p, x)
            p, q = left if left.sum() > 0 else p, _without(q, x)
        else:
            return Verdict(tuple(path), chance.categorical(p, Stream.TARGET, node))


def _without(p: Tensor, x: int) -> Tensor:
    rest = p.clone()
    rest[x] = 0
    return rest
