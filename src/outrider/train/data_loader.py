"""A corpus as the training loop wants it: batches by position, and the held-out part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.train.batch import NARROWEST, Texts
from outrider.train.batches import plan
from outrider.train.corpus import Corpus

_HELD_OUT = 250_000
"""Tokens of held-out text looked at in an evaluation, at most."""


class CorpusLoader:
    """Batches of at most `size` tokens. The corpus must not grow meanwhile."""

    def __init__(self, corpus: Corpus, size: int, seed: int) -> None:
        self._corpus, self._size, self._seed = corpus, size, seed
        self._counts: list[int] = []
        self._cut: tuple[int, list[NDArray[np.int64]]] = -1, []
        """The epoch cut last: making a plan takes a while with a large corpus."""

    def steps(self, epochs: int) -> int:
        """Batches in so many epochs; they are cut anew in each, so the numbers differ a little."""
        while len(self._counts) < epochs:
            self._counts.append(len(self._plan(len(self._counts))))
        return sum(self._counts[:epochs])

    def batches(self, start: int) -> Iterator[Texts]:
        for epoch in count():
            before = self.steps(epoch)
            if start >= self.steps(epoch + 1):
                continue
            for rows in self._plan(epoch)[max(0, start - before) :]:
                yield texts(self._corpus, rows)

    def held_out(self) -> Iterable[Texts]:
        """Always the same."""
        seen = 0
        for rows in plan(self._corpus, self._size, seed=self._seed, epoch=0, held_out=True):
            batch = texts(self._corpus, rows)
            yield batch
            seen += batch.count
            if seen >= _HELD_OUT:
                return

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        if self._cut[0] != epoch:
            self._cut = epoch, plan(self._corpus, self._size, seed=self._seed, epoch=epoch)
        return self._cut[1]


def texts(corpus: Corpus, rows: NDArray[np.int64]) -> Texts:
    samples = [corpus[int(i)] for i in rows]
    lengths = [len(sample.tokens) for sample in samples]
    tokens = np.zeros((len(samples), max(NARROWEST, *lengths)), np.int64)
    for row, sample in zip(tokens, samples, strict=True):
        row[: len(sample.tokens)] = sample.tokens
    return Texts(
        torch.from_numpy(tokens),
        lengths,
        [sample.spans[-1][0] for sample in samples],
        [sample.temperature == 0 for sample in samples],
        [sample.spans[:-1] for sample in samples],
    )
