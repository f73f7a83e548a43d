"""Several requests in flight: what is measured of them. No torch here.

A cell is a number of requests in flight and a way to sample. In every round each arm answers the same requests, one arm
after the other; what one arm did in one round is a wave.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outrider.bench.timing import Timing
from outrider.errors import InvalidRequest

_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cell:
    """`sampling`: as `sampling.parse` reads it."""

    concurrency: int
    sampling: str

    @property
    def name(self) -> str:
        return f"{self.concurrency} {self.sampling}"


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One request's. Its timing begins when it was asked: waiting for a place in the batch is part of its prefill."""

    question: str
    prompt_tokens: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class Wave:
    """Invariant: the waves of one cell have answers to the same requests, in the same order."""

    arm: str
    cell: Cell
    round: int
    seconds: float
    """From the first request asked to the last token of all."""
    answers: tuple[TimedAnswer, ...]
    other_work: float | None = None
    """Processors busy with something else meanwhile; None: not known."""

    @property
    def rate(self) -> float:
        """Tokens per second of all requests together, prompts included."""
        return sum(answer.timing.tokens for answer in self.answers) / self.seconds


def parse_concurrency(text: str) -> list[int]:
    """A comma-separated list of how many requests are in flight; each number once."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    bad = [piece[:20] for piece in pieces if not (_WHOLE.fullmatch(piece) and int(piece))]
    if bad or not pieces:
        wrong = (
            f"{bad[0]!r} is no whole number from 1 on, of at most nine digits" if bad else "give at least one number"
        )
        raise InvalidRequest(f"concurrency: {wrong}; write how many requests are in flight, as in 1,4,16")
    numbers = [int(piece) for piece in pieces]
    twice = [number for i, number in enumerate(numbers) if number in numbers[:i]]
    if twice:
        raise InvalidRequest(f"concurrency: {twice[0]} is named twice")
    return numbers
