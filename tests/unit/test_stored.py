"""Products with weights as GGUF files quantise them: to the bit what native/stored.h defines."""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from integers import lines
from tiny_gguf import blocks as encoded
from torch import Tensor

from outrider.models.native.formats import widened
from outrider.models.native.library import KERNELS, Matrix, Model, Product, Shape, Strip, kernels_here, library
from outrider.models.native.packing import PackedMatrix, Packer
from outrider.models.precision import BLOCK, blocks
from outrider.models.stored import KINDS, Stored

QUANTISED = tuple(kind for kind in KINDS if kind.startswith("Q"))
COLUMNS = 20
Array = np.ndarray[Any, Any]


def width_of(kind: str) -> int:
    return 512 if kind.endswith("_K") else 352


def packed(kind: str, raw: Array) -> PackedMatrix:
    rows, shape = torch.from_numpy(raw), (len(raw), width_of(kind))
    stored = Stored(kind, shape, lambda first, last: rows[first:last], lambda: rows)
    return Packer(stored=True).stored(torch.zeros(shape), None, {0: stored})


def product(matrix: PackedMatrix, x: Tensor, kernels: str, threads: int = 2) -> Tensor:
    compiled = library()
    assert compiled is not None
    size = 128 * (2 * matrix.depth + 512 * blocks(matrix.depth))
    scratch = torch.zeros(threads * size, dtype=torch.int8)
    shape = Shape(bf16=1, integers=1, threads=threads, kernels=KERNELS.index(kernels))
    model = Model(shape=shape, scratch=scratch.data_ptr(), scratch_size=size)
    (own,) = matrix.strips
    strips = (Strip * 1)(Strip(own.data.data_ptr(), KINDS.index(own.kind), own.panels, own.first, own.step))
    w = Matrix(columns=matrix.columns, depth=matrix.depth, inputs=matrix.inputs, strips=strips, strip_count=1)
    given = torch.zeros(max(len(x), 32), matrix.depth)
    given[: len(x), : matrix.inputs] = x
    y = torch.empty(len(x), matrix.columns)
    compiled.outrider_product(byref(model), byref(Product(addressof(w), given.data_ptr(), y.data_ptr(), len(x))))
    return y[:, :COLUMNS]


