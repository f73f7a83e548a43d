"""What matrix products of the CPU kernels cost by rows, several builds of them by turns: no model, short calls.

    python benchmarks/kernel_products.py before/_kernels.so src/outrider/models/native/_kernels.so
                                         [--kernels avx2] [--dtype bf16] [--threads 1] [--rounds 40] [--out FILE.json]

`--dtype` is bf16, int8, or as GGUF files have them, such as q4_k.

A call multiplies a piece of about half a megabyte of weights: `near`, the same piece again, which the L2 cache holds;
`far`, the next of enough pieces that none is in any cache. Calls are shorter than a turn of the scheduler, so that a
busy machine leaves many of them alone. Given are the first percentile in milliseconds, scaled to the default model's
weights, and how many times as fast as the first build each is: the median over turns that followed one another.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Sequence
from ctypes import POINTER, addressof, byref, pointer
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from outrider.models.native.library import BF16_PRODUCTS, KERNELS, Matrix, Model, Product, Shape, Strip
from outrider.models.stored import KINDS
from outrider.provenance import provenance

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
DEPTH, PIECE = 576, 2**19
WEIGHTS = 134_515_008
BLOCK, MOST_ROWS = 128, 128
PANEL, STORED_DEPTH = 16, 1536
"""Depth: a multiple of the 256 that some kinds of blocks have."""
STORED = [kind.lower() for kind in KINDS if kind.startswith("Q")]
AT_ONCE = 12
"""Calls of one build before it is the next one's turn."""


@dataclass(frozen=True)
class Pieces:
    """Random weights in pieces of so many columns and weights, and rows to multiply them with."""

    model: Model
    matrices: list[Matrix]
    columns: int
    weights: int
    x: Tensor
    y: Tensor
    memory: tuple[object, ...]
    """What the structures point to."""

    def product(self, piece: int, rows: int) -> Product:
        return Product(addressof(self.matrices[piece]), self.x.data_ptr(), self.y.data_ptr(), rows)


