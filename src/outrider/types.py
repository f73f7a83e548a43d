"""The few types every part shares.

Vocabulary follows the field: the *drafter* proposes a `Draft`, the *target* verifies it in one pass, the accepted
prefix is kept and the target adds one token of its own: *recovered* where a draft was refused, *bonus* where all
of the path was accepted. Acceptance length = tokens emitted per target pass.

Nothing here imports torch at run time, so that torch-free parts stay torch-free. What is made for every sequence in
every step is a NamedTuple: a frozen dataclass takes several times as long to make, and after a pass caches are cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ROOT = -1
"""Parent of the first nodes of a tree: the last committed token."""

FinishReason = Literal["stop", "length"]
VerifyRule = Literal["coupled", "rejection"]
StepKind = Literal["target", "recovered", "bonus"]
"""How the target's own token came about: nothing was drafted, a draft was refused, all of the path was accepted."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of proposed tokens for one sequence; a chain is a tree without branches, plain decoding an empty one.

    Node i proposes `tokens[i]` to follow node `parents[i]` (ROOT: to follow the last committed token).
    Invariants: parents come before children; siblings carry distinct tokens and stand in the order they were drawn.

    `confidence[i]` estimates the chance that node i is accepted (so it never grows along a path); only the
    controller reads it, exactness never depends on it.

    `q` says what the tokens were sampled from. None: point masses, the drafter just proposes. Otherwise row i,
    [nodes, vocab] log-probabilities, is the distribution at node i's parent from which i and its siblings were drawn
    one after the other *without replacement*. Only the rejection rule reads it; declaring it wrongly breaks exactness.

    `source` is the drafter's name. Where a tree was merged, `sources[i]` says whose node i is; names joined by `&`
    proposed the same.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    confidence: Sequence[float] = ()
    source: str = "none"
    q: Tensor | None = None
    sources: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def label(self, node: int) -> str:
        """Who proposed the node, all of them."""
        return self.sources[node] if self.sources else self.source

    def proposer(self, node: int) -> str:
        """Who proposed the node; of several, who did so for less."""
        return self.label(node).partition("&")[0]

    def only(self, nodes: Sequence[int]) -> Draft:
        """Of these nodes alone: rising, and none without its parent. Never of a tree with `q`."""
        if not nodes:
            return Draft()
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(nodes)}}
        return Draft(
            [self.tokens[i] for i in nodes],
            [place[self.parents[i]] for i in nodes],
            [self.confidence[i] for i in nodes],
            "+".join(dict.fromkeys(map(self.proposer, nodes))),
            sources=[self.sources[i] for i in nodes] if self.sources else (),
        )

    def merged(self, other: Draft) -> Draft:
        """Both trees in one, what they have in common once: there the higher claim stands, under both names. Neither
        may have `q`: what was drawn from it may have no other siblings."""
        if not other.tokens or not self.tokens:
            return other if other.tokens else self
        assert self.q is None
        assert other.q is None
        tokens, parents, confidence = list(self.tokens), list(self.parents), list(self.confidence)
        sources = list(self.sources) or [self.source] * len(self)
        names = other.sources or [other.source] * len(other)
        known = {place: node for node, place in enumerate(zip(parents, tokens, strict=True))}
        places = {ROOT: ROOT}  # of the other's nodes in the merged tree
        for i, (token, parent, claim) in enumerate(zip(other.tokens, other.parents, other.confidence, strict=True)):
            at = places[parent], token
            node = places[i] = known.setdefault(at, len(tokens))
            if node < len(tokens):
                confidence[node] = max(confidence[node], claim)
                sources[node] += f"&{names[i]}"
                continue
            tokens.append(token)
            parents.append(at[0])
            confidence.append(claim)
            sources.append(names[i])
        return Draft(tokens, parents, confidence, f"{self.source}+{other.source}", sources=sources)

    def children(self, node: int) -> list[int]:
        """The nodes proposed to follow `node`, in the order they were drawn."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node` itself; empty for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a drafter may spend on one sequence in one step.

    At most `nodes` nodes, none deeper than `depth`, none whose confidence is below `floor` (it would cost more
    than it is expected to bring), and a single path where `tree` is false.
    """

    nodes: int
    depth: int
    floor: float = 0.0
    tree: bool = True


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request may be drafted for; it can change the speed, never the text.

    At most `max_nodes` nodes a step (None: as many as the controller likes; 0: none, plain decoding), by the drafter
    named (None: the engine's own). `prediction`: what the caller expects the answer to be, as tokens to draft from.
    `forced`: whether tokens that a grammar leaves no choice about are drafted, by nobody and for nothing.
    """

    max_nodes: int | None = None
    drafter: str | None = None
    prediction: tuple[int, ...] = ()
    forced: bool = True


class Verdict(NamedTuple):
    """What an acceptance rule decided: the accepted nodes in path order, and the token the target adds."""

    path: tuple[int, ...]
    token: int


class SequenceView(Protocol):
    """What a drafter may know of a running sequence."""

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
        """What is kept of a sequence may serve those of the same salt alone."""
        ...

    @property
    def forced(self) -> Forced | None:
        """What its grammar leaves no choice about; None where it has none."""
        ...


class Commit(NamedTuple):
    """The outcome of one step for one sequence: `tokens` joined it, the first `len(path)` of them drafted."""

    sequence: SequenceView
    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]


class Drafter(Protocol):
    """Proposes what the target may say next. It can change the speed, never the text.

    Lifecycle per sequence: open, then (propose, observe) per step, then close. `propose` answers in the order of
    `sequences` and keeps within each budget; a budget of 0 nodes gets an empty draft.
    """

    name: str

    def open(self, sequence: SequenceView) -> None: ...
    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]: ...
    def observe(self, commits: Sequence[Commit]) -> None: ...
    def close(self, sequence: SequenceView) -> None: ...


@runtime_checkable
class LooksUp(Protocol):
    """A drafter that drafts, at least in part, without a pass of any model: what it finds costs next to nothing, so it
    is asked at every step, before anybody is paid and whether or not anything will be verified."""

    def look_up(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]: ...
    def paid(self, sequence: SequenceView) -> str | None:
        """Who else drafts for it, by passes of a model, when asked to `propose`; None: nobody."""
        ...


@runtime_checkable
class Continues(Protocol):
    """A drafter that finds long continuations fast: for steps on a device, which are given them a step late."""

    def continuation(self, sequence: SequenceView, count: int) -> Draft:
        """A single path of at most `count` nodes."""
        ...


@runtime_checkable
class HasNetworks(Protocol):
    """A drafter that drafts by passes of networks: which, by the names its drafts have as their source."""

    @property
    def networks(self) -> Mapping[str, object]: ...
    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        """By the same names, where it is known beforehand; as `DraftHead.acceptance`."""
        ...


@runtime_checkable
class FollowsPrefixes(Protocol):
    """A drafter with a cache of its own that can open a sequence where another one stands, or stood when it was closed,
    as the target does (`KeepsPrefixes`). One that `ReadsFeatures` and cannot needs every prompt run from its start."""

    def reach(self, sequence: SequenceView, source: int, common: int) -> int:
        """How many of the target's cached tokens may be taken over, so that it runs the sequence from there on only,
        where it and the sequence of id `source` begin with the same `common` tokens."""
        ...

    def open_from(self, sequence: SequenceView, source: int, length: int, keep: bool) -> None:
        """`open`, after `length` (at most `reach`) tokens of `source` were taken over. `keep`: what is known of those
        must stay with the source too."""
        ...


class Rows(NamedTuple):
    """Tokens to run for one cache slot: each follows row `parents[i]` of the slot's pending rows (ROOT: the committed
    prefix). Pending rows are numbered from the last commit on, earlier forwards included, so a tree can be grown level
    by level. `logits` names the rows of *this* call whose logits are wanted (None: all)."""

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int]
    logits: Sequence[int] | None = None

    @staticmethod
    def chain(slot: int, tokens: Sequence[int], logits: Sequence[int] | None = None) -> Rows:
        return Rows(slot, tokens, range(-1, len(tokens) - 1), logits)


@runtime_checkable
class LanguageModel(Protocol):
    """A causal model over a cache of `max_batch` slots, each holding up to `max_context` tokens.

    Per slot the cache is a committed prefix plus pending rows. `forward` appends pending rows, `commit` keeps one root
    path of them (renumbering it contiguously) and drops the rest, `rollback` cuts the prefix and drops all pending.
    Invariant: after any history the next logits are those of a fresh prefill of the committed tokens.
    """

    vocab_size: int
    max_context: int
    max_batch: int
    supports_trees: bool
    chunk: int
    """Rows per pass that prefill should use."""

    def open(self) -> int:
        """A free slot, empty."""
        ...

    def close(self, slot: int) -> None: ...
    def length(self, slot: int) -> int:
        """Committed tokens in the slot."""
        ...

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        """fp32 logits [rows wanted, vocab], in the order of the batch."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None: ...
    def rollback(self, slot: int, length: int) -> None: ...


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A cache of slots (a `LanguageModel` or `DraftHead`) whose closed slots still hold their tokens until they are
    opened again: by `open`, which takes the one unused for longest, or with what they hold."""

    def length(self, slot: int) -> int: ...
    def open(self) -> int: ...
    def close(self, slot: int) -> None: ...
    def epoch(self, slot: int) -> int:
        """How often the slot was opened: while this stays, a closed slot holds what it held when it was closed."""
        ...

    def reopen(self, slot: int, length: int) -> None:
        """Open this closed slot with the first `length` tokens it still holds."""
        ...

    def fork(self, source: int, length: int) -> int:
        """Open a slot with a copy of the first `length` committed tokens of `source`. That one stays as it is, open or
        closed, unless it is closed and no other is left: then it is opened itself."""
        ...


@runtime_checkable
class Accountable(Protocol):
    """A model or drafter that says how much is open in it: when nothing runs, nothing may be."""

    @property
    def held(self) -> int: ...


@runtime_checkable
class Measurable(Protocol):
    """A model or head that can tell what its passes cost."""

    def measure(self, rows: int, context: int) -> float:
        """Seconds of a pass of so many rows behind so many tokens, timed on a part of it. Changes nothing that any
        sequence can see, and takes but a fraction of that pass."""
        ...


@runtime_checkable
class TappedModel(LanguageModel, Protocol):
    """A `LanguageModel` whose hidden states can be read. Tap i is the residual stream after i layers."""

    @property
    def features(self) -> Tensor:
        """[rows of the last `forward`, taps * hidden]; valid until the next one."""
        ...

    def tap(self, layers: Sequence[int]) -> None:
        """Keep these states in every `forward` from now on."""
        ...


class HeadOutput(NamedTuple):
    logits: Tensor
    """fp32 [rows wanted, draft vocabulary]"""
    states: Tensor
    """[rows, hidden]: the head's guess of the state that follows each row."""


