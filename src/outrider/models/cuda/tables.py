"""What the rows of a pass are, as its kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PATH = 64
"""Most pending ancestors of a row that do not lie in order behind the prefix."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What each row of a pass is. Views of one int32 tensor, so that the host fills them in one copy.

    Row r holds `tokens[r]` at `positions[r]` of slot `slots[r]`, stored at cache index `indices[r]`. It sees positions
    0..bases[r]-1 at those very cache indices and position bases[r] + j at `paths[r, j]`. `wanted` names rows whose
    logits are asked for.
    """

    flat: Tensor
    tokens: Tensor
    slots: Tensor
    positions: Tensor
    indices: Tensor
    bases: Tensor
    wanted: Tensor
    paths: Tensor
    """[rows, PATH]"""

    @staticmethod
    def over(flat: Tensor) -> Tables:
        rows = flat.shape[0] // (6 + PATH)
        t, s, p, i, b, w, paths = torch.split(flat, [rows] * 6 + [rows * PATH])
        return Tables(flat, t, s, p, i, b, w, paths.view(rows, PATH))

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """What describes a row, but for its logits and its path."""
        return self.tokens, self.slots, self.positions, self.indices, self.bases

    @staticmethod
    def size(rows: int, paths: int | None = None) -> int:
        """Numbers in tables of `rows` rows, or in their part up to the first `paths` paths."""
        return rows * 6 + (rows if paths is None else paths) * PATH
