"""What every acceptance rule is: a pure function from a draft and the target's opinion of it to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from outrider.core.draft import Draft, Verdict
from outrider.core.request import VerifyRule
from outrider.sampling.random_source import RandomSource

if TYPE_CHECKING:
    from torch import Tensor


class Target(Protocol):
    """The target's opinion at the nodes of a draft, ROOT included."""

    def choose(self, node: int) -> int:
        """The token plain decoding would put after `node`, under the shared noise."""
        ...

    def logp(self, node: int) -> Tensor:
        """Log-probabilities [V] of the token after `node`."""
        ...


Rule = Callable[[Draft, Target, RandomSource], Verdict]

Rules = Mapping[VerifyRule, Rule]
"""What the names of rules stand for."""
