"""What a student's guesses over finished texts say about decoding with it.

Up to the first refusal a greedy draft consists of the text's own tokens, so guesses made along the text are the very
guesses that decoding would see: replaying them gives the acceptance length exactly, without decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class ReplayedAcceptance:
    """Counts over replayed texts, for chains of `depth`."""

    depth: int
    tokens: int = 0
    passes: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.depth
        self.accepted = self.accepted or [0] * self.depth

    def replay(self, right: NDArray[np.bool_]) -> None:
        """right [depth, tokens]: whether the guess of token t made j + 1 tokens ahead (by a draft that began j tokens
        before) was right. Token 0 is the answer's first."""
        count = right.shape[1]
        at = 0
        while at < count:
            run = 0
            while run < self.depth and at + run < count:
                self.reached[run] += 1
                if not right[run, at + run]:
                    break
                self.accepted[run] += 1
                run += 1
            self.passes += 1
            self.tokens += min(run + 1, count - at)
            at += run + 1

    @property
    def length(self) -> float:
        """Tokens per target pass, the target's own token included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def per_position(self) -> list[float]:
        """The chance that draft j is accepted, given that all before it were."""
        return [a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)]
