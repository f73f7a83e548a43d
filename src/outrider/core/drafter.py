"""`Drafter`, and what one may be able to do beyond proposing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from outrider.core.draft import Budget, Draft
from outrider.core.model import DraftHead, LanguageModel, Rows
from outrider.core.request import RequestView
from outrider.core.step import HandedOver, PendingFeatures

if TYPE_CHECKING:
    from torch import Tensor


class Commit(NamedTuple):
    """The outcome of one step for one request: `tokens` joined it, the first `len(path)` of them drafted."""

    request: RequestView
    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]


class Drafter(Protocol):
    """Proposes what the target may say next. It can change the speed, never the text.

    Lifecycle per request: open, then (propose, observe) per step, then close. `propose` answers in the order of
    `requests` and keeps within each budget; a budget of 0 nodes gets an empty draft.
    """

    name: str

    def open(self, request: RequestView) -> None: ...
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]: ...
    def observe(self, commits: Sequence[Commit]) -> None: ...
    def close(self, request: RequestView) -> None: ...


@runtime_checkable
class LooksUp(Protocol):
    """A drafter that drafts, at least in part, without a pass of any model: what it finds costs next to nothing, so it
    is asked at every step, before anybody is paid and whether or not anything will be verified."""

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]: ...
    def paid(self, request: RequestView) -> str | None:
        """Who else drafts for it, by passes of a model, when asked to `propose`; None: nobody."""
        ...


@runtime_checkable
class Continues(Protocol):
    """A drafter that finds long continuations fast: for steps on a device, which are given them a step late."""

    def continuation(self, request: RequestView, count: int) -> Draft:
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
    """A drafter with a cache of its own that can open a request where another one stands, or stood when it was closed,
    as the target does (`KeepsPrefixes`). One that `ReadsFeatures` and cannot needs every prompt run from its start."""

    def reach(self, request: RequestView, source: int, common: int) -> int:
        """How many of the target's cached tokens may be taken over, so that it runs the request from there on only,
        where it and the request of id `source` begin with the same `common` tokens."""
        ...

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        """`open`, after `length` (at most `reach`) tokens of `source` were taken over. `keep`: what is known of those
        must stay with the source too."""
        ...


@runtime_checkable
class ReadsFeatures(Protocol):
    """A drafter that sees what the target computes: after each of its passes, `features` of all rows of the batch,
    where `batch[i]` belongs to `requests[i]`. They are valid during the call only. `soon`: whether drafts may be asked
    for before long; else it may leave all of it unread."""

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None: ...


class DeviceDrafter(Protocol):
    """A drafter whose chains a `Stepper` can draft in its stead: it lets go of requests and takes them back, or learns
    that they leave from there, and how many of their tokens it has run."""

    name: str

    def hand_over(self, requests: Sequence[RequestView], soon: bool) -> list[HandedOver]:
        """`soon`: whether drafts are expected for them."""
        ...

    def take_back(self, request: RequestView, left: PendingFeatures) -> None: ...
    def leave(self, request: RequestView, seen: int) -> None: ...


class DraftsThere(NamedTuple):
    """Who drafts in steps on a device, and with which network; None: nobody does."""

    drafter: DeviceDrafter | None = None
    network: LanguageModel | DraftHead | None = None


@runtime_checkable
class StepsOnDevice(Protocol):
    """A drafter whose requests may take whole steps on a device."""

    @property
    def there(self) -> DraftsThere | None:
        """None: as it is set up, every draft is made on the host."""
        ...
