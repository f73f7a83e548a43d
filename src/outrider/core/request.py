"""What is asked for and what comes of it: a request as others see it, its parameters, its steps, its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from outrider.core.draft import Draft, Speculation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]


VerifyRule = Literal["coupled", "rejection"]


StepKind = Literal["target", "recovered", "bonus"]
"""How the target's own token came about: nothing was drafted, a draft was refused, all of the path was accepted."""


class RequestView(Protocol):
    """What a drafter may know of a running request."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output so far; grows in place, never shrinks."""
        ...

    @property
    def prompt_length(self) -> int: ...
    @property
    def params(self) -> ResolvedParams: ...
    @property
    def speculation(self) -> Speculation: ...
    @property
    def cache_salt(self) -> str | None:
        """What is kept of a request may serve those of the same salt alone."""
        ...

    @property
    def forced(self) -> Forced | None:
        """What its grammar leaves no choice about; None where it has none."""
        ...


class Forced(NamedTuple):
    """Tokens that a grammar has follow an output. The first `certain` are the only ones allowed; of the others only the
    text is given, which may also be cut into other tokens."""

    tokens: tuple[int, ...] = ()
    certain: int = 0


class GrammarWalk(Protocol):
    """Where one output stands in a grammar; a function of its tokens alone."""

    def advance(self, tokens: Sequence[int]) -> None:
        """The output has grown by `tokens`."""
        ...

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens [V] may follow the output and then `path`; None where none may, or `path` itself may not, or
        nobody can tell (`limit`)."""
        ...

    def forced(self) -> Forced:
        """What must follow the output, as far as that is known without a choice: a proposal, to be verified as any."""
        ...

    def limit(self, path: Sequence[int]) -> str | None:
        """Why it cannot be told what may follow `path`, in words; None where it can."""
        ...


class TokenGrammar(Protocol):
    """What outputs may look like, token by token."""

    def start(self) -> GrammarWalk:
        """For an output that is still empty."""
        ...


@dataclass(frozen=True, slots=True)
class ResolvedParams:
    """`SamplingParams` with every default filled in: what one request is decoded with."""

    max_tokens: int
    temperature: float
    top_k: int
    """0: off."""
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    choice: int
    """Index of this choice among several drawn with one seed."""
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """Tokens that end the request: the model's EOS list (unless ignored) and the user's own."""
    min_tokens: int
    logprobs: int | None
    processed_logprobs: bool
    verify: VerifyRule
    prompt_logprobs: int | None = None
    grammar: TokenGrammar | None = None
    """What the output must look like."""

    @property
    def is_bare(self) -> bool:
        """Whether no penalty, bias or mask can change the logits."""
        return (
            self.repetition_penalty == 1
            and not self.frequency_penalty
            and not self.presence_penalty
            and not self.logit_bias
            and not self.min_tokens
            and self.grammar is None
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an emitted token and of the most likely alternatives at its position (-9999.0 for -inf)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class StepTrace(NamedTuple):
    """One step of one request, for people: the draft, the accepted path and what the target added."""

    draft: Draft
    path: tuple[int, ...]
    token: int | None
    """The target's own token; None when the step was cut (eos, stop, limit) inside the accepted path."""
    kind: StepKind
    why: str = ""
    """Why so much was drafted, where a trace was asked for and the controller decides."""


@dataclass(slots=True)  # not frozen: many are made
class Chunk:
    """A piece of a streamed completion. `text` may be empty while a stop string or UTF-8 character is pending."""

    index: int
    """Which prompt of the batch this belongs to."""
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[str, ...]
    """Per token: the drafter that proposed it, or "target"."""
    step: StepTrace
    completion: Completion | None = None
    """The whole result, on the last chunk of a request."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Per token, where they were asked for."""


class Tally(NamedTuple):
    """Tokens drafted, and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    origins: list[str]
    prompt_tokens: int
    seed: int
    steps: int
    """Target passes that decoded (prefill not counted)."""
    drafted: int
    accepted: int
    seconds: float
    """From the end of this request's prefill to its last token."""
    prefill_seconds: float
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of the prompt's tokens after the first, where they were asked for."""
    trace: list[StepTrace] = field(default_factory=list)
    sources: Mapping[str, Tally] = field(default_factory=dict)
    """By who drafted."""
    acceptance: list[int] = field(default_factory=list)
    """Entry n: steps in which n drafted tokens were accepted."""

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target pass."""
        return len(self.token_ids) / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds > 0 else 0.0
