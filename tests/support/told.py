"""A drafter that looks up what it was told: the text to come, or that text spoiled in some way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import DevicePart, Drafter, VerifiedDraft
from outrider.core.model import Rows
from outrider.core.request import RequestView
from outrider.drafters.lookup import LookupDrafter

KINDS = ("right", "wrong", "half", "stale", "skips", "short", "changes")


def spoiled(truth: Sequence[int], at: int, count: int, kind: str, vocab: int) -> list[int]:
    """What is offered after the first `at` tokens of `truth`; it goes on beyond the end of that."""
    if kind == "changes":
        kind = KINDS[at % (len(KINDS) - 1)]
    if kind == "stale":
        at = max(0, at - 2)
    elif kind == "skips":
        at += 1
    rest = list(truth[at : at + count])
    rest += [0] * (count - len(rest))
    if kind == "short":
        return rest[:2]
    wrong = {"wrong": range(count), "half": range(3, count, 4)}.get(kind, ())
    for i in wrong:
        rest[i] = (rest[i] + 1) % vocab
    return rest


class Told(LookupDrafter):
    """`truths` by request; where there is none it finds nothing. `beside`: drafts on the device, if anybody does."""

    name = "told"
    continues = True

    def __init__(self, truths: Mapping[int, Sequence[int]], kind: str, vocab: int, claim: float = 0.97) -> None:
        self.truths, self.kind, self._vocab, self._claim = truths, kind, vocab, claim
        self.asked: list[int] = []
        """Whose, one after another."""

    def continuation(self, request: RequestView, count: int) -> Draft:
        self.asked.append(request.id)
        truth = self.truths.get(request.id)
        if truth is None:
            return Draft(source=self.name)
        tokens = spoiled(truth, len(request.tokens), count, self.kind, self._vocab)
        claims = [self._claim ** (k + 1) for k in range(len(tokens))]
        return Draft(tokens, range(-1, len(tokens) - 1), claims, self.name)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.continuation(s, min(b.nodes, b.depth)) for s, b in zip(requests, budgets, strict=True)]


class Own(Drafter):
    """The same, paid for: all that a drafter of one's own has to be is a name and `propose`."""

    name = "own"

    def __init__(self, truths: Mapping[int, Sequence[int]], kind: str, vocab: int) -> None:
        self.truths = truths
        self.observed: list[VerifiedDraft] = []
        self._told = Told(truths, kind, vocab)
        self._told.name = self.name

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self._told.propose(requests, budgets)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        self.observed += verified


class ToldBeside(Told):
    """Beside a head on the device."""

    reads_features = True

    def __init__(self, head: object, truths: Mapping[int, Sequence[int]], kind: str, vocab: int) -> None:
        super().__init__(truths, kind, vocab)
        self.head = head
        for name in ("open", "observe", "close", "read", "propose"):
            setattr(self, name, getattr(head, name))

    def read(self, requests: Sequence[RequestView], batch: Sequence[Rows], features: object, soon: bool) -> None: ...

    @property
    def device_part(self) -> DevicePart | None:  # type: ignore[override]
        there: DevicePart | None = self.head.device_part  # type: ignore[attr-defined]
        return there

    def paid(self, request: RequestView) -> str | None:
        return "head"

    def look_up(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return Told.propose(self, requests, budgets)
