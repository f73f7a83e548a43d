"""What is measured of one answer, and of whom it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How every arm samples one answer: always exactly `max_tokens` tokens, the end of text is ignored."""

    max_tokens: int
    temperature: float
    seed: int
    top_k: int = 0
    """0: off. Only our own arms are asked for it, and for `top_p`."""
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer by one arm.

    Time is cut where the first tokens appear: everything before is prefill, everything after is decoding. So a decode
    rate is `decode_tokens / decode_seconds`, the tokens that came with the first pass counted on neither side.
    """

    tokens: int
    token_ids: tuple[int, ...] | None
    """None: the arm does not tell (an endpoint)."""
    passes: tuple[int, ...] | None
    """Tokens gained by each target pass, the first one included; None: the arm does not tell."""
    prefill_seconds: float
    decode_seconds: float
    drafted: int | None = None
    """Tokens proposed in all passes; None: the arm does not tell."""

    @property
    def decode_tokens(self) -> int:
        return self.tokens - (self.passes[0] if self.passes else 1)

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def rate(self) -> float:
        """All tokens over all the time, from asking to the last token."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


class Stopwatch:
    """Makes a `Timing` out of tokens as they come: `emit` once per target pass."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._times: list[float] = []
        self._passes: list[int] = []
        self._tokens: list[int] = []

    def emit(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._times.append(perf_counter())
            self._passes.append(len(tokens))
            self._tokens.extend(tokens)

    def timing(self, drafted: int | None = None) -> Timing:
        first, last = self._times[0], self._times[-1]
        return Timing(
            tokens=len(self._tokens),
            token_ids=tuple(self._tokens),
            passes=tuple(self._passes),
            prefill_seconds=first - self._started,
            decode_seconds=last - first,
            drafted=drafted,
        )


class Arm(Protocol):
    """One way to decode, measured beside others. Life: prepare, run per prompt, close (always, also unprepared)."""

    name: str

    def prepare(self) -> None:
        """Load everything and warm up; raises `ArmUnavailable` where it cannot run here."""
        ...

    def run(self, prompt: Sequence[int], sampling: Sampling) -> Timing: ...

    def close(self) -> None: ...

    @property
    def pids(self) -> Sequence[int]:
        """Processes of its own, besides ours."""
        ...

    @property
    def versions(self) -> dict[str, str]:
        """What it runs on, for the provenance; known once prepared."""
        ...


class ArmUnavailable(Exception):
    """This arm cannot run here; the message says why, and the command that changes it."""


WARM_UP = Sampling(max_tokens=16, temperature=0.0, seed=0)
"""What an arm decodes once before anything is timed."""
