"""Matrix products by themselves, on every instruction set this CPU has: int8 to the bit what it is defined as, and no
product's rows dependent on one another."""

from __future__ import annotations

from ctypes import addressof, byref
from fractions import Fraction

import pytest
import torch
from integers import lines
from torch import Tensor

from outrider.errors import InvalidRequest
from outrider.models import precision
from outrider.models.native.formats import quantised
from outrider.models.native.library import (
    BF16_PRODUCTS,
    FORCED,
    KERNELS,
    Matrix,
    Model,
    Product,
    Shape,
    chosen_kernels,
    kernels_here,
    library,
)
from outrider.models.native.packing import PackedMatrix, Packer
from outrider.models.precision import BLOCK, blocks, dequantised, quantise

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 25, 40, 128)


def product(matrix: PackedMatrix, x: Tensor, kernels: str, threads: int = 2) -> Tensor:
    """x [rows, depth] · W^T, fp32 [rows, columns] with the padding."""
    compiled = library()
    assert compiled is not None
    assert matrix.data is not None
    integers = matrix.data.dtype == torch.int8
    kind = torch.float32 if integers or matrix.data.dtype == torch.float32 else torch.bfloat16
    scratch = torch.zeros(threads * 128 * (2 * matrix.depth + 32 * blocks(matrix.depth) + 64), dtype=torch.int8)
    model = Model(
        shape=Shape(bf16=kind == torch.bfloat16, integers=integers, threads=threads, kernels=KERNELS.index(kernels)),
        scratch=scratch.data_ptr(),
        scratch_size=len(scratch) // threads // 64 * 64,
    )
    w = Matrix(
        data=matrix.data.data_ptr(),
        scales=None if matrix.scales is None else matrix.scales.data_ptr(),
        columns=matrix.columns,
        depth=matrix.depth,
        inputs=matrix.inputs,
    )
    given = torch.zeros(max(len(x), 32), matrix.depth, dtype=kind if kernels in BF16_PRODUCTS else torch.float32)
    given[: len(x), : matrix.inputs] = x
    y = torch.empty(len(x), matrix.columns)
    step = Product(addressof(w), given.data_ptr(), y.data_ptr(), len(x))
    compiled.outrider_product(byref(model), byref(step))
    return y


def to_fp32(x: Fraction) -> float:
    """Rounded once, ties to even."""
    if not x:
        return 0.0
    exponent = max(-149, x.numerator.bit_length() - x.denominator.bit_length() - 25)  # none below is large enough
    while abs(x) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return float(Fraction(round(x / Fraction(2) ** exponent)) * Fraction(2) ** exponent)


