"""How a matrix product is cut up, chosen by the matrix and the number of rows.

`split` decides the order of summation, so it depends on the matrix alone; the rest changes only the speed. The values
are what was fastest of some 400 measured on an H200 with the shapes of an 8B model (docs/performance.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.kernels.linear import BLOCK_N

PROGRAMS = 120
"""Fewer programs than this leave multiprocessors without work: the depth is split."""
MULTIPROCESSORS = 132
"""Of the GPU the choices below were measured on."""
SHORTEST = 192
"""A part of the depth below this is not worth adding up."""
WIDE = 65_536
"""Columns from which on a matrix fills the machine with double tiles: the vocabulary."""
FEW_ROWS = 128
"""Up to so many rows weights are read at memory speed; more are multiplied as fast as that goes."""


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


@dataclass(frozen=True, slots=True)
class WideTiling:
    """Of products of many rows."""

    rows: int
    block_n: int
    block_k: int
    paired: bool
    warps: int
    stages: int
    group: int


def wide_tiling(depth: int, shared: int, *, gated: bool, split: int) -> WideTiling:
    """`shared`: bytes of shared memory that a program may have."""
    side, block_k = 128, math.gcd(64, depth // split)
    tile = 2 * side * block_k  # bytes
    paired = split == 2 and not gated and 2 * 4 * tile <= shared
    fetched = (3 if gated else 4 if paired else 2) * tile
    return WideTiling(side, side, block_k, paired, 8, max(1, min(3 if paired or gated else 4, shared // fetched)), 8)


@dataclass(frozen=True, slots=True)
class PromptTiling:
    """Of a prompt's attention."""

    rows: int
    warps: int
    stages: int


def prompt_tiling(dim: int, shared: int) -> PromptTiling | None:
    """None: heads too large for this device."""
    rows = 128 if dim == 128 else 64
    stages = min(3, (shared - 2 * rows * dim) // (2 * 2 * BLOCK * dim))
    return PromptTiling(rows, rows // 16, stages) if stages else None