class DraftHead(Protocol):
    """A small network that reads the target's features and drafts on from its own states; slots and pending rows as in
    `LanguageModel`.

    A row is a token with the state *before* it. That state is true where the target has run the token before
    (`features`, which the head fuses into a state), else the head's own guess from the row before (`states`). The row's
    logits are for the token after its own.
    """

    taps: tuple[int, ...]
    """The target's states it reads."""
    acceptance: tuple[float, ...]
    """How often each level of its chains was right on held-out text, where those before were; empty: not known."""
    ids: Tensor
    """[draft vocabulary] int64, rising: which of the target's tokens each column of logits stands for."""
    max_context: int
    max_batch: int
    supports_trees: bool
    chunk: int

    def open(self) -> int: ...
    def close(self, slot: int) -> None: ...
    def length(self, slot: int) -> int: ...
    def forward(
        self, batch: Sequence[Rows], *, features: Tensor | None = None, states: Tensor | None = None
    ) -> HeadOutput:
        """Exactly one of `features` [rows, taps * target hidden] and `states` [rows, hidden] is given."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None: ...
    def rollback(self, slot: int, length: int) -> None: ...


class NoiseKey(NamedTuple):
    """A temperature above 0 and the noise to draw with, as the target will: the two words of `noise.row_key`."""

    temperature: float
    low: int
    high: int


class Followers(NamedTuple):
    """The best tokens to follow a row with their probabilities, best first: by probability, and as noise draws them."""

    likely: Sequence[tuple[int, float]]
    drawn: Sequence[tuple[int, float]]


@runtime_checkable
class RankingHead(Protocol):
    """A `DraftHead` that need not hand out logits to be drafted with."""

    most_ranked: int

    def rank(
        self,
        batch: Sequence[Rows],
        keys: Sequence[NoiseKey | None],
        count: int,
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[list[Followers], Tensor]:
        """As `forward`, with at most `count` (up to `most_ranked`) followers instead of logits, per row wanted, and its
        states. `keys` per row wanted; None: greedily, so that what is drawn is what is likely."""
        ...


@runtime_checkable
class SteppingHead(DraftHead, Protocol):
    """A `DraftHead` whose chains can be drafted in whole steps on the device (`SteppingModel`)."""

    def advance(self, slot: int, count: int) -> None:
        """Note that steps have committed `count` more rows to the slot."""
        ...


@runtime_checkable
class ReadsFeatures(Protocol):
    """A drafter that sees what the target computes: after each of its passes, `features` of all rows of the batch,
    where `batch[i]` belongs to `sequences[i]`. They are valid during the call only. `soon`: whether drafts may be asked
    for before long; else it may leave all of it unread."""

    def read(self, sequences: Sequence[SequenceView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """A sequence as a `Stepper` takes it over; the caches hold all its tokens but the last."""

    slot: int
    draft_slot: int
    last: int
    previous: int
    """The token before the last (any, where there is none)."""
    length: int
    """Tokens in the target's cache."""
    generated: int
    temperature: float
    words: Tensor | None
    """Noise keys of the next positions to generate, [positions, 2] int32; None where temperature is 0."""
    top_p: float = 1.0
    min_p: float = 0.0
    features: Tensor | None = None
    """For a head: what the target made of the token before the last, [taps * hidden]; None where there is none."""
    gap: int = 0
    """For a head: tokens of the text that its cache has no rows for, apart from the first."""


