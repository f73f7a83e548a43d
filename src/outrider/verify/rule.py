"""What every acceptance rule is: a pure function from a draft and the target's opinion of it to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from outrider.sampling.chance import Chance
from outrider.types import Draft, Verdict, VerifyRule

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


Rule = Callable[[Draft, Target, Chance], Verdict]

Rules = Mapping[VerifyRule, Rule]
"""What the names of rules stand for."""
