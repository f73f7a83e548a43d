"""Two drafters in one: what is looked up where text repeats, a head's guesses everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from outrider.drafters.head import HeadDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.types import Budget, Commit, Draft, Rows, SequenceView

_SAVED = 1.2
"""A step without head passes costs so much less."""
_RATE = 0.1
_HOPE = 1.3
"""Tokens a head's draft is taken to bring before it has been tried, and again after it was long not."""


@dataclass(slots=True)
class _Known:
    """Of one sequence: tokens accepted of the head's drafts lately, and the share of its claims that lookup keeps."""

    head: float = _HOPE
    kept: float = 1.0


class MixDrafter:
    """Per sequence and step the more promising of the two. Looking up costs next to nothing, so that is always tried,
    and the head passes are made only where it promises less than the head brought lately. The head reads the target's
    features whoever drafted, so it is ready at any step."""

    name = "head+suffix"

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter) -> None:
        self._head, self._suffix = head, suffix
        self._known: dict[int, _Known] = {}

    @property
    def head(self) -> HeadDrafter:
        return self._head

    def open(self, sequence: SequenceView) -> None:
        self._known[sequence.id] = _Known()
        self._head.open(sequence)
        self._suffix.open(sequence)

    def reach(self, sequence: SequenceView, source: int, common: int) -> int:
        return self._head.reach(sequence, source, common)

    def open_from(self, sequence: SequenceView, source: int, length: int, keep: bool) -> None:
        self._known[sequence.id] = _Known()
        self._head.open_from(sequence, source, length, keep)
        self._suffix.open(sequence)

    @property
    def held(self) -> int:
        return len(self._known)

    def close(self, sequence: SequenceView) -> None:
        self._head.close(sequence)
        self._suffix.close(sequence)
        del self._known[sequence.id]

    def read(self, sequences: Sequence[SequenceView], batch: Sequence[Rows], features: Tensor) -> None:
        self._head.read(sequences, batch, features)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[Draft]:
        found = self._suffix.propose(sequences, budgets)
        left = [
            Budget(0, 0) if self._prefers(sequence, draft) else budget
            for sequence, budget, draft in zip(sequences, budgets, found, strict=True)
        ]
        guessed = self._head.propose(sequences, left)
        return [
            lookup if not budget.nodes or not guess.tokens else guess
            for lookup, guess, budget in zip(found, guessed, left, strict=True)
        ]

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            known, draft = self._known[commit.sequence.id], commit.draft
            if draft.source == self._head.name:
                known.head += _RATE * (len(commit.path) - known.head)
                known.kept += _RATE / 5 * (1 - known.kept)
            elif draft.tokens:
                claimed = sum(draft.confidence)
                known.kept += _RATE * (min(1.5, len(commit.path) / max(claimed, 0.1)) - known.kept)
                known.head += _RATE / 5 * (_HOPE - known.head)
        self._head.observe(commits)
        self._suffix.observe(commits)

    def _prefers(self, sequence: SequenceView, lookup: Draft) -> bool:
        """Whether looking up promises more tokens for the cost of a step than the head."""
        known = self._known[sequence.id]
        # Nodes of one level exclude each other, so the tokens expected of a tree are the sum of its nodes' chances.
        return _SAVED * (1 + known.kept * sum(lookup.confidence)) >= 1 + known.head
