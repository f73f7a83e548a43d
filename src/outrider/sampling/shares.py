"""Probabilities in fixed point, for the rejection rule and what is drafted for it.

Whole multiples of 2^-52, in fp64: all of a distribution's sums and differences are exact, so that no order of addition
matters, and a device that adds up in another one draws the same tokens. That changes a distribution of V tokens by V
times 2^-53 at most, which is what rounding might do to a running sum of them anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SHARE = 2.0**52


def shares(logp: Tensor) -> Tensor:
    """Probabilities [..., V] fp64 of log-probabilities; not numbers where those are none."""
    p = logp.to(torch.float64).exp()
    return _rounded(p / p.sum(dim=-1, keepdim=True))


def scaled(weights: Tensor) -> Tensor:
    """Shares [V] in proportion to `weights` [V]; all zeros where they are."""
    mass = weights.sum()
    return _rounded(weights / mass) if mass > 0 else weights


def _rounded(p: Tensor) -> Tensor:
    return p.mul(_SHARE).round_().div_(_SHARE)