def inputs_of(rows: int, depth: int) -> Tensor:
    """Ordinary ones, outliers in some blocks of some rows, a row of zeros."""
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    x[::3, 5] *= 200
    x[1::4, depth - 2] *= 1000
    x[rows // 2 :: 7] = 0
    return x


@dataclass
class Parts:
    """Weights are units * steps * codes + low_units * lows. Codes [columns, inputs], the others by parts of it."""

    size: int
    codes: Array
    units: Array
    steps: Array
    low_units: Array
    lows: Array

    def wide(self) -> Any:
        scale, low = self.units * self.steps, self.low_units * self.lows
        return self.codes * np.repeat(scale, self.size, 1) + np.repeat(low, self.size, 1)


def halves(raw: Array) -> Array:
    return raw.copy().view(np.float16).astype(np.float32)


def parts_of(kind: str, raw: Array) -> Parts:
    """What the bytes of a file mean, from the description of its formats."""
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    block = raw.reshape(len(raw), -1, size).astype(np.int32)
    bytes_ = raw.reshape(len(raw), -1, size)

    def flat(each: Array) -> Array:
        return each.reshape(len(raw), -1)

    def nibbles(at: int, run: int) -> Array:
        """4 bits of each: the lower of `run` bytes, then the upper."""
        runs = block[:, :, at : at + inputs // 2].reshape(*block.shape[:2], -1, 1, run)
        return np.concatenate([runs & 15, runs >> 4], 3).reshape(*block.shape[:2], inputs)

    if kind == "Q8_0":
        codes = bytes_[:, :, 2:].view(np.int8).astype(np.int32)
        scale = flat(halves(bytes_[:, :, :2]))
        return Parts(32, flat(codes), np.ones_like(scale), scale, scale * 0, scale * 0)
    if kind == "Q6_K":
        low = np.stack([block[:, :, h : h + 64] >> shift & 15 for h in (0, 64) for shift in (0, 4)], 2)
        high = np.stack([block[:, :, h : h + 32] >> shift & 3 for h in (128, 160) for shift in (0, 2, 4, 6)], 2)
        codes = low.reshape(*block.shape[:2], 256) + 16 * high.reshape(*block.shape[:2], 256) - 32
        steps = flat(bytes_[:, :, 192:208].view(np.int8).astype(np.float32))
        units = np.repeat(flat(halves(bytes_[:, :, 208:])), 16, 1)
        return Parts(16, flat(codes), units, steps, steps * 0, steps * 0)
    if kind.endswith("_K"):
        codes = nibbles(48 if kind == "Q5_K" else 16, 32)
        if kind == "Q5_K":
            codes = codes + 16 * np.stack([block[:, :, 16:48] >> bit & 1 for bit in range(8)], 2).reshape(codes.shape)
        s = block[:, :, 4:16]
        steps = np.concatenate([s[:, :, :4] & 63, (s[:, :, 8:] & 15) | (s[:, :, :4] >> 6) << 4], 2)
        lows = np.concatenate([s[:, :, 4:8] & 63, s[:, :, 8:] >> 4 | (s[:, :, 4:8] >> 6) << 4], 2)
        units, low_units = (np.repeat(flat(halves(bytes_[:, :, at : at + 2])), 8, 1) for at in (0, 2))
        return Parts(32, flat(codes), units, flat(steps).astype(np.float32), -low_units, flat(lows).astype(np.float32))
    least = kind.endswith("_1")
    at = 4 if least else 2
    codes = nibbles(at + 4 if kind.startswith("Q5") else at, 16)
    if kind.startswith("Q5"):
        bits = np.unpackbits(bytes_[:, :, at : at + 4], axis=2, bitorder="little")
        codes = codes + 16 * bits.astype(np.int32)
    steps = flat(halves(bytes_[:, :, :2]))
    lows = flat(halves(bytes_[:, :, 2:4])) if least else steps * 0
    middle = 0 if least else 16 if kind.startswith("Q5") else 8
    return Parts(32, flat(codes - middle), np.ones_like(steps), steps, np.ones_like(steps), lows)


@cache  # to find the library takes a process
def fma() -> Any:
    """Of C: a * b + c, rounded once."""
    compute = ctypes.CDLL(find_library("m")).fmaf
    compute.argtypes, compute.restype = [ctypes.c_float] * 3, ctypes.c_float
    return np.vectorize(compute, otypes=[np.float32])


def fused(a: Array, b: Array, c: Array) -> Any:
    """a * b + c of fp32 numbers, rounded once."""
    return fma()(a, b, c)


def defined(w: Parts, x: Tensor) -> Tensor:
    """What stored.h says: [rows, columns]."""
    coarse, fine, coarse_scales, fine_scales = (each.numpy() for each in lines(x))
    total = np.zeros((len(x), len(w.codes)), np.float32)
    for b in range(coarse.shape[1]):
        for line, scales in ((coarse, coarse_scales), (fine, fine_scales)):
            products, least = np.zeros_like(total), np.zeros_like(total)
            first = b * BLOCK // w.size
            for p in range(first, min(first + BLOCK // w.size, w.steps.shape[1])):
                values = line[:, b, (p - first) * w.size :][:, : w.size].astype(np.int64)
                sums = values @ w.codes[:, p * w.size :][:, : w.size].T
                products = fused(sums, w.steps[:, p], products)
                least = fused(values.sum(1)[:, None], w.lows[:, p], least)
            value = fused(least, w.low_units[:, first], w.units[:, first] * products)
            total = fused(value, scales[:, b, None], total)
    return torch.from_numpy(total)


@pytest.mark.parametrize("kind", QUANTISED)
def test_products_are_what_they_are_defined_as(kind: str) -> None:
    raw = encoded(kind, COLUMNS, width_of(kind), 0.05)
    parts = parts_of(kind, raw)
    np.testing.assert_array_equal(parts.wide(), dequantize(raw, GGMLQuantizationType[kind]))
    matrix = packed(kind, raw)
    for rows in (1, 2, 3, 4, 9):
        x = inputs_of(rows, width_of(kind))
        expected = defined(parts, x)
        for kernels in kernels_here():
            assert torch.equal(product(matrix, x, kernels), expected), kernels


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("kind", KINDS[1:])
def test_rows_are_each_their_own(kernels: str, kind: str) -> None:
    matrix = packed(kind, encoded(kind, COLUMNS, width_of(kind), 0.05))
    x = inputs_of(40, width_of(kind))
    alone = torch.cat([product(matrix, row[None], kernels, threads=1) for row in x])
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 17, 40):
        assert torch.equal(product(matrix, x[:rows], kernels, threads=3), alone[:rows])


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_0"])
def test_what_is_no_number_is_told(kernels: str, kind: str) -> None:
    """A row with one has nothing but NaN; others are as before."""
    matrix = packed(kind, encoded(kind, COLUMNS, width_of(kind), 0.05))
    x = inputs_of(4, width_of(kind))
    before = product(matrix, x, kernels)
    x[1, 100] = float("nan")
    after = product(matrix, x, kernels)
    assert bool(after[1].isnan().all())
    others = torch.arange(4) != 1
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("kind", QUANTISED)
def test_blocks_are_widened_to_the_bit_whatever_their_bytes(kind: str) -> None:
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = np.random.default_rng(7).integers(0, 256, 500 * size, dtype=np.uint8)
    found = np.zeros(500 * inputs, np.float32)
    assert widened(raw, kind, found)
    with np.errstate(invalid="ignore"):
        expected = dequantize(raw[None], GGMLQuantizationType[kind])[0]
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~numbers)
    np.testing.assert_array_equal(found.view(np.int32)[numbers], expected.view(np.int32)[numbers])


@pytest.mark.parametrize(("size", "count"), [(2 * 144, 256), (144, 512), (145, 256), (0, 256)])
def test_blocks_that_do_not_fill_their_room_are_not_widened(size: int, count: int) -> None:
    out = np.full(count, 7.0, np.float32)
    assert not widened(np.zeros(size, np.uint8), "Q4_K", out)
    assert (out == 7).all()
    assert not widened(np.zeros(0, np.uint8), "IQ4_XS", out[:0])
