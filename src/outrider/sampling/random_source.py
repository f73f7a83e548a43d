"""Where the rejection rule, and drafters that sample for it, get their random outcomes.

Code that draws asks a `RandomSource`, naming the stream and the node it draws for. The production one answers from
keyed hashes; the exactness tests hand the same code an enumerating one that visits every outcome with its
probability. Each (stream, node) is asked at most once per step, which is what makes a request's draws
independent.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from outrider.sampling.draw import not_a_number
from outrider.sampling.noise import step_key, uniform


class Stream(StrEnum):
    """What a draw is for; streams are independent of one another and of the coupled rule's Gumbel noise."""

    DRAFT = "draft"
    """The token of a draft node, keyed by that node."""
    ACCEPT = "accept"
    """Whether a draft node is accepted, keyed by that node."""
    TARGET = "target"
    """The token the target adds (recovered or bonus), keyed by the node it follows."""


class RandomSource(Protocol):
    """The random outcomes of one step of one request."""

    def bernoulli(self, p: float, stream: Stream, node: int) -> bool:
        """True with probability p (at least 1: always; at most 0: never). NaN is refused."""
        ...

    def categorical(self, weights: Tensor, stream: Stream, node: int) -> int:
        """An index drawn in proportion to `weights` [V] (fp64, not negative). A sum that is not positive and finite is
        refused."""
        ...


class KeyedRandom:
    """Outcomes keyed by (seed, choice, step, stream, node).

    `step` is the generated position of the step's first new token: every step adds a token, so no two steps
    of a request share it, and it is known again after a restart.

    A device draws the same (`models/cuda/kernels/rejection.py`): from shares (`sampling/shares.py`), whose sums have
    no order.
    """

    def __init__(self, seed: int, choice: int, step: int) -> None:
        self._key = (seed, choice, step)

    def bernoulli(self, p: float, stream: Stream, node: int) -> bool:
        if p != p:
            raise not_a_number()
        return self._uniform(stream, node) < p

    def categorical(self, weights: Tensor, stream: Stream, node: int) -> int:
        # Inverse CDF, on the host: its running sum never decreases, which a parallel scan does not promise.
        edges = weights.to("cpu", torch.float64).cumsum(0)
        if not 0 < float(edges[-1]) < math.inf:
            raise not_a_number()
        point = edges[-1] * self._uniform(stream, node)
        index = int(torch.searchsorted(edges, point, right=True))  # the first edge beyond the point: weight > 0
        if index == len(edges):  # the product was rounded up to the total
            index = int(torch.searchsorted(edges, edges[-1]))  # the last weight > 0
        return index

    def _uniform(self, stream: Stream, node: int) -> float:
        """53 uniform bits in [0, 1)."""
        return uniform(step_key(*self._key), draw_number(stream, node))


_STREAMS = {stream: place for place, stream in enumerate(Stream)}


def draw_number(stream: Stream, node: int) -> int:
    """Which of a step's draws is a stream's for a node, or for the root."""
    return len(_STREAMS) * (node + 1) + _STREAMS[stream]
