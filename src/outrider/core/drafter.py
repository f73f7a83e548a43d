"""`Drafter`: what proposes. What one can do beyond that it says by fields, and the defaults do nothing."""

# ruff: noqa: B027  (who has nothing to do there need not say so)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outrider.core.draft import Budget, Draft
from outrider.core.model import CachedNetwork, Rows
from outrider.core.request import RequestView, TokenLogprob
from outrider.core.step import HandedOver, PendingFeatures

if TYPE_CHECKING:
    from torch import Tensor


class VerifiedDraft(NamedTuple):
    """The outcome of one step for one request: a draft, and what the target made of it. `tokens` join the request, the
    first `len(path)` of them drafted by the nodes of `path`. One that ends the request is the last: whoever observes a
    step sees what joined."""

    request: RequestView
    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens, where they were asked for."""

    def cut(self, count: int) -> VerifiedDraft:
        """The first `count` tokens alone."""
        return self._replace(path=self.path[:count], tokens=self.tokens[:count], logprobs=self.logprobs[:count])


class DeviceDrafter(Protocol):
    """A drafter whose drafts a `Stepper` can make in its stead: it lets go of requests and takes them back, or learns
    that they leave from there, and how many of their tokens it has run."""

    name: str

    def hand_over(self, requests: Sequence[RequestView], soon: bool) -> list[HandedOver]:
        """`soon`: whether drafts are expected for them."""
        ...

    def take_back(self, request: RequestView, left: PendingFeatures) -> None: ...
    def leave(self, request: RequestView, seen: int) -> None: ...


class DevicePart(NamedTuple):
    """Who drafts in steps taken whole on a device, and with which network; None: nobody does. `trees`: whether trees,
    too, and not chains alone."""

    drafter: DeviceDrafter | None = None
    network: CachedNetwork | None = None
    trees: bool = False


class Drafter(ABC):
    """Proposes what the target may say next. It can change the speed, never the text.

    Lifecycle per request: open, then (propose, observe) per step, then close. A drafter of your own is a subclass with
    a `name` and `propose`.
    """

    name: str = "own"
    """Whose its tokens are, in traces and counts."""

    looks_up: bool = False
    """Whether it drafts, at least in part, without a pass of any model (`look_up`)."""
    continues: bool = False
    """Whether it finds long continuations fast (`continuation`)."""
    reads_features: bool = False
    """Whether it is to see what the target computes (`read`)."""

    def open(self, request: RequestView) -> None:
        """A request begins, with its prompt in `request.tokens`."""

    @abstractmethod
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """A draft for each of `requests`, in order and within its budget; one of 0 nodes gets an empty draft."""

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        """What came of a step."""

    def close(self, request: RequestView) -> None:
        """The request has left."""

    @property
    def held(self) -> int:
        """Requests that are open here: when nothing runs, none may be."""
        return 0

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """As `propose`, where that costs next to nothing: it is asked at every step, before anybody is paid and whether
        or not anything will be verified."""
        return [Draft()] * len(requests)

    def paid(self, request: RequestView) -> str | None:
        """Who drafts for it by passes of a model, when asked to `propose`; None: nobody."""
        return self.name

    def lacks(self, request: RequestView) -> int:
        """Tokens of it that passes of its own must run before it drafts: what its cache does not hold, and it may not
        leave out."""
        return 0

    def continuation(self, request: RequestView, count: int) -> Draft:
        """A single path of at most `count` nodes: for steps on a device, which are given them a step late."""
        return Draft()

    @property
    def networks(self) -> Mapping[str, CachedNetwork]:
        """What its passes are made with, by the names its drafts have as their source."""
        return {}

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        """By the same names, where it is known beforehand; as `DraftHead.acceptance`."""
        return {}

    def reach(self, request: RequestView, source: int, common: int) -> int:
        """How many of the target's cached tokens may be taken over, so that it runs the request from there on only,
        where it and the request of id `source` begin with the same `common` tokens. One that reads features and has
        no cache that can follow needs every prompt run from its start."""
        return 0 if self.reads_features else common

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        """`open`, after `length` (at most `reach`) tokens of `source` were taken over. `keep`: what is known of those
        must stay with the source too."""
        self.open(request)

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        """After each pass of the target: `features` of all rows of the batch, where `batch[i]` belongs to
        `requests[i]`. They are valid during the call only. `soon`: whether drafts may be asked for before long; else it
        may leave all of it unread. Those for whom it is so and the others come in a call of their own."""

    @property
    def device_part(self) -> DevicePart | None:
        """What drafts for its requests in steps taken whole on a device; None: every draft is made on the host."""
        return None

    @property
    def default(self) -> Drafter:
        """Who drafts for requests that ask for nobody: one that passes requests on to others names another here."""
        return self

    def is_default(self, request: RequestView) -> bool:
        """Whether nobody but the default drafts for it by passes of a model."""
        return True
