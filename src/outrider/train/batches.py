"""Samples of like length together, prompts and wholes, in an order that a seed and an epoch decide."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import hash64
from outrider.train.corpus import Corpus

_POOL = 256
"""Batches' worth of shuffled samples that are sorted by length together: long enough for little padding, short enough
that a batch is still a random one."""

_PROMPTS = 64
"""Prompts that differ by less than so many tokens count as equally long."""


def plan(corpus: Corpus, size: int, *, seed: int, epoch: int, held_out: bool = False) -> list[npt.NDArray[np.int64]]:
    """The samples of each batch of an epoch: at most `size` tokens, padding included (a longer one has a batch to
    itself). The same for the same arguments and corpus."""
    lengths = corpus.lengths()
    chosen = np.array([i for i in range(len(lengths)) if corpus.held_out(i) == held_out], np.int64)
    if not len(chosen):
        return []
    starts = corpus.answer_starts() // _PROMPTS
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
