"""How a step is taken: one face for steps on the host and on a device, and one output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from outrider.core.drafter import VerifiedDraft
from outrider.core.step import Recording
from outrider.engine.request import Request

if TYPE_CHECKING:
    from torch import Tensor


class StepOutput(NamedTuple):
    """The requests that gain by one step, what each does, and what it took: `rows` verified, and the time of drafting
    and of the rest."""

    requests: list[Request]
    verified: list[VerifiedDraft]
    rows: int
    draft_seconds: float
    target_seconds: float
    keep: Callable[[Sequence[Request], Sequence[VerifiedDraft]], None]
    """Once drafts are cut to what these requests take: their caches are to hold all tokens but the last of each, which
    has no row yet or (cut inside the path) needs none."""
    failed: Sequence[Request] = ()
    """Those that cannot go on: their `failure` says why."""


class Begun(NamedTuple):
    """The requests whose last token was run with the rest of their prompts, in the target's last pass: by their ids,
    which row of it that was."""

    rows: Mapping[int, int] = {}
    logits: Tensor | None = None
    """What follows those rows, fp32 [requests, V], where the executor chooses by it. The target's cache then has all of
    those prompts' rows pending."""

    def __bool__(self) -> bool:
        return bool(self.rows)


NONE_BEGUN = Begun()


class Executor(ABC):
    """Takes the steps of the requests that decode, and keeps what they take in the target's cache."""

    begins: bool = False
    """Whether a step need not run the last token of a prompt again where the pass of the prompt has."""
    chooses_by_logits: bool = False
    """Whether it wants the logits of that token for it."""

    @property
    def late(self) -> int:
        """As `CachedNetwork.late`."""
        return 0

    @abstractmethod
    def go_on(self) -> None:
        """Newcomers are about to be given slots, and their prompts run: whoever decodes need not wait for that."""

    @abstractmethod
    def step(self, running: list[Request], joining: float, begun: Begun) -> StepOutput:
        """One step of these requests. `joining`: seconds that went into newcomers and prompts since the last one;
        `begun`: all of these or none. Some of them may gain nothing yet: `StepOutput.requests` says who does."""

    @abstractmethod
    def drop(self, request: Request) -> None:
        """It has lost its slot. Should it come back, it is a newcomer."""

    def reset(self) -> None:
        """Nothing is under way any more, and all requests are newcomers."""
        return

    def recordings(self) -> Iterator[Recording]:
        """As `CachedNetwork.recordings`: the steps that may be asked for."""
        return iter(())

    def measure(self) -> Iterator[None]:
        """What those take; yields after each."""
        return iter(())