class StepShape(NamedTuple):
    """How much a step drafts and verifies for each of its lanes alike."""

    drafted: int
    """Levels that the drafter on the device drafts; 0: it is not asked."""
    verified: int
    """The longest chain there is room for, at least as long: what a lane was offered may be longer than that."""


PLAIN = StepShape(0, 0)


class Offer(NamedTuple):
    """What the host has found to follow the first `start` tokens of a text. It knew no more of them: the device may
    have more by now, and goes on from there if the offer has the same; else the offer is void."""

    start: int
    tokens: Sequence[int]
    source: str


class StepPlan(NamedTuple):
    """A step as a controller wants it; `offers` by places of its sequences."""

    shape: StepShape
    offers: Mapping[int, Offer] = {}


class LaneOutcome(NamedTuple):
    """What one step gave one sequence: `tokens` joined it, the first `accepted` of them from the drafts. `offered`:
    whether those were what the host had offered."""

    accepted: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    offered: bool = False


@dataclass(frozen=True, slots=True)
class StepOutcome:
    lanes: list[LaneOutcome]
    draft_seconds: float
    target_seconds: float


class HandedOver(NamedTuple):
    """A sequence as a drafter leaves it to a `Stepper`; the parts of a `Lane` it knows."""

    slot: int
    features: Tensor | None = None
    gap: int = 0


