"""What grammars let follow the rows of a step, on its way to the device: a bit per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.models.cuda.graphs import Staging, oldest

SPARE = 64
"""Masks that there is room for beside one for every lane."""


class Masks:
    """`table` [masks, words]: those of the step launched last, each lane's in a row. Beyond them are as many more as a
    lane may have rows in a pass, which nobody has written: what is chosen there is of no use."""

    def __init__(self, lanes: int, vocab: int, rows: int, device: torch.device) -> None:
        """`rows`: of a lane in one pass, at most."""
        self._most, self._words = lanes + SPARE, -(-vocab // 32)
        self.table = torch.zeros(self._most + rows, self._words, dtype=torch.int32, device=device)
        self._staged = [Staging(self._most * self._words, device) for _ in range(4)]

    def send(self, wanted: Sequence[Sequence[NDArray[np.bool_] | None]]) -> list[range]:
        """For the steps launched from now on; where each lane's are. There may be fewer than `wanted`, one of each at
        least. A mask is [vocab]; None: every token may follow."""
        staged = oldest(self._staged)
        rows = staged.free().numpy().reshape(self._most, self._words)
        places, start = list[range](), 0
        for i, masks in enumerate(wanted):
            left = self._most - start - (len(wanted) - 1 - i)
            some = masks[:left]
            for row, mask in zip(rows[start:], some, strict=False):
                row[:] = -1 if mask is None else 0
                if mask is not None:
                    bits = np.packbits(mask, bitorder="little")
                    row.view(np.uint8)[: len(bits)] = bits
            places.append(range(start, start + len(some)))
            start += len(some)
        staged.send(self.table.view(-1), start * self._words)
        return places
