"""Steps taken whole on a device: what goes in, what comes out, and the `Stepper` that takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

MOST_TOP_K = 1024
"""The largest top_k of requests that a `Stepper` takes: it takes the likeliest tokens away one by one."""

MOST_BIASES = 1023
"""The most tokens that such a request may have a bias for."""

MOST_LOGPROBS = 20
"""The most alternatives that it may have reported."""


MOST_ROWS = 64
"""The most rows of a request that one step runs."""

_FAR_APART = 256
"""Lanes from which on passes take as much longer as they have more rows."""


class Manner(IntEnum):
    """How the tokens of a step are chosen; each way does what those before it do too."""

    GREEDY = 0
    DRAWN = 1
    """Some request has a temperature."""
    FULL = 2
    """Some request's scores are changed before the choice, or reported."""
    JUDGED = 3
    """Some request's drafts are drawn and judged by the rejection rule."""


@dataclass(frozen=True, slots=True)
class Processing:
    """What changes a request's scores before a token is chosen, as `sampling.warp.PROCESSORS` do it."""

    seen: NDArray[np.int64]
    """The distinct tokens of its text, where there are penalties."""
    counts: NDArray[np.int64]
    """How often its output has said each."""
    repetition: float
    frequency: float
    presence: float
    bias: Mapping[int, float]
    """At most `MOST_BIASES`."""
    banned: frozenset[int]
    """Before `min_tokens` are generated."""
    min_tokens: int


@dataclass(frozen=True, slots=True)
class StepSlot:
    """A request as a `Stepper` takes it over; the caches hold all its tokens but the last."""

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
    """Noise keys of the next positions to generate, [positions, 2] int32; None where temperature is 0. Where it
    `rejects`, the keys of steps that begin there."""
    top_k: int = 0
    """0: off; at most `MOST_TOP_K`."""
    top_p: float = 1.0
    min_p: float = 0.0
    processing: Processing | None = None
    """None: nothing does."""
    logprobs: int | None = None
    """How many of the likeliest tokens to report beside the one chosen, by the raw logits; None: not even that."""
    features: Tensor | None = None
    """For a head: what the target made of the token before the last, [layers * hidden]; None where there is none."""
    gap: int = 0
    """For a head: tokens of the text that its cache has no rows for, apart from the first."""
    rejects: int = 0
    """Where its drafts are drawn and judged by the rejection rule, the tokens it generates at most; 0: by the coupled
    one."""
    guided: bool = False
    """Whether it takes part only in steps that are told what may follow (`Guide`)."""


class StepShape(NamedTuple):
    """How much a step drafts and verifies for each of its lanes alike."""

    drafted: int
    """Levels that the drafter on the device drafts; 0: it is not asked."""
    verified: int
    """The longest path there is room for, at least as long: what a lane was offered may be longer than that."""
    nodes: int = 0
    """Of the tree that is drafted and verified; 0: it is a chain."""

    @property
    def size(self) -> int:
        """Nodes verified."""
        return self.nodes or self.verified


PLAIN = StepShape(0, 0)


def tree_of(nodes: int) -> StepShape:
    """A tree of so many nodes. Each level takes a pass of the drafter, so its depth grows slowly."""
    levels = min(nodes, (nodes + 1).bit_length())
    return StepShape(levels, levels, nodes)


def step_width(requests: int) -> int:
    """The lanes of a step of so many requests: steps are prepared for few sizes. The next power of two, or where those
    are far apart, three quarters of it."""
    whole = 1 << (requests - 1).bit_length()
    return 3 * whole // 4 if whole >= _FAR_APART and requests <= 3 * whole // 4 else whole


def step_widths(most: int) -> list[int]:
    """Those of 1 to `most` requests."""
    return sorted({step_width(requests) for requests in range(1, most + 1)})


class Offer(NamedTuple):
    """What the host has found to follow the first `start` tokens of a text. It knew no more of them: the device may
    have more by now, and goes on from there if the offer has the same; else the offer is void."""

    start: int
    tokens: Sequence[int]
    source: str


class Guide(NamedTuple):
    """What may follow a text, by its grammar: `masks[n]` [vocab] after it and the first `since` + n tokens of `offer`;
    None: any token may. There is one more than tokens left, or fewer: no more of them are then verified. The first
    `since` tokens must have come meanwhile; where others have, `otherwise` says what may follow, if anything does."""

    offer: Offer
    masks: Sequence[NDArray[np.bool_] | None]
    since: int = 0
    otherwise: Guide | None = None