class LeftBehind(NamedTuple):
    """What a drafter needs to take a sequence back; nothing, unless it is a head."""

    features: Tensor | None = None
    """Of the last tokens, which it has not run."""
    gap: int = 0
    """Tokens before those that it has no rows for."""


class DeviceDrafter(Protocol):
    """A drafter whose chains a `Stepper` can draft in its stead: it lets go of sequences and takes them back, or learns
    that they leave from there, and how many of their tokens it has run."""

    name: str

    def hand_over(self, sequences: Sequence[SequenceView], soon: bool) -> list[HandedOver]:
        """`soon`: whether drafts are expected for them."""
        ...

    def take_back(self, sequence: SequenceView, left: LeftBehind) -> None: ...
    def leave(self, sequence: SequenceView, seen: int) -> None: ...


class DraftsThere(NamedTuple):
    """Who drafts in steps on a device, and with which network; None: nobody does."""

    drafter: DeviceDrafter | None = None
    network: LanguageModel | DraftHead | None = None


@runtime_checkable
class StepsOnDevice(Protocol):
    """A drafter whose sequences may take whole steps on a device."""

    @property
    def there(self) -> DraftsThere | None:
        """None: as it is set up, every draft is made on the host."""
        ...


class Stepper(Protocol):
    """Takes whole steps (draft a chain, verify, accept, keep) on a device, without the host in between.

    Sequences sit in numbered lanes. Steps are launched with chains of any length up to `limit` and collected in the
    same order. A step may be launched before the one before is collected: it starts from wherever that one ends; and
    sequences may come and go meanwhile, which takes effect for the steps launched afterwards. Tokens are those of the
    coupled rule; -1 where the model's scores are not numbers. Noise reaches `horizon` positions, until it is renewed.
    """

    horizon: int
    reach: int
    """The most tokens that a sequence may have when a step of it is launched."""

    def limit(self, lanes: int) -> int: ...
    @property
    def late(self) -> int:
        """As `Prepares`."""
        ...

    def recordings(self, shapes: Sequence[StepShape]) -> Iterator[Recording]:
        """As `Prepares`, for steps of these shapes."""
        ...

    def measure(self, shapes: Sequence[StepShape]) -> Iterator[None]:
        """Time steps of these shapes, while nobody is seated; yields after each part."""
        ...

    def seconds(self, lanes: int) -> Mapping[StepShape, float]:
        """What a step of so many lanes takes, by the shapes measured."""
        ...

    def seat(self, lanes: Mapping[int, Lane]) -> None:
        """Put sequences into lanes, by their numbers."""
        ...

    def vacate(self, number: int | None = None) -> None:
        """Empty a lane (None: all)."""
        ...

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Into other lanes, which are empty."""
        ...

    def renew(self, number: int, generated: int, words: Tensor) -> None:
        """Noise keys of the positions from `generated` on."""
        ...

    def launch(self, lanes: int, shape: StepShape, sampled: bool, offers: Mapping[int, Offer] = {}) -> None:
        """A step of the first `lanes` lanes; `sampled`: whether any has a temperature. `offers` are for this step only,
        by lane; where one is void, and in all others, what was drafted on the device is verified."""
        ...

    def collect(self) -> StepOutcome: ...
    def reset(self) -> None:
        """Drop whatever is seated or under way."""
        ...

    def settle(self, lanes: int) -> None:
        """Nothing is under way, and the host takes over."""
        ...

    def left(self, number: int) -> LeftBehind:
        """Of a lane, once nothing is under way."""
        ...

    @property
    def skips(self) -> int:
        """How often tokens of all that were seated were left out of the drafter's caches."""
        ...


