"""Several drafters in one engine: every request is drafted for by the one it names, and by its prediction first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from torch import Tensor

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import CachedNetwork, Rows
from outrider.core.request import RequestView
from outrider.drafters.host_rows import joined
from outrider.drafters.none import NoDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.errors import DrafterError, shown


class RouterDrafter(Drafter):
    """Each request belongs to the drafter its `speculation` names (None: the default) for all its life. All requests
    of a step that share a drafter are proposed for in one call. Where a request has a prediction that knows how to go
    on, that is looked up instead of anything else; drafts say by their source whose they are.

    One that may have no nodes, plain decoding, belongs to nobody: no drafter is told of it, nor learns from it. Only
    where a drafter makes its drafts on a device it is the default's all the same: steps there are taken for its
    requests alone, and cost it nothing when they draft nothing."""

    name = "router"
    looks_up = continues = True

    def __init__(self, default: Drafter, others: Mapping[str, Drafter], checked: int | None = None) -> None:
        """`others` by the names requests use; the same one may have several. `checked`: the width of the target's
        logits, where the default is somebody's own: what that proposes is held against what it may."""
        self._default = default
        self._checked = checked
        self._named = dict(others)
        self._prediction = PredictionDrafter()
        self._nobody = default if _drafts_on_device(default) else NoDrafter()
        self.reads_features = any(drafter.reads_features for drafter in (default, *others.values()))
        self._route: dict[int, Drafter] = {}
        """The drafter of every open request."""
        self._elsewhere: set[int] = set()
        """Those of them that are not the default's."""

    @property
    def default(self) -> Drafter:
        return self._default

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._named)

    @property
    def networks(self) -> Mapping[str, CachedNetwork]:
        return {k: v for drafter in (self._default, *self._named.values()) for k, v in drafter.networks.items()}

    @property
    def acceptance(self) -> Mapping[str, Sequence[float]]:
        known: dict[str, Sequence[float]] = {}
        for drafter in (*self._named.values(), self._default):
            known |= drafter.acceptance
        return known

    def is_default(self, request: RequestView) -> bool:
        """Whether no other than the default drafter drafts for it, beside its prediction."""
        return self._route.get(request.id) in (self._default, self._nobody)

    @property
    def held(self) -> int:
        return len(self._route)

    def open(self, request: RequestView) -> None:
        drafter = self._named_by(request)
        drafter.open(request)
        self._enter(request, drafter)

    def reach(self, request: RequestView, source: int, common: int) -> int:
        return self._named_by(request).reach(request, source, common)

    def open_from(self, request: RequestView, source: int, length: int, keep: bool) -> None:
        drafter = self._named_by(request)
        drafter.open_from(request, source, length, keep)
        self._enter(request, drafter)

    def _named_by(self, request: RequestView) -> Drafter:
        name = request.speculation.drafter
        if request.speculation.max_nodes == 0:
            return self._nobody
        if name is not None and name not in self._named:
            raise DrafterError(f"no drafter is called {name!r} here; choose {', '.join(self._named)}")
        return self._default if name is None else self._named[name]

    def _enter(self, request: RequestView, drafter: Drafter) -> None:
        self._route[request.id] = drafter
        if drafter is not self._default:
            self._elsewhere.add(request.id)
        self._prediction.open(request)

    def close(self, request: RequestView) -> None:
        self._elsewhere.discard(request.id)
        if (drafter := self._route.pop(request.id, None)) is not None:  # else it could not be opened
            drafter.close(request)
        self._prediction.close(request)

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        """What the prediction says, and what its drafter finds beside it; of single paths, the prediction's."""
        found = self._prediction.propose(requests, budgets)
        for drafter, members in self._groups(requests):
            if drafter.looks_up:
                asked = [requests[i] for i in members], [budgets[i] for i in members]
                drafts = self._looked_over(drafter, drafter.look_up(*asked), asked[1])
                for i, draft in zip(members, drafts, strict=True):
                    if not found[i].tokens:
                        found[i] = draft
                    elif budgets[i].tree:
                        found[i] = found[i].merged(draft)
        return found

    def continuation(self, request: RequestView, count: int) -> Draft:
        """What the prediction says; where it is lost, what its drafter finds."""
        found, drafter = self._prediction.continuation(request, count), self._route[request.id]
        if found.tokens:
            return found
        return self._looked_over(drafter, [drafter.continuation(request, count)], [Budget(count, count, 0.0, False)])[0]

    def paid(self, request: RequestView) -> str | None:
        return self._route[request.id].paid(request)

    def lacks(self, request: RequestView) -> int:
        drafter = self._route[request.id]
        lacks = drafter.lacks(request)
        if self._checked is not None and drafter is self._default:
            if not isinstance(lacks, int):
                raise DrafterError(f"drafter {drafter.name!r}: it lacks {shown(lacks)}, which is no number of tokens")
            lacks = min(max(0, lacks), len(request.tokens))
        return lacks

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = [Draft()] * len(requests)
        for drafter, members in self._groups(requests):
            if any(budgets[i].nodes for i in members):
                asked = [requests[i] for i in members], [budgets[i] for i in members]
                proposed = self._looked_over(drafter, drafter.propose(*asked), asked[1])
                for i, draft in zip(members, proposed, strict=True):
                    drafts[i] = draft
        return drafts

    def _looked_over(self, drafter: Drafter, drafts: list[Draft], budgets: Sequence[Budget]) -> list[Draft]:
        """The same; where they are not what was asked for, a sentence says so."""
        if len(drafts) != len(budgets):
            raise DrafterError(
                f"drafter {drafter.name!r} proposed {len(drafts)} drafts for {len(budgets)} requests; "
                "propose must return one for each"
            )
        if self._checked is None or drafter is not self._default:
            return drafts
        for draft, budget in zip(drafts, budgets, strict=True):
            if not isinstance(draft, Draft):
                raise DrafterError(f"drafter {drafter.name!r} proposed {shown(draft)}, which is no Draft")
            fault = draft.fault(self._checked, budget.tree)
            if fault is None and len(draft) > budget.nodes:
                fault = f"{len(draft)} nodes were proposed where {budget.nodes} were asked for"
            if fault is not None:
                raise DrafterError(f"drafter {drafter.name!r}: {fault}")
        return drafts

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        self._prediction.observe(verified)
        if not self._elsewhere:
            self._default.observe(verified)
            return
        for drafter, members in self._groups([each.request for each in verified]):
            drafter.observe([verified[i] for i in members])

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: Tensor, soon: bool) -> None:
        """Every drafter that reads features is given those of its own requests."""
        if not self._elsewhere:
            self._default.read(requests, batch, features, soon)
            return
        ends = list(accumulate(len(rows.tokens) for rows in batch))
        pieces = [features[end - len(rows.tokens) : end] for end, rows in zip(ends, batch, strict=True)]
        for drafter, members in self._groups(requests):
            if drafter.reads_features:
                own = features if len(members) == len(batch) else joined([pieces[i] for i in members])
                drafter.read([requests[i] for i in members], [batch[i] for i in members], own, soon)

    def _groups(self, requests: Sequence[RequestView]) -> Iterator[tuple[Drafter, list[int]]]:
        """Each drafter concerned with the places of its requests."""
        if not self._elsewhere:
            if requests:
                yield self._default, list(range(len(requests)))
            return
        groups: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(id(self._route[request.id]), []).append(i)
        for members in groups.values():
            yield self._route[requests[members[0]].id], members


def _drafts_on_device(drafter: Drafter) -> bool:
    """Whether a device drafts in its stead."""
    return drafter.device_part is not None and drafter.device_part.drafter is not None
