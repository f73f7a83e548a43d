"""Small worlds for tests: language models that are tables, and requests to decode with them.

`TableModel` is a real `LanguageModel` as far as the protocol goes (slots, pending trees, commit, rollback)
and refuses every misuse, so drafters tested with it are tested against the protocol.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from outrider.core.draft import ROOT, Draft, Speculation
from outrider.core.model import LanguageModel, Rows
from outrider.core.request import GrammarWalk, ResolvedParams
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams
from outrider.sampling.target import TargetRows, target_rows

Language = Callable[[tuple[int, ...]], list[float]]
"""The logits that follow a text."""


def language(vocab: int, seed: int, spread: float = 1.5) -> Language:
    """A random table of logits, conditioned on the whole text."""

    @cache
    def logits(text: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed}/{text}")
        return [rng.gauss(0, spread) for _ in range(vocab)]

    return logits


def between(near: Language, far: Language, weight: float) -> Language:
    """A language that resembles `near` the more, the smaller the weight."""
    return lambda text: [(1 - weight) * a + weight * b for a, b in zip(near(text), far(text), strict=True)]


@dataclass
class _Slot:
    committed: list[int] = field(default_factory=list)
    pending: list[tuple[int, int]] = field(default_factory=list)


class TableModel(LanguageModel):
    """A `LanguageModel` that looks its logits up."""

    def __init__(
        self,
        language: Language,
        vocab: int,
        max_context: int = 64,
        max_batch: int = 4,
        supports_trees: bool = True,
        chunk: int = 8,
    ) -> None:
        self.vocab_size = vocab
        self.max_context = max_context
        self.max_batch = max_batch
        self.supports_trees = supports_trees
        self.chunk = chunk
        self.passes: list[int] = []
        """Rows of every forward so far."""
        self._language = language
        self._slots: dict[int, _Slot] = {}

    def open(self) -> int:
        slot = next(i for i in itertools.count() if i not in self._slots)
        assert slot < self.max_batch, "no free slot"
        self._slots[slot] = _Slot()
        return slot

    def close(self, slot: int) -> None:
        del self._slots[slot]

    @property
    def held(self) -> int:
        return len(self._slots)

    def length(self, slot: int) -> int:
        return len(self._slots[slot].committed)

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        assert len({rows.slot for rows in batch}) == len(batch), "a slot twice in one batch"
        self.passes.append(sum(len(rows.tokens) for rows in batch))
        out = []
        for rows in batch:
            slot = self._slots[rows.slot]
            start = len(slot.pending)
            for token, parent in zip(rows.tokens, rows.parents, strict=True):
                assert ROOT <= parent < len(slot.pending), "a parent must come before its children"
                assert 0 <= token < self.vocab_size, "token outside the vocabulary"
                slot.pending.append((token, parent))
            assert len(slot.committed) + len(slot.pending) <= self.max_context, "cache overrun"
            wanted = range(len(rows.tokens)) if rows.logits is None else rows.logits
            out += [self._language(self._text(slot, start + row)) for row in wanted]
        return torch.tensor(out, dtype=torch.float32).reshape(len(out), self.vocab_size)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        held = self._slots[slot]
        for before, row in zip([ROOT, *path], path, strict=False):
            token, parent = held.pending[row]
            assert parent == before, "commit needs a path from the root"
            held.committed.append(token)
        held.pending.clear()

    def rollback(self, slot: int, length: int) -> None:
        held = self._slots[slot]
        assert length <= len(held.committed), "rollback only shortens"
        del held.committed[length:]
        held.pending.clear()

    @staticmethod
    def _text(slot: _Slot, row: int) -> tuple[int, ...]:
        path: list[int] = []
        while row != ROOT:
            token, row = slot.pending[row]
            path.append(token)
        return (*slot.committed, *path[::-1])


@dataclass(eq=False)
class Sequence_:
    """A request as drafters and samplers see it."""

    tokens: list[int]
    prompt_length: int
    params: ResolvedParams
    history: History
    id: int = field(default_factory=itertools.count().__next__)
    speculation: Speculation = field(default_factory=Speculation)
    cache_salt: str | None = None
    reused: int | None = None
    walk: GrammarWalk | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def push(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.history.append(tokens)


def request(prompt: Sequence[int], params: ResolvedParams, output: Sequence[int] = ()) -> Sequence_:
    made = Sequence_(list(prompt), len(prompt), params, History(prompt))
    made.push(output)
    return made


def numbered(number: int, tokens: list[int], cache_salt: str | None = None) -> Sequence_:
    """A request whose `tokens`, this very list, are all that matters of it."""
    return Sequence_(tokens, len(tokens), resolved(), History(()), number, cache_salt=cache_salt)


def resolved(vocab: int = 1000, eos: Sequence[int] = (), **options: Any) -> ResolvedParams:
    """`ResolvedParams` from `SamplingParams` options, with a fixed seed unless one is given."""
    return SamplingParams(**{"seed": 0, "temperature": 1.0, **options}).resolve({}, eos, vocab)


def rows_of(language: Language, seq: Sequence_, draft: Draft) -> TargetRows:
    """What a target speaking `language` says of a draft."""
    paths = [[draft.tokens[i] for i in draft.path(node)] for node in range(ROOT, len(draft))]
    logits = torch.tensor([language((*seq.tokens, *path)) for path in paths], dtype=torch.float32)
    return target_rows(logits, [seq], [draft])[0]


def emitted(seq: Sequence_, draft: Draft, path: Sequence[int], token: int) -> list[int]:
    """The tokens a verdict adds: up to a stop token or the limit."""
    tokens = [*(draft.tokens[i] for i in path), token]
    for count, candidate in enumerate(tokens, start=1):
        if candidate in seq.params.stop_token_ids or seq.generated + count == seq.params.max_tokens:
            return tokens[:count]
    return tokens


def finished(seq: Sequence_) -> bool:
    return seq.generated >= seq.params.max_tokens or (seq.generated > 0 and seq.tokens[-1] in seq.params.stop_token_ids)
