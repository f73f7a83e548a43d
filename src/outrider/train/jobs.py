"""What the bulk writer is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.integer]
"""Token ids [length]."""


class Job(NamedTuple):
    """One sequence to be written. What is sampled depends on (the writer's seed, `number`, the prompt) alone."""

    prompt: Sequence[int]
    temperature: float
    """0: greedy."""
    max_new: int
    number: int
    tag: str


class Written(NamedTuple):
    """A sequence that ended: prompt and answer, with the stop token where it came to one."""

    tokens: Tokens
    prompt_length: int
    finished: bool
    """Ended by a stop token, not by a limit."""
    tag: str
    number: int
    temperature: float
    looped: bool = False
    """It went on, in a loop, after the tokens given here."""

    @property
    def answer(self) -> Tokens:
        """What the target wrote, the stop token included."""
        return self.tokens[self.prompt_length :]


class Sample(NamedTuple):
    """A conversation to learn from."""

    tokens: Tokens
    spans: tuple[tuple[int, int], ...]
    """[start, stop) of what the target wrote as itself, in order; the last one ends the sequence."""
    tag: str
    number: int
    temperature: float
    """Of the answers; 0: greedy."""
    family: int
    """Samples with something in common (a passage, say) share it: they are held out together."""
    looped: bool = False
    """The last answer is cut where it began to loop."""


class BulkWriter(Protocol):
    def write(self, jobs: Iterator[Job | None]) -> Iterator[Written]:
        """Every job's sequence, in the order in which they end.

        Jobs are pulled when there is room, so that they can be made from what was written before. None: no job just
        now, ask again after the next result; with nothing left to wait for it ends the writing, as running out does.
        """
        ...
