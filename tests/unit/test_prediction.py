"""Drafting what the caller expects: following, losing and finding the place again."""

from __future__ import annotations

import random

import pytest
from toy import Sequence_, request, resolved

from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.drafters.prediction import PredictionDrafter

TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]


def predicted(*tokens: int) -> tuple[PredictionDrafter, Sequence_]:
    seq = request((1, 2), resolved())
    seq.speculation = Speculation(prediction=tokens)
    drafter = PredictionDrafter()
    drafter.open(seq)
    return drafter, seq


def next_draft(drafter: PredictionDrafter, seq: Sequence_, *tokens: int) -> list[int]:
    """What is drafted once the output has grown by `tokens`, one step each."""
    for token in tokens:
        seq.push([token])
        drafter.observe([VerifiedDraft(seq, Draft(), (), (token,))])
    return list(drafter.propose([seq], [Budget(4, 4)])[0].tokens)


def test_follows_and_ends() -> None:
    drafter, seq = predicted(*TEXT)
    assert next_draft(drafter, seq) == [10, 11, 12, 13]
    assert next_draft(drafter, seq, 10, 11, 12) == [13, 14, 15, 16]
    assert next_draft(drafter, seq, *range(13, 22)) == [22, 23]
    assert next_draft(drafter, seq, 22, 23) == []
    assert next_draft(drafter, seq, 99) == []


@pytest.mark.parametrize(
    ("written", "drafted"),
    [
        ([10, 11, 12, 99], []),
        ([10, 11, 12, 99, 14], [15, 16, 17, 18]),  # one replaced
        ([10, 11, 12, 97, 98, 99, 13], [14, 15, 16, 17]),  # three put in
        ([10, 11, 12, 17], [18, 19, 20, 21]),  # four left out
        ([10, 11, 12, 99, 98, 11], []),  # going back takes more than one token
        ([10, 11, 12, 13, 14, 99, 10, 11, 12], [13, 14, 15, 16]),  # said again
    ],
)
def test_finds_its_place_again(written: list[int], drafted: list[int]) -> None:
    drafter, seq = predicted(*TEXT)
    assert next_draft(drafter, seq, *written) == drafted


def test_prefers_the_longest_match_then_the_nearest_ahead() -> None:
    text = [5, 6, 50, 51, 5, 6, 60, 61, 7, 6, 70, 71]
    drafter, seq = predicted(*text)
    assert next_draft(drafter, seq, 5, 6, 50, 51, 99, 6) == [60, 61, 7, 6]
    drafter, seq = predicted(*text)
    assert next_draft(drafter, seq, 5, 6, 50, 51, 99, 7, 6) == [70, 71]
    far = [1, 2, 3, *range(100, 160), 8, 9, 30, 31]
    drafter, seq = predicted(*far)
    assert next_draft(drafter, seq, 1, 2, 3, 77, 8) == [], "one token is too little for a leap"
    assert next_draft(drafter, seq, 9) == [30, 31]


def test_budget_and_confidence() -> None:
    drafter, seq = predicted(*TEXT)
    sure = drafter.propose([seq], [Budget(6, 3)])[0]
    assert len(sure) == 3
    assert list(sure.confidence) == sorted(sure.confidence, reverse=True)
    next_draft(drafter, seq, 10, 11, 99, 13)
    unsure = drafter.propose([seq], [Budget(6, 6)])[0]
    assert unsure.confidence[0] < 0.5 < sure.confidence[0]
    assert len(drafter.propose([seq], [Budget(6, 6, floor=0.2)])[0]) < len(unsure)
    assert not drafter.propose([seq], [Budget(0, 0)])[0]
    drafter.close(seq)
    plain = request((1, 2), resolved())
    drafter.open(plain)
    assert not drafter.propose([plain], [Budget(4, 4)])[0]
    drafter.close(plain)


def test_long_and_repetitive_predictions_stay_cheap() -> None:
    """Nothing but one token, always lost: places are compared up to a bound."""
    drafter, seq = predicted(*[3, 4] * 20_000)
    rng = random.Random(0)
    for _ in range(300):
        next_draft(drafter, seq, rng.choice([3, 4, 5]))
