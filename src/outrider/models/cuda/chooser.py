"""Choosing tokens on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.cuda.kernels.choose import (
    mass_kernel,
    peaks_kernel,
    perturb_kernel,
    pick_kernel,
    pick_left_kernel,
)

BLOCK = 1024
"""Tokens a program looks at."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How each row is to be chosen: its key's words [rows, 2] int32 and its numbers [rows, 4] fp64 (see
    `kernels/choose.py`)."""

    words: Tensor
    numbers: Tensor

    @staticmethod
    def room(rows: int, device: torch.device) -> Noise:
        return Noise(
            torch.zeros(rows, 2, dtype=torch.int32, device=device),
            torch.zeros(rows, 4, dtype=torch.float64, device=device),
        )


class Chooser:
    """Choices among the first `vocab` columns of up to `rows` rows of logits; -1 where one is not a number.

    `ids`, rising: the token each column stands for; None: its own number.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device, ids: Tensor | None = None) -> None:
        self._vocab = vocab
        self._ids = None if ids is None else ids.to(device, torch.int32)
        self._blocks = -(-vocab // BLOCK)
        self._best = torch.zeros(2, rows, self._blocks, dtype=torch.float64, device=device)
        self._which = torch.zeros(2, rows, self._blocks, dtype=torch.int32, device=device)
        self._weight = torch.zeros(rows, self._blocks, dtype=torch.float64, device=device)
        self._mass = torch.zeros(rows, self._blocks, dtype=torch.int64, device=device)

    def choose(self, logits: Tensor, rows: int, noise: Noise | None, chosen: Tensor) -> None:
        """Fill `chosen[:rows]` (int32, any stride). `noise` None: every row greedily."""
        grid = (rows, self._blocks)
        width = 1 << (self._blocks - 1).bit_length()
        stride, vocab, blocks = logits.stride(0), self._vocab, self._blocks
        peaks = self._best[0]
        peaks_kernel[grid](logits, peaks, self._which[0], stride, vocab, BLOCK=BLOCK)
        if noise is None:
            pick_kernel[(rows,)](
                peaks, self._which[0], self._ids, chosen, chosen.stride(0), blocks, BLOCKS=width, num_warps=1
            )
            return
        words, numbers, best, which = noise.words, noise.numbers, self._best[1], self._which[1]
        sizes = {"BLOCK": BLOCK, "BLOCKS": width}
        perturb_kernel[grid](
            logits, peaks, words, numbers, self._ids, best, which, self._weight, stride, vocab, blocks, **sizes
        )
        mass_kernel[grid](logits, peaks, numbers, self._weight, self._mass, stride, vocab, blocks, **sizes)
        pick_left_kernel[(rows,)](
            logits,
            peaks,
            self._which[0],
            words,
            numbers,
            self._ids,
            best,
            which,
            self._weight,
            self._mass,
            chosen,
            stride,
            vocab,
            blocks,
            chosen.stride(0),
            **sizes,
        )
