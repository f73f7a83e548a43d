"""What the k-th drafted node, or the k-th level of drafts, has lately brought."""

from __future__ import annotations

from collections.abc import Collection


class Profile:
    """Running averages per rank k (from 0): how often rank k was proposed, and how often it was accepted,
    over the steps in which the budget allowed it.

    `tried` is the largest rank allowed last time. Beyond it old averages say nothing about today, so
    `accepted_at` continues the last two ranks geometrically: what improves is allowed more, step by step.
    """

    __slots__ = ("_expected", "accepted", "proposed", "tried")

    def __init__(self, accepted: list[float], proposed: list[float], tried: int) -> None:
        self.accepted = accepted
        self.proposed = proposed
        self.tried = tried
        self._expected: dict[int, tuple[list[float], list[float]]] = {}
        """Answers given since the last step observed: a sequence on pause is asked the same at every step."""

    @staticmethod
    def hopeful(ranks: int) -> Profile:
        """Before any evidence: a drafter that is right two times in three."""
        return Profile([0.66 ** (k + 1) for k in range(ranks)], [1.0] * ranks, ranks)

    def copy(self) -> Profile:
        return Profile(self.accepted.copy(), self.proposed.copy(), self.tried)

    def observe(self, tried: int, proposed: int, accepted: Collection[int], rate: float) -> None:
        """One step: ranks below `tried` were allowed, those below `proposed` came, those in `accepted` were
        right."""
        if tried > self.tried:  # start from the estimates that led here
            self.accepted[:tried], self.proposed[:tried] = self.expected(tried)
        self.tried = tried
        self._expected.clear()
        came, kept = min(proposed, tried), 1 - rate
        self.proposed[:came] = [kept * value + rate for value in self.proposed[:came]]
        self.proposed[came:tried] = [kept * value for value in self.proposed[came:tried]]
        self.accepted[:tried] = [kept * value for value in self.accepted[:tried]]
        for k in accepted:
            if k < tried:
                self.accepted[k] += rate

    def expected(self, ranks: int) -> tuple[list[float], list[float]]:
        """Chance of being accepted and of being proposed at all, for each of the first `ranks` ranks if
        allowed. To be read, not changed."""
        answer = self._expected.get(ranks)
        if answer is None:
            known = min(self.tried, ranks)
            accepted, proposed = answer = self.accepted[:known], self.proposed[:known]
            if known and known < ranks:
                before = accepted[-2] if known > 1 else 1.0
                ratio = min(1.0, accepted[-1] / before) if before > 0 else 0.0
                for _ in range(known, ranks):
                    accepted.append(accepted[-1] * ratio)
                    proposed.append(proposed[-1])
            self._expected[ranks] = answer
        return answer
