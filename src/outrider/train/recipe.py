"""What data is made of: the mix of prompts, how answers are sampled, the limits. Recorded with everything trained."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.errors import TrainingError

KINDS = ("file", "invented", "passage", "translation", "maths")
"""Where a conversation's first words come from; plan.py has a script for each."""


def _mix() -> dict[str, float]:
    return {"file": 0.6, "invented": 0.2, "passage": 0.12, "translation": 0.04, "maths": 0.04}


@dataclass(frozen=True)
class Recipe:
    """Shares need not add up to one. Lengths are in tokens."""

    seed: int = 0
    mix: dict[str, float] = field(default_factory=_mix)
    """Share of each kind of conversation. Without a prompt file, or without a chat template, what cannot be made is
    left out and the others grow."""
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.5), (1.0, 0.3), (0.7, 0.2))
    """(temperature, share) of answers."""
    max_prompt: int = 1000
    max_new: int = 256
    """Of an answer."""
    max_words: int = 200
    """Of what the target invents in the user's place."""
    max_passage: int = 420
    tasks_per_passage: int = 4
    follow_up: float = 0.3
    """How likely the conversation goes on after an answer that came to its end."""
    max_turns: int = 3
    loop: int = 8
    """What the target writes is cut, and the conversation ends, where it says the same so many tokens for the third
    time; 0: never."""

    def __post_init__(self) -> None:
        if unknown := set(self.mix) - set(KINDS):
            raise TrainingError(f"recipe: mix knows {', '.join(KINDS)}, not {', '.join(sorted(unknown))}.")
        shares = [*self.mix.values(), *(share for _, share in self.temperatures)]
        if not self.temperatures or min(shares, default=-1) < 0 or not any(self.mix.values()):
            raise TrainingError("recipe: shares must not be negative, and not all zero.")
        if any(temperature < 0 for temperature, _ in self.temperatures):
            raise TrainingError("recipe: temperatures must not be negative.")
        if self.loop < 0:
            raise TrainingError("recipe: loop must be a number of tokens, or 0.")

    @property
    def context(self) -> int:
        """Positions a lane needs."""
        return self.max_prompt + self.max_new

    def temperature(self, rng: random.Random) -> float:
        values, shares = zip(*self.temperatures, strict=True)
        return float(rng.choices(values, shares)[0])

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain
