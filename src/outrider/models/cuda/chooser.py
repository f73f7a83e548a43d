"""Choosing tokens on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.models.cuda.kernels.choose import peaks_kernel, perturb_kernel, pick_kernel, top_k_kernel, unmask_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.nucleus import check_kernel, mass_kernel, next_kernel, pick_left_kernel
from outrider.models.cuda.said import Said

BLOCK = 1024
"""Tokens a program looks at."""

ROUNDS = 3
"""Of looking for what top-p leaves, by all programs together: at 0.9 a fourth is needed once in a thousand times."""


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
        self.blocks = -(-vocab // BLOCK)

        def room(dtype: torch.dtype, rounds: int = ROUNDS) -> Tensor:
            return torch.zeros(rounds, rows, self.blocks, dtype=dtype, device=device)

        self._peaks, self._peak_which = room(torch.float64, 1)[0], room(torch.int32, 1)[0]
        self._limit = torch.zeros(rows, dtype=torch.float64, device=device)
        self._best, self._which = room(torch.float64), room(torch.int32)
        """By rounds, as is the mass of likelier tokens."""
        self._above = room(torch.int64)
        self._weight, self._mass = room(torch.float64, 1)[0], room(torch.int64, 1)[0]

    @property
    def found(self) -> tuple[Tensor, ...]:
        """Of the rows looked at last that were drawn: the largest score of each block; what top-k leaves; and where
        there is a top-p, the weight and the mass of each block."""
        return self._peaks, self._limit, self._weight, self._mass

    def scored(
        self, logits: Tensor, said: Said | None, first: int
    ) -> tuple[tuple[Tensor | None, ...], tuple[int, ...], dict[str, Any]]:
        """What kernels make scores from (`given` of `kernels/scores.py`), their sizes, and how blocks are compiled."""
        if said is None:
            given: tuple[Tensor | None, ...] = logits, None, None, None, None, None, self._ids
            stride, longest = 0, 1
        else:
            given = logits, said.table, said.numbers, said.marks[first:], said.drafts, said.masks.table, self._ids
            stride, longest = said.stride, said.drafts.shape[1]
        width = 1 << (self.blocks - 1).bit_length()
        blocks = {"LONGEST": longest, "BLOCK": BLOCK, "BLOCKS": width, **UNFUSED}
        return given, (logits.stride(0), stride, self._vocab, self.blocks), blocks

    def choose(
        self, logits: Tensor, rows: int, noise: Noise | None, chosen: Tensor, said: Said | None = None, first: int = 0
    ) -> None:
        """Fill `chosen` from `first` on (int32, any stride) by the first `rows` logits. `noise` None: every row
        greedily. `said`: scores are processed first, of the rows that it marks."""
        chosen = chosen[first:]
        grid, ids = (rows, self.blocks), self._ids
        given, all_sizes, blocks = self.scored(logits, said, first)
        peaks, peak_which, limit = self._peaks, self._peak_which, self._limit
        peaks_kernel[grid](given, peaks, peak_which, *all_sizes[:3], LONGEST=blocks["LONGEST"], BLOCK=BLOCK, **UNFUSED)
        if said is not None and ids is None:  # a head's rows have no masks
            unmask_kernel[(rows,)](given, peaks, peak_which, *all_sizes, **blocks)
        if noise is None:
            pick_kernel[(rows,)](
                peaks, peak_which, ids, chosen, chosen.stride(0), self.blocks, BLOCKS=blocks["BLOCKS"], num_warps=1
            )
            return
        words, numbers, weight, mass = noise.words[first:], noise.numbers[first:], self._weight, self._mass
        top_k_kernel[(rows,)](given, peaks, peak_which, numbers, limit, *all_sizes, **blocks)
        best, which, above = self._best[0], self._which[0], self._above[0]
        perturb_kernel[grid](given, peaks, words, numbers, limit, best, which, weight, *all_sizes, **blocks)
        mass_kernel[grid](given, peaks, numbers, limit, best, which, weight, mass, above, *all_sizes, **blocks)
        for further in range(1, ROUNDS):
            before = above, best, which
            best, which, above = self._best[further], self._which[further], self._above[further]
            next_kernel[grid](given, peaks, words, numbers, limit, mass, *before, best, which, *all_sizes, **blocks)
            check_kernel[grid](
                given, peaks, numbers, limit, weight, mass, best, which, before[0], above, *all_sizes, **blocks
            )
        pick_left_kernel[(rows,)](
            given,
            peaks,
            peak_which,
            words,
            numbers,
            limit,
            weight,
            mass,
            self._best[0],
            self._which[0],
            best,
            which,
            above,
            chosen,
            *all_sizes,
            chosen.stride(0),
            **blocks,
            num_warps=8,
        )
