"""Choosing tokens on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.cuda.kernels.choose import peaks_kernel, perturb_kernel, pick_kernel

BLOCK = 1024
"""Tokens a program looks at."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How each row is to be chosen: its key's words [rows, 2] int32 and its temperature [rows] fp64 (0: greedy)."""

    words: Tensor
    temperatures: Tensor

    @staticmethod
    def room(rows: int, device: torch.device) -> Noise:
        return Noise(
            torch.zeros(rows, 2, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.float64, device=device),
        )


class Chooser:
    """Choices among the first `vocab` columns of up to `rows` rows of logits.

    `ids`, rising: the token each column stands for; None: its own number.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device, ids: Tensor | None = None) -> None:
        self._vocab = vocab
        self._ids = None if ids is None else ids.to(device, torch.int32)
        self._blocks = -(-vocab // BLOCK)
        self._best = torch.zeros(2, rows, self._blocks, dtype=torch.float64, device=device)
        self._which = torch.zeros(2, rows, self._blocks, dtype=torch.int32, device=device)

    def choose(self, logits: Tensor, rows: int, noise: Noise | None, chosen: Tensor) -> None:
        """Fill `chosen[:rows]` (int32, any stride). `noise` None: every row greedily."""
        grid = (rows, self._blocks)
        width = 1 << (self._blocks - 1).bit_length()
        stride = logits.stride(0)
        peaks_kernel[grid](logits, self._best[0], self._which[0], stride, self._vocab, BLOCK=BLOCK)
        best, which = self._best[0], self._which[0]
        if noise is not None:
            best, which = self._best[1], self._which[1]
            perturb_kernel[grid](
                logits,
                self._best[0],
                noise.words,
                noise.temperatures,
                self._ids,
                best,
                which,
                stride,
                self._vocab,
                self._blocks,
                BLOCK=BLOCK,
                BLOCKS=width,
            )
        pick_kernel[(rows,)](best, which, self._ids, chosen, chosen.stride(0), self._blocks, BLOCKS=width)