class StepPlan(NamedTuple):
    """A step as a controller wants it; `offers` by places of its requests."""

    shape: StepShape
    offers: Mapping[int, Offer] = {}


class Reported(NamedTuple):
    """The log-probability of a token, and the likeliest ones in its place with theirs, the lowest ids first on ties."""

    logprob: float
    tokens: Sequence[int]
    logprobs: Sequence[float]


class SlotOutcome(NamedTuple):
    """What one step gave one request: `tokens` joined it, the first `accepted` of them from the drafts. `offered`:
    whether those were what the host had offered. `reports` of each of the tokens, where they were asked for. Of a tree,
    `parents` and `claims` are those of its nodes, as in `Draft`; of a chain they are empty. No tokens: it sat out."""

    accepted: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    offered: bool = False
    reports: tuple[Reported, ...] = ()
    parents: tuple[int, ...] = ()
    claims: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    lanes: list[SlotOutcome]
    draft_seconds: float
    target_seconds: float


class HandedOver(NamedTuple):
    """A request as a drafter leaves it to a `Stepper`; the parts of a `StepSlot` it knows."""

    slot: int
    features: Tensor | None = None
    gap: int = 0


class PendingFeatures(NamedTuple):
    """What a drafter needs to take a request back; nothing, unless it is a head."""

    features: Tensor | None = None
    """Of the last tokens, which it has not run."""
    gap: int = 0
    """Tokens before those that it has no rows for."""


class Stepper(Protocol):
    """Takes whole steps (draft a chain or a tree, verify, accept, keep) on a device, without the host in between.

    Requests sit in numbered lanes. Steps are launched with drafts of any size up to `limit` and collected in the same
    order; trees only where there may be any (`trees`), and never from the FULL manner on. A step may be launched before
    the one before is collected: it starts from wherever that one ends; and requests may come and go meanwhile, which
    takes effect for the steps launched afterwards. Tokens are those of each request's rule; -1 where the model's scores
    are not numbers. Noise reaches `horizon` positions, until it is renewed.

    A request that is guided sits out every step that has no guide for it, or none that its text has followed: it
    gains nothing by it and stays where it is. Steps with such requests in their lanes are of the FULL manner at
    least.
    """

    horizon: int
    reach: int
    """The most tokens that a request may have when a step of it is launched."""

    def limit(self, lanes: int) -> int: ...
    def trees(self, lanes: int) -> bool:
        """Whether steps of so many lanes may draft trees."""
        ...

    @property
    def late(self) -> int:
        """As `CachedNetwork.late`."""
        ...

    def recordings(self, shapes: Sequence[StepShape]) -> Iterator[Recording]:
        """As `CachedNetwork.recordings`, for steps of these shapes."""
        ...

    def measure(self, shapes: Sequence[StepShape]) -> Iterator[None]:
        """Time steps of these shapes, while nobody is seated; yields after each part."""
        ...

    def seconds(self, lanes: int) -> Mapping[StepShape, float]:
        """What a step of so many lanes takes, by the shapes measured."""
        ...

    def seat(self, lanes: Mapping[int, StepSlot]) -> None:
        """Put requests into lanes, by their numbers."""
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

    def launch(
        self,
        lanes: int,
        shape: StepShape,
        manner: Manner,
        offers: Mapping[int, Offer] = {},
        run: Sequence[int] = (),
        guides: Mapping[int, Guide] = {},
    ) -> None:
        """A step of the first `lanes` lanes; `manner`: the most that any needs. `offers` and `guides` are for this step
        only, by lane; where an offer is void, and in all others, what was drafted on the device is verified. In lanes
        that are guided that is the guide's offer alone. `run`, of plain steps where nothing drafts on the device: by
        lane, where in the target's last pass its last token was run already."""
        ...

    def collect(self) -> StepOutcome: ...
    def reset(self) -> None:
        """Drop whatever is seated or under way."""
        ...

    def settle(self, lanes: int) -> None:
        """Nothing is under way, and the host takes over."""
        ...

    def left(self, number: int) -> PendingFeatures:
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
