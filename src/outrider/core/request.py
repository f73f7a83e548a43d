"""What is asked for and what comes of it: a request as others see it, its parameters, its steps, its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from outrider.core.draft import Draft, Speculation
from outrider.core.features import features_of

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
    def reused(self) -> int | None:
        """Tokens of its prompt that were there when it came, and are not run again; None: it has not come yet."""
        ...

    @property
    def params(self) -> ResolvedParams: ...
    @property
    def speculation(self) -> Speculation: ...
    @property
    def cache_salt(self) -> str | None:
        """What is kept of a request may serve those of the same salt alone."""
        ...

    @property
    def walk(self) -> GrammarWalk | None:
        """Where its output stands in its grammar, if that is to be drafted from; None where it has none."""
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

    def forced(self, path: Sequence[int] = ()) -> Forced:
        """What must follow the output and then `path`, as far as that is known without a choice: a proposal, to be
        verified as any."""
        ...

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        """Of the tokens that a mask lets follow, the likeliest first: those to expect of any writer. None where there
        are too many to tell."""
        ...

    def legal(self, draft: Draft) -> list[int]:
        """The nodes of a draft that may be written after the output, with all before them."""
        ...

    def limit(self, path: Sequence[int]) -> str | None:
        """Why it cannot be told what may follow `path`, in words; None where it can."""
        ...


class TokenGrammar(Protocol):
    """What outputs may look like, token by token."""

    def start(self) -> GrammarWalk:
        """For an output that is still empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedParams:
    """`SamplingParams` with every default filled in: what one request is decoded with. A field's default is its neutral
    value, which asks for nothing."""

    EVERYWHERE: ClassVar = frozenset({"max_tokens", "seed", "choice", "stop", "stop_token_ids"})
    """Fields that are no features: they say where a text ends and key the noise, whoever chooses its tokens."""

    max_tokens: int
    seed: int
    choice: int
    """Index of this choice among several drawn with one seed."""
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """Tokens that end the request: the model's EOS list (unless ignored) and the user's own."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    logprobs: int | None = None
    processed_logprobs: bool = False
    prompt_logprobs: int | None = None
    verify: VerifyRule = "coupled"
    grammar: TokenGrammar | None = None
    """What the output must look like."""
    features: frozenset[str] = field(init=False, repr=False, compare=False)
    """Names of the fields that ask for something. Who chooses tokens in a way of its own declares which it knows, and
    leaves requests with others to the reference (`sampling.warp`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", features_of(self, self.EVERYWHERE))

    @property
    def judged(self) -> bool:
        """Whether drafts are drawn, and judged by the rejection rule: greedily all rules give the same tokens."""
        return self.verify == "rejection" and self.temperature > 0


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
    seconds: float = 0.0
    """Since the request's step before; of its first, since it was begun."""


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