class Recording(Protocol):
    """Launches on a device that are to be recorded, so that they can be repeated at once."""

    def launch(self) -> None:
        """Directly; over nobody's data."""
        ...

    def record(self) -> None: ...


@runtime_checkable
class Prepares(Protocol):
    """A network with passes to compile and record before the first request, so that none is while it waits."""

    @property
    def late(self) -> int:
        """Those that were recorded while one waited all the same: 0, unless there is a mistake somewhere."""
        ...

    def recordings(self) -> Iterator[Recording]:
        """What is to be recorded and is not yet."""
        ...


@runtime_checkable
class SteppingModel(Protocol):
    """A `LanguageModel` that can also take whole steps, alone or with a draft model or head of its own kind."""

    def stepper(self, draft: LanguageModel | DraftHead | None, vocab_size: int | None = None) -> Stepper | None:
        """None where the two cannot step together. `vocab_size`: choose among so many tokens only."""
        ...

    def advance(self, slot: int, count: int) -> None:
        """Note that steps have committed `count` more tokens to the slot."""
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
    """`SamplingParams` with every default filled in: what one sequence is decoded with."""

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
    """Tokens that end the sequence: the model's EOS list (unless ignored) and the user's own."""
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
    """One step of one sequence, for people: the draft, the accepted path and what the target added."""

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
    """The whole result, on the last chunk of a sequence."""
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
    """From the end of this sequence's prefill to its last token."""
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
