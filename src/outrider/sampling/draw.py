"""Choosing tokens from scores: the lowest id on ties, Gumbel noise computed only where it can matter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider.errors import NotANumber
from outrider.sampling.noise import Key, gumbel_at, gumbel_rows


def argmax(scores: Tensor) -> Tensor:
    """The index [R] of each row's largest score, the lowest one on ties."""
    if scores.device.type == "cpu":
        # NumPy's argmax also promises the first of equals and is some 20 times faster than torch's on a CPU.
        return torch.from_numpy(np.asarray(scores.numpy().argmax(axis=-1)))
    return scores.argmax(dim=-1)


def choices(scores: Tensor) -> Tensor:
    """`argmax`, but -1 for a row without a largest number (NaN among them, which truncation turns into nothing at all):
    no token may be chosen there, see `not_a_number`."""
    best = argmax(scores)
    largest = scores.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return torch.where(largest > -math.inf, best, -1)


def not_a_number() -> NotANumber:
    return NotANumber(
        "the model gave scores that are not numbers (NaN), so no token can be chosen; its weights may be damaged, or "
        "too large for this number format: fetch them again, or try fp32"
    )


def perturb(scores: Tensor, keys: Sequence[Key]) -> Tensor:
    """Add to each row of `scores` [R, V] fp64 the shared Gumbel noise of its key, in place.

    The largest of a row is then a sample of softmax(scores), the k largest are k samples without replacement.
    """
    vocab = scores.shape[-1]
    if scores.device.type != "cpu":
        distinct = list(dict.fromkeys(keys))  # siblings stand at the same position
        noise = gumbel_rows(distinct, vocab, scores.device)
        if len(distinct) < len(keys):
            where = {key: i for i, key in enumerate(distinct)}
            noise = noise[[where[key] for key in keys]]
        return scores.add_(noise)
    dense: dict[Key, Tensor] = {}
    for row, key in zip(scores, keys, strict=True):
        values = row.numpy()
        if values.min() == -math.inf:
            live = np.flatnonzero(values > -math.inf)
            if 4 * len(live) < vocab:  # truncated: hashing just the survivors is far cheaper
                tokens = torch.from_numpy(live)
                row.index_add_(0, tokens, gumbel_at([key], tokens)[0])
                continue
        if key not in dense:
            dense[key] = gumbel_rows([key], vocab)[0]
        row.add_(dense[key])
    return scores
