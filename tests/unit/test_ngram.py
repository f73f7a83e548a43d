"""Prompt lookup: which match wins, what is proposed, and that nothing is scanned twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import numbered

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.drafters.ngram import NgramConfig, NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.errors import InvalidRequest

WIDE = Budget(8, 8)


def propose(
    tokens: list[int],
    budget: Budget = WIDE,
    config: NgramConfig | None = None,
) -> Draft:
    drafter, request = NgramDrafter(config), numbered(0, tokens)
    drafter.open(request)
    (draft,) = drafter.propose([request], [budget])
    return draft


def brute_force(text: Sequence[int], config: NgramConfig) -> int | None:
    """The token that followed the most recent earlier occurrence of the longest run that has one."""
    for n in range(config.max_ngram, config.min_ngram - 1, -1):
        for i in range(len(text) - n - 1, -1, -1):
            if n <= len(text) and list(text[i : i + n]) == list(text[len(text) - n :]):
                return text[i + n]
    return None


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4), st.integers(0, 3))
def test_finds_what_a_scan_would_find(text: list[int], shortest: int, more: int) -> None:
    config = NgramConfig(max_ngram=shortest + more, min_ngram=shortest)
    draft = propose(text, config=config)
    expected = brute_force(text, config)
    assert (draft.tokens[0] if len(draft) else None) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 39))
def test_indexing_in_pieces_changes_nothing(text: list[int], cut: int) -> None:
    drafter, request = NgramDrafter(), numbered(0, text[:cut])
    drafter.open(request)
    for token in text[cut:]:
        request.tokens.append(token)
        drafter.observe([VerifiedDraft(request, Draft(), (), (token,))])
    assert drafter.propose([request], [Budget(8, 8)]) == [propose(text)]


def test_longest_match_wins_over_the_more_recent_one() -> None:
    assert propose([1, 2, 3, 70, 9, 3, 80, 1, 2, 3]).tokens[0] == 70


def test_most_recent_occurrence_wins_among_equals() -> None:
    assert propose([1, 2, 70, 1, 2, 80, 1, 2]).tokens[0] == 80


def test_a_loop_is_continued_past_the_end_of_the_text() -> None:
    assert propose([1, 2, 1, 2, 1, 2]).tokens == [1, 2, 1, 2, 1, 2, 1, 2]


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.builds(Budget, st.integers(0, 12), st.integers(0, 12), st.floats(0, 1), st.booleans()),
)
def test_drafts_keep_the_invariants(text: list[int], budget: Budget) -> None:
    draft = propose(text, budget)
    assert len(draft) <= min(budget.nodes, budget.depth)
    assert list(draft.parents) == list(range(-1, len(draft) - 1))
    assert all(budget.floor <= c <= 1 for c in draft.confidence)
    assert all(a >= b for a, b in pairwise(draft.confidence))


def test_a_longer_match_is_claimed_with_more_confidence() -> None:
    run = list(range(12))
    few, many = propose([*run, 99, *run[-2:]]), propose([*run, 99, *run])
    assert few.tokens[0] == many.tokens[0] == 99
    assert few.confidence[0] == pytest.approx(2 / 4)
    assert many.confidence[0] == pytest.approx(12 / 14)


class Counted(list[int]):
    """A text that counts how many of its tokens were read."""

    reads = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        value = super().__getitem__(key)
        self.reads += len(value) if isinstance(key, slice) else 1
        return value

    def __iter__(self) -> Iterator[int]:
        self.reads += len(self)
        return super().__iter__()


def test_a_step_reads_a_few_tokens_however_long_the_text() -> None:
    text = Counted(i % 97 for i in range(5000))
    drafter, request = NgramDrafter(), numbered(0, text)
    drafter.open(request)
    for token in (5, 6, 7):
        text.append(token)
        text.reads = 0
        draft = drafter.propose([request], [Budget(8, 8)])[0]
        drafter.observe([VerifiedDraft(request, draft, (), (token,))])
        assert text.reads < 120


def test_sequences_do_not_mix_and_closed_ones_are_forgotten() -> None:
    drafter, one, two = NgramDrafter(), numbered(1, [1, 2, 3, 1, 2]), numbered(2, [1, 2])
    drafter.open(one)
    drafter.open(two)
    first, second = drafter.propose([one, two], [Budget(1, 1), Budget(1, 1)])
    assert (list(first.tokens), list(second.tokens)) == ([3], [])
    drafter.close(one)
    drafter.close(two)
    assert not drafter._indexes


def test_impossible_ranges_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_ngram"):
        NgramConfig(max_ngram=1, min_ngram=2)


def test_none_proposes_nothing() -> None:
    drafter, request = NoDrafter(), numbered(0, [1, 1, 1])
    drafter.open(request)
    assert drafter.propose([request], [Budget(4, 4)]) == [Draft()]
