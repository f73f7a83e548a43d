"""Speed at a set acceptance, for benchmarks only: drafts are accepted by the die, whatever the target thinks of them.

The text it leads to is not the model's. `SyntheticAcceptance` is therefore no name in `verify.RULES`, which is all that
sampling parameters, `LLM` and the commands can choose from; a benchmark hands it to an `Engine` of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from outrider.core.draft import ROOT, Draft, Verdict
from outrider.errors import InvalidRequest
from outrider.sampling.random_source import RandomSource, Stream
from outrider.verify import RULES, Rules, Target


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """Accept so many of `draft_length` drafted tokens that a step gains `mean_length` tokens on average.

    The number is one of the two whole ones next to mean_length - 1, drawn per step: of all ways to have that mean, the
    one with the least spread, so a short run measures it too. In a tree the first-drawn path is followed. A draft
    shorter than what is drawn (the last ones of a request) is accepted whole.
    """

    draft_length: int
    mean_length: float
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.draft_length < 0:
            raise InvalidRequest(f"draft_length must be at least 0, not {self.draft_length}")
        if not 1 <= self.mean_length <= self.draft_length + 1:
            raise InvalidRequest(
                f"a synthetic acceptance length of {self.mean_length:g} cannot be had with {self.draft_length} drafted "
                f"tokens per step; choose one from 1 to {self.draft_length + 1}, or draft more"
            )

    def accepted(self, chance: RandomSource) -> int:
        """Drafted tokens to accept in the step of this chance: 0 to draft_length, on average mean_length - 1."""
        share, fewest = math.modf(self.mean_length - 1)
        return int(fewest) + chance.bernoulli(share, Stream.ACCEPT, ROOT)

    def __call__(self, draft: Draft, target: Target, chance: RandomSource) -> Verdict:
        """A `Rule`; the last token is the target's own choice, so that what follows stays text-like."""
        path: list[int] = []
        node = ROOT
        for _ in range(self.accepted(chance)):
            children = draft.children(node)
            if not children:
                break
            node = children[0]
            path.append(node)
        return Verdict(tuple(path), target.choose(node))

    def rules(self) -> Rules:
        """For `HostExecutor`: this, whatever rule a request's parameters name."""
        return dict.fromkeys(RULES, self)
