"""How a matrix product is cut up, chosen by the matrix and the number of rows.

`split` decides the order of summation, so it depends on the matrix alone; the rest changes only the speed. The values
are what was fastest of some 400 measured on an H200 with the shapes of an 8B model (docs/performance.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.models.cuda.kernels.linear import BLOCK_N

PROGRAMS = 120
"""Fewer programs than this leave multiprocessors without work: the depth is split."""
MULTIPROCESSORS = 132
"""Of the GPU the choices below were measured on."""
SHORTEST = 192
"""A part of the depth below this is not worth adding up."""
WIDE = 65_536
"""Columns from which on a matrix fills the machine with double tiles: the vocabulary."""


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    """Rows of x per program."""
    block_n: int
    block_k: int
    split: int
    stages: int


def depth_split(columns: int, depth: int) -> int:
    """Into how many parts the depth is cut."""
    tiles = -(-columns // BLOCK_N)
    fitting = [s for s in (1, 2, 3, 4, 6, 8) if depth % (s * 32) == 0 and (s == 1 or depth // s >= SHORTEST)]
    return next((s for s in fitting if tiles * s >= PROGRAMS), fitting[-1])


def tiling(columns: int, depth: int, rows: int, *, gated: bool = False, split: int = 1) -> Tiling:
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    few = tile_rows == 16
    if columns >= WIDE:
        block_n, block_k, stages = (2 * BLOCK_N, 128, 3) if few else (2 * BLOCK_N, 64, 4)
    elif gated:
        block_n, block_k, stages = (BLOCK_N, 128, 4) if few else (BLOCK_N, 64, 6)
    elif -(-columns // BLOCK_N) * split > MULTIPROCESSORS:  # small enough for two programs to share one
        block_n, block_k, stages = (BLOCK_N, 64, 6) if few else (BLOCK_N, 128, 3)
    else:
        block_n, block_k, stages = (BLOCK_N, 128, 6 if few else 5)
    return Tiling(tile_rows, block_n, math.gcd(block_k, depth // split), split, stages)