def defined(values: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    """What gemm_int8.h says, number by number."""
    columns = len(values)
    parts = torch.nn.functional.pad(values, (0, -values.shape[1] % BLOCK)).view(columns, -1, BLOCK).long()
    coarse, fine, coarse_scales, fine_scales = lines(x)
    found = torch.empty(len(x), columns)
    for r in range(len(x)):
        for c in range(columns):
            total = 0.0
            for b in range(parts.shape[1]):
                for line, units in ((coarse, coarse_scales), (fine, fine_scales)):
                    scale = float(scales[c, b] * units[r, b])
                    whole = int(parts[c, b] @ line[r, b].long())
                    total = to_fp32(whole * Fraction(scale) + Fraction(total))
            found[r, c] = total
    return found


def int8_matrix(columns: int, inputs: int, seed: int = 0) -> tuple[PackedMatrix, Tensor, Tensor]:
    weight = torch.randn(columns, inputs, generator=torch.Generator().manual_seed(seed))
    weight[columns // 2] = 0
    weight[:, : inputs // 3] *= 5
    values, scales = torch.empty(columns, inputs, dtype=torch.int8), torch.empty(columns, blocks(inputs))
    quantise(weight, values, scales)
    return Packer().matrix(values, None, scales), values, scales


def inputs_of(rows: int, depth: int) -> Tensor:
    """Ordinary ones, outliers in some blocks of some rows, a row of zeros."""
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    x[::3, 5] *= 200
    x[1::4, depth - 2] *= 1000
    x[rows // 2 :: 7] = 0
    return x


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("inputs", [48, 128, 320])
def test_int8_is_what_it_is_defined_as(kernels: str, inputs: int) -> None:
    matrix, values, scales = int8_matrix(20, inputs)
    x = inputs_of(9, inputs)
    assert torch.equal(product(matrix, x, kernels)[:, :20], defined(values, scales, x))


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("rows", ROWS)
def test_int8_has_the_same_bits_on_every_instruction_set(kernels: str, rows: int) -> None:
    """In any company and with any number of threads: against plain code, row by row."""
    matrix, _, _ = int8_matrix(70, 704)
    x = inputs_of(rows, 704)
    alone = torch.cat([product(matrix, row[None], "base", threads=1) for row in x])
    for threads in (1, 3):
        assert torch.equal(product(matrix, x, kernels, threads), alone)


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("rows", [1, 5, 7, 12, 13, 16, 30])
def test_outliers_in_every_row(kernels: str, rows: int) -> None:
    """A block then has twice as many lines as rows, more than are multiplied at once."""
    matrix, _, _ = int8_matrix(70, 704)
    x = inputs_of(rows, 704)
    x[:, [3, 300, 700]] += 1000
    alone = torch.cat([product(matrix, row[None], "base", threads=1) for row in x])
    for threads in (1, 2, 4):
        assert torch.equal(product(matrix, x, kernels, threads), alone)


@pytest.mark.parametrize("kernels", kernels_here())
def test_int8_products_are_near_those_of_the_numbers(kernels: str) -> None:
    """A rounded input is off by 1/254 of its block's largest at most; of a block with outliers, by 1/254 of that."""
    matrix, values, scales = int8_matrix(64, 576)
    x = inputs_of(24, 576)
    exact = x.double() @ dequantised(values, scales).double().T
    found = product(matrix, x, kernels)[:, :64].double()
    busy = exact.abs().amax(1) > 0
    error = (found - exact).norm(dim=1)[busy] / exact.norm(dim=1)[busy]
    assert float(error.max()) < 0.02


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_told(kernels: str, bad: float) -> None:
    """A row with one has nothing but NaN; others are as before."""
    matrix, _, _ = int8_matrix(40, 192)
    x = inputs_of(6, 192)
    before = product(matrix, x, kernels)
    x[2, 100] = bad
    after = product(matrix, x, kernels)
    assert bool(after[2, :40].isnan().all())
    others = torch.arange(6) != 2
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("kernels", kernels_here())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_each_their_own(kernels: str, dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(70, 352, generator=generator).to(dtype)
    matrix, x = Packer().matrix(weight, None, None), torch.randn(rows, 352, generator=generator).to(dtype)
    together = product(matrix, x, kernels)
    assert torch.equal(together, torch.cat([product(matrix, row[None], kernels, threads=1) for row in x]))
    torch.testing.assert_close(together[:, :70], x.float() @ weight.float().T, atol=2e-4, rtol=0)


def test_an_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)
    assert chosen_kernels() == kernels_here()[-1]
    monkeypatch.setenv(FORCED, "base")
    assert chosen_kernels() == "base"
    assert chosen_kernels(kernels_here()[-1]) == kernels_here()[-1], "what a caller asks for comes first"
    for unknown in ("sse5", "amx" if "amx" not in kernels_here() else "dotprod"):
        monkeypatch.setenv(FORCED, unknown)
        with pytest.raises(InvalidRequest, match=f"OUTRIDER_KERNELS: this CPU has no '?{unknown}.*it has base"):
            chosen_kernels()


@pytest.mark.parametrize("inputs", [1, 64, 128, 130, 576])
def test_weights_are_quantised_alike_with_and_without_compiled_code(
    inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(300, inputs, generator=torch.Generator().manual_seed(inputs))
    weight[0], weight[1], weight[2] = 0.0, -0.0, 1e-42
    weight[3:40] *= torch.logspace(-38, 38, 37)[:, None]
    weight[40:80] = (weight[40:80] * 50).round() / 2  # halves of a scale among them
    weight[40:80, 0] = 127.0
    compiled, plain = ((torch.empty(300, inputs, dtype=torch.int8), torch.empty(300, blocks(inputs))) for _ in "ab")
    assert quantised(weight, *compiled, BLOCK)
    monkeypatch.setattr(precision, "quantised", lambda *_: False)
    quantise(weight, *plain)
    assert torch.equal(compiled[0], plain[0])
    assert torch.equal(compiled[1].view(torch.int32), plain[1].view(torch.int32))
