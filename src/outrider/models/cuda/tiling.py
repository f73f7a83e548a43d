"""How a matrix product is cut up, chosen by the matrix, the number of rows and what the GPU has room for.

`split` decides the order of summation, so it depends on the matrix alone; the rest changes only the speed. The values
are what was fastest of some 400 measured on an H200 with the shapes of an 8B model (docs/log/gpu-kernels.md). Where a
GPU has less shared memory, less is fetched ahead, then less at a time. On GPUs unlike that one a few others are tried
at the first load (`tuning.py`).

Every launch asks, hundreds of thousands of them while graphs are recorded: what was found once is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.kernels.eighth_hopper import GROUP, GROUPS
from outrider.models.cuda.kernels.linear import BLOCK_N
from outrider.models.cuda.kernels.wide_hopper import STEP

PROGRAMS = 120
"""Fewer programs than this leave multiprocessors without work: the depth is split."""
PROGRAMS_OF_8 = 256
"""The same of weights of 8 bits: widening them keeps a program busy, so that several share a multiprocessor."""
SHORTEST = 192
"""A part of the depth below this is not worth adding up."""
WIDE = 65_536
"""Columns from which on a matrix fills the machine with double tiles: the vocabulary."""
FINISHING = 20_480
"""Bytes of shared memory that `wide_hopper_kernel` needs beside its stages."""
FEW_ROWS = 128
"""Up to so many rows weights are read at memory speed; more are multiplied as fast as that goes."""
MANY_ROWS = 512
"""Up to so many decode at once."""


class Product(NamedTuple):
    """What the tiling of few rows is chosen for."""

    columns: int
    depth: int
    gated: bool
    size: int
    """Bytes of a weight."""

    @property
    def split(self) -> int:
        """Into how many parts the depth is cut."""
        return 1 if self.gated else depth_split(self.columns, self.depth, self.size)


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    """Rows of x per program."""
    block_n: int
    block_k: int
    split: int
    stages: int
    unrolled: int = 1
    """Tiles of a stage."""
    warps: int = 4
    prefetch: int = 2
    """Stages of weights asked for before the kernel it follows has ended."""

    def shared(self, size: int, gated: bool) -> int:
        """Bytes of shared memory for all stages, with weights of `size` bytes: tiles of W and of x."""
        return self.stages * self.unrolled * self.block_k * ((2 if gated else 1) * size * self.block_n + 2 * self.rows)

    def fitted(self, size: int, gated: bool, room: int) -> Tiling:
        """The same with so many stages, or so short ones, that they fit; words of 8-bit weights are not taken apart."""
        one = replace(self, stages=1).shared(size, gated)
        stages = min(self.stages, room // one)
        if stages < 3 and self.unrolled > 1:
            return replace(self, unrolled=1, stages=2 * self.stages).fitted(size, gated, room)
        if stages >= min(3, self.stages) or self.block_k % 64 or size == 1:
            return replace(self, stages=max(1, stages))
        return replace(self, block_k=self.block_k // 2, stages=2 * self.stages).fitted(size, gated, room)


@cache
def depth_split(columns: int, depth: int, size: int = 2) -> int:
    """Into how many parts the depth is cut, with weights of `size` bytes."""
    tiles, least, programs = -(-columns // BLOCK_N), *((64, PROGRAMS_OF_8) if size == 1 else (32, PROGRAMS))
    fitting = [s for s in (1, 2, 3, 4, 6, 8) if depth % (s * least) == 0 and (s == 1 or depth // s >= SHORTEST)]
    return next((s for s in fitting if tiles * s >= programs), fitting[-1])


def word_group(columns: int, depth: int, *, gated: bool = False) -> int:
    """Of how many neighbours in depth the 8-bit weights lie in words together (`kernels/eighth.py`)."""
    return math.gcd(128, depth // (1 if gated else depth_split(columns, depth, 1)))


@cache
def tiling(
    columns: int, depth: int, rows: int, gpu: GPU, *, gated: bool = False, split: int = 1, size: int = 2
) -> Tiling:
    """`size`: bytes of a weight."""
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    few = tile_rows == 16
    if rows > 64 and size == 2 and gpu.multiplies_apart and not gated:
        block_n, stages = (2 * BLOCK_N, 4) if columns >= WIDE else (BLOCK_N, 5)
        cut = Tiling(128, block_n, math.gcd(64, depth // split), split, stages, warps=8)
        return cut.fitted(size, gated, gpu.shared)
    if size == 1:
        group, programs = word_group(columns, depth, gated=gated), -(-columns // BLOCK_N) * split
        short = (depth // split) % (2 * group) != 0 or (not gated and programs > 2 * gpu.multiprocessors)
        stages = 3 if gated or not few else 4 if columns >= WIDE or not short else 6
        return Tiling(tile_rows, BLOCK_N, group, split, stages, 1 if short else 2).fitted(size, gated, gpu.shared)
    if columns >= WIDE:
        block_n, block_k, stages = (2 * BLOCK_N, 128, 3) if few else (2 * BLOCK_N, 64, 4)
    elif gated:
        block_n, block_k, stages = (BLOCK_N, 128, 4) if few else (BLOCK_N, 64, 6)
    elif -(-columns // BLOCK_N) * split > gpu.multiprocessors:  # small enough for two programs to share one
        block_n, block_k, stages = (BLOCK_N, 64, 6) if few else (BLOCK_N, 128, 3)
    else:
        block_n, block_k, stages = (BLOCK_N, 128, 6 if few else 5)
    cut = Tiling(tile_rows, block_n, math.gcd(block_k, depth // split), split, stages)
    return cut.fitted(size, gated, gpu.shared)


def alternatives(usual: Tiling, product: Product, gpu: GPU) -> list[Tiling]:
    """A short list of others with the same order of summation: fewer stages, so that more programs share a
    multiprocessor; longer ones and shorter ones; more warps, and more columns, for each program."""
    whole = product.depth // product.split
    found = [
        replace(usual, stages=max(2, usual.stages // 2)),
        replace(usual, stages=usual.stages + 2),
        replace(usual, warps=2 * usual.warps),
    ]
    if product.size > 1:  # words of 8-bit weights lie in groups of the depth of a tile
        found.append(replace(usual, block_k=2 * usual.block_k, stages=max(2, usual.stages // 2)))
        found.append(replace(usual, block_k=usual.block_k // 2, stages=2 * usual.stages))
        found.append(replace(usual, block_n=2 * BLOCK_N))
    elif usual.unrolled == 1:
        found.append(replace(usual, unrolled=2, stages=max(2, usual.stages // 2)))
    else:
        found.append(replace(usual, unrolled=1, stages=2 * usual.stages))
    return [
        cut
        for cut in dict.fromkeys(found)
        if cut != usual
        and cut.shared(product.size, product.gated) <= gpu.shared
        and cut.block_k >= 32
        and whole % (cut.block_k * cut.unrolled) == 0
    ]


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


@cache
def wide_tiling(depth: int, shared: int, *, gated: bool, split: int, size: int = 2) -> WideTiling:
    """`shared`: bytes of shared memory that a program may have; `size`: of a weight."""
    side, block_k = 128, math.gcd(128 if size == 1 else 64, depth // split)
    of_x, of_w = 2 * side * block_k, size * side * block_k  # bytes
    paired = split == 2 and not gated and 2 * 2 * (of_x + of_w) <= shared
    fetched = of_x + 2 * of_w if gated else (2 if paired else 1) * (of_x + of_w)
    return WideTiling(side, side, block_k, paired, 8, max(1, min(3 if paired or gated else 4, shared // fetched)), 8)


@dataclass(frozen=True, slots=True)
class HopperTiling:
    """Of products of many rows by `wide_hopper_kernel`."""

    rows: int
    block_n: int
    stages: int
    group: int


@cache
def hopper_tiling(columns: int, depth: int, rows: int, gpu: GPU, *, gated: bool, split: int) -> HopperTiling | None:
    """None: not for this product, or not for so few rows. Of two widths the one that leaves less undone: where tiles
    are as many as multiprocessors, or a multiple, none waits for the others; narrow ones take a tenth longer."""
    if not gpu.multiplies_apart or rows <= 64 or split > 2 or depth % (split * STEP):
        return None
    side = 128

    def used(block_n: int) -> float:
        tiles = -(-rows // side) * -(-columns // block_n)
        return tiles / (-(-tiles // gpu.multiprocessors) * gpu.multiprocessors)

    block_n = side if gated or used(2 * side) < 0.9 * used(side) else 2 * side
    if (
        rows <= FEW_ROWS and used(block_n) < 1 / 3
    ):  # more programs read the weights where parts of the depth have theirs
        return None
    stage = 2 * STEP * (side + (2 * block_n if gated else block_n))
    return HopperTiling(side, block_n, min(6, (gpu.shared - FINISHING) // stage), 8 if gated else 16)


@dataclass(frozen=True, slots=True)
class StreamTiling:
    """Of products of few rows by `stream_hopper_kernel`."""

    rows: int
    groups: int
    stages: int


@cache
def stream_tiling(product: Product, rows: int, gpu: GPU) -> StreamTiling | None:
    """None: not for this product, or for more rows than few. Two groups where with one each a few units would be left
    over, for which most programs wait."""
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if not gpu.multiplies_apart or rows > 64 or product.size == 1 or product.columns % BLOCK_N:
        return None
    if product.gated and tile_rows == 16:
        return None  # the compiler's kernel reads those as fast
    units = product.columns // BLOCK_N * product.split
    groups = 2 if not product.gated and units > gpu.multiprocessors else 1
    room = gpu.shared - groups * (1024 + max(4352, 4 * BLOCK_N * tile_rows))
    stages = min(24, room // (2 * STEP * (tile_rows + groups * BLOCK_N * (2 if product.gated else 1))))
    if product.depth % (product.split * STEP) or product.depth // product.split < STEP * stages:
        return None  # too short to be fetched so far ahead
    return StreamTiling(tile_rows, groups, stages)


@dataclass(frozen=True, slots=True)
class EighthTiling:
    """Of products of few rows with weights of 8 bits by `eighth_hopper_kernel`."""

    rows: int
    stages: int
    """Of each group."""


@cache
def eighth_tiling(product: Product, rows: int, gpu: GPU) -> EighthTiling | None:
    """None: not for this product, or so many rows. Few stages, so that the kernel that follows finds room beside this
    one; with more units than two to a multiprocessor, and of gate and up of up to 32 rows, the compiler's kernel, of
    which more programs run at once, is faster."""
    columns, depth, gated, size = product
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if not gpu.multiplies_apart or rows > 64 or size > 1 or columns % BLOCK_N or columns >= WIDE:
        return None
    if word_group(columns, depth, gated=gated) != GROUP:
        return None
    many = columns // BLOCK_N * product.split > GROUPS * gpu.multiprocessors
    if tile_rows < 64 if gated else tile_rows == 32 or many:
        return None
    room = gpu.shared - GROUPS * (1024 + max(4352, 4 * BLOCK_N * tile_rows))
    return EighthTiling(tile_rows, min(4, room // (GROUPS * GROUP * (2 * tile_rows + BLOCK_N * (2 if gated else 1)))))


@dataclass(frozen=True, slots=True)
class PartsTiling:
    """Of products of many rows by `parts_hopper_kernel`."""

    groups: int
    block_n: int
    stages: int


@cache
def parts_tiling(product: Product, rows: int, gpu: GPU) -> PartsTiling | None:
    """None: not for this product, or so many rows. As many groups as leave fewer rows of the last tile empty; of two
    widths the one that leaves less undone."""
    columns, depth, gated, size = product
    if not gpu.multiplies_apart or not 64 < rows <= MANY_ROWS or size == 1 or product.split > 2:
        return None
    if depth % (product.split * STEP) or depth // product.split < 16 * STEP:
        return None
    groups = 3 if -(-rows // 192) * 192 <= -(-rows // 128) * 128 else 2

    def used(block_n: int) -> float:
        units = -(-rows // (64 * groups)) * -(-columns // block_n) * product.split
        return units / (-(-units // gpu.multiprocessors) * gpu.multiprocessors)

    wide = not gated and used(2 * BLOCK_N) >= 0.9 * used(BLOCK_N)
    width = 2 * BLOCK_N if wide or gated else BLOCK_N
    stages = min(8, (gpu.shared - 1024 - 8448 * groups) // (2 * STEP * (64 * groups + width)))
    return PartsTiling(groups, 2 * BLOCK_N if wide else BLOCK_N, stages)


Cut = Tiling | WideTiling | HopperTiling | StreamTiling | EighthTiling | PartsTiling
"""How a product is computed."""


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
