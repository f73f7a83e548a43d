"""Two drafters for every request: what is looked up where text repeats, a head's guesses beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import DevicePart, Drafter, VerifiedDraft
from outrider.core.model import CachedNetwork, Rows
from outrider.core.request import RequestView
from outrider.drafters.head import HeadDrafter
from outrider.drafters.suffix import SuffixDrafter


class MixDrafter(Drafter):
    """Looking up costs next to nothing, so it is always done; the head is asked (`propose`) where it is expected to add
    to what was found. The controller joins the two trees. The head reads the target's features whoever drafted, so it
    is ready at any step."""

    name = "head+suffix"
    looks_up = continues = reads_features = True

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter) -> None:
        self._head, self._suffix = head, suffix

    @property
    def head(self) -> HeadDrafter:
        return self._head

    @property
    def device_part(self) -> DevicePart | None:
        return self._head.device_part

    def continuation(self, request: RequestView, count: int) -> Draft:
        return self._suffix.continuation(request, count)

    @property
    def networks(self) -> Mapping[str, CachedNetwork]:
        return self._head.networks

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        return self._head.acceptance

    def open(self, request: RequestView) -> None:
        self._head.open(request)
        self._suffix.open(request)

    def reach(self, request: RequestView, source: int, common: int) -> int:
        return self._head.reach(request, source, common)

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        self._head.open_from(request, source, length, keep)
        self._suffix.open(request)

    @property
    def held(self) -> int:
        return max(self._head.held, self._suffix.held)

    def close(self, request: RequestView) -> None:
        self._head.close(request)
        self._suffix.close(request)

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        self._head.read(requests, batch, features, soon)

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self._suffix.look_up(requests, budgets)

    def paid(self, request: RequestView) -> str | None:
        return self._head.name

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self._head.propose(requests, budgets)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        self._head.observe(verified)
        self._suffix.observe(verified)
