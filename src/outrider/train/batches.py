"""Samples of like length together, prompts and wholes, in an order that a seed and an epoch decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.sampling.noise import hash64
from outrider.train.corpus import Corpus

_POOL = 256
"""Batches' worth of shuffled samples that are sorted by length together: long enough for little padding, short enough
that a batch is still a random one."""

_PROMPTS = 64
"""Prompts that differ by less than so many tokens count as equally long."""


@dataclass(frozen=True)
class Batch:
    """Rows padded at their end with token 0."""

    tokens: Tensor
    """[rows, longest] int64"""
    lengths: Tensor
    """[rows] int64"""
    answers: Tensor
    """[rows, longest] bool: the target wrote this token as itself."""
    index: int
    """In its epoch: `batches(..., start=index + 1)` goes on after it."""


def batches(
    corpus: Corpus,
    size: int,
    *,
    seed: int,
    epoch: int = 0,
    start: int = 0,
    held_out: bool = False,
    samples: int | None = None,
) -> Iterator[Batch]:
    """One epoch in batches of at most `size` tokens, padding included (a longer sample has one to itself).

    The same for the same arguments as long as the first `samples` samples (None: all there are now) stay the same, so
    a run that records its epoch, index and number of samples can go on where it was, also in a corpus that grew.
    """
    cut = plan(corpus, size, seed=seed, epoch=epoch, held_out=held_out, samples=samples)
    for index in range(start, len(cut)):
        yield _batch(corpus, cut[index], index)


def plan(
    corpus: Corpus, size: int, *, seed: int, epoch: int, held_out: bool = False, samples: int | None = None
) -> list[npt.NDArray[np.int64]]:
    """The samples of each batch of an epoch."""
    lengths = corpus.lengths()[:samples]
    chosen = np.array([i for i in range(len(lengths)) if corpus.held_out(i, samples) == held_out], np.int64)
    if not len(chosen):
        return []
    starts = corpus.answer_starts()[:samples] // _PROMPTS
    rng = np.random.default_rng(hash64("batches", seed, epoch))
    rng.shuffle(chosen)
    pool = max(1, int(_POOL * size / lengths[chosen].mean()))
    cut = []
    for first in range(0, len(chosen), pool):
        part = chosen[first : first + pool]
        part = part[np.lexsort((lengths[part], starts[part]))]
        begin = 0
        for end in range(1, len(part) + 1):
            if end == len(part) or (end + 1 - begin) * lengths[part[begin : end + 1]].max() > size:
                cut.append(part[begin:end])
                begin = end
    return [cut[i] for i in rng.permutation(len(cut))]


def _batch(corpus: Corpus, rows: npt.NDArray[np.int64], index: int) -> Batch:
    samples = [corpus[int(i)] for i in rows]
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    tokens = torch.zeros(len(samples), int(lengths.max()), dtype=torch.long)
    answers = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, sample in enumerate(samples):
        tokens[row, : lengths[row]] = torch.from_numpy(sample.tokens.astype(np.int64))
        for start, stop in sample.spans:
            answers[row, start:stop] = True
    return Batch(tokens, lengths, answers, index)