def number_pieces(kernels: str, dtype: str, threads: int, megabytes: int) -> Pieces:
    integers, size = dtype == "int8", 1 if dtype == "int8" else 2
    columns = PIECE // (DEPTH * size) // 32 * 32
    piece = columns * DEPTH
    count = megabytes * 2**20 // (piece * size)
    wide = torch.randint(-127, 128, (count * piece + 4096,), dtype=torch.int8)
    weights = wide if integers else (wide.bfloat16() / 127)
    scales = torch.full((columns * -(-DEPTH // BLOCK),), 1 / 127, dtype=torch.bfloat16)
    narrow = not integers and kernels in BF16_PRODUCTS
    x = torch.randn(MOST_ROWS, DEPTH).bfloat16().to(torch.bfloat16 if narrow else torch.float32)
    model, scratch = scratched(Shape(bf16=1, integers=int(integers)), kernels, threads, (MOST_ROWS + 2) * 4 * DEPTH)
    base, at_scales = weights.data_ptr(), scales.data_ptr() if integers else None
    matrices = [
        Matrix(data=base + i * piece * size, scales=at_scales, columns=columns, depth=DEPTH, inputs=DEPTH)
        for i in range(count)
    ]
    return Pieces(model, matrices, columns, piece, x, torch.empty(MOST_ROWS, columns), (weights, scales, scratch))


def stored_pieces(library: ctypes.CDLL, kernels: str, dtype: str, threads: int, megabytes: int) -> Pieces:
    """Random codes and scales of a kind of blocks that GGUF files have."""
    kind = KINDS.index(dtype.upper())
    library.outrider_panel_bytes.restype = ctypes.c_int64
    panel = library.outrider_panel_bytes(kind, STORED_DEPTH)
    panels = PIECE // panel // 2 * 2
    count, columns = megabytes * 2**20 // (panels * panel), panels * PANEL
    weights = torch.randint(0, 0x3B, (count * panels * panel + 8192,), dtype=torch.uint8)  # no scale is endless
    strips = [Strip(weights.data_ptr() + i * panels * panel, kind, panels, 0, 1) for i in range(count)]
    matrices = [
        Matrix(columns=columns, depth=STORED_DEPTH, inputs=STORED_DEPTH, strips=pointer(strip), strip_count=1)
        for strip in strips
    ]
    model, scratch = scratched(Shape(bf16=1, integers=1), kernels, threads, (MOST_ROWS + 2) * 8 * STORED_DEPTH)
    x, y = torch.randn(MOST_ROWS, STORED_DEPTH), torch.empty(MOST_ROWS, columns)
    return Pieces(model, matrices, columns, columns * STORED_DEPTH, x, y, (weights, strips, scratch))


def scratched(shape: Shape, kernels: str, threads: int, size: int) -> tuple[Model, Tensor]:
    shape.threads, shape.kernels = threads, KERNELS.index(kernels)
    scratch = torch.empty(threads * size, dtype=torch.int8)
    return Model(shape=shape, scratch=scratch.data_ptr(), scratch_size=size), scratch


def loaded(path: Path, kernels: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path.resolve()))
    library.outrider_product.argtypes = [POINTER(Model), POINTER(Product)]
    library.outrider_product.restype = None
    assert library.outrider_has(KERNELS.index(kernels)), f"this CPU has no {kernels}"
    return library


def milliseconds(library: ctypes.CDLL, pieces: Pieces, rows: int, which: Sequence[int]) -> list[float]:
    """Of every piece of these, as if it were the whole model."""
    found = []
    for i in which:
        product = pieces.product(i, rows)
        start = perf_counter()
        library.outrider_product(byref(pieces.model), byref(product))
        found.append((perf_counter() - start) * 1e3 * WEIGHTS / pieces.weights)
    return found


def low(turns: list[list[float]]) -> float:
    times = sorted(ms for turn in turns for ms in turn)
    return round(times[len(times) // 100], 2)


def gain(first: list[list[float]], other: list[list[float]]) -> float:
    """How many times as fast the other is, by turns that followed one another."""
    return round(median(median(a) / median(b) for a, b in zip(first, other, strict=True)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("--kernels", choices=KERNELS, default="avx2")
    parser.add_argument("--dtype", choices=("bf16", "int8", *STORED), default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--megabytes", type=int, default=96, help="of weights: more than the caches hold")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    builds = {path: loaded(path, options.kernels) for path in options.libraries}
    asked = (options.kernels, options.dtype, options.threads, options.megabytes)
    stored = options.dtype in STORED
    pieces = stored_pieces(builds[options.libraries[0]], *asked) if stored else number_pieces(*asked)
    times: dict[tuple[str, Path, int], list[list[float]]] = {}
    at = 0
    for _ in range(options.rounds):
        for rows in ROWS:
            for path, library in builds.items():
                far = [(at + i) % len(pieces.matrices) for i in range(AT_ONCE)]
                at += AT_ONCE
                for where, which in (("far", far), ("near", far[-1:] * AT_ONCE)):
                    times.setdefault((where, path, rows), []).append(milliseconds(library, pieces, rows, which))
    found: dict[str, dict[int, float]] = {}
    for where in ("near", "far"):
        for path in builds:
            found[f"{where} {path}, ms"] = {rows: low(times[where, path, rows]) for rows in ROWS}
        for path in options.libraries[1:]:
            base = options.libraries[0]
            found[f"{where} {path}, gain"] = {
                rows: gain(times[where, base, rows], times[where, path, rows]) for rows in ROWS
            }
    for name, by_rows in found.items():
        print(f"{name:50}", *(f"{rows}:{figure}" for rows, figure in by_rows.items()))
    if options.out:
        settings = {key: str(value) for key, value in vars(options).items() if key not in ("out", "libraries")}
        options.out.write_text(json.dumps({"provenance": provenance() | settings, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
