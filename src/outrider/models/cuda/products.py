"""Matrix products of a pass: which kernel takes how many rows, and what it leaves in the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.models.architecture import Architecture
from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels import eighth_hopper, parts_hopper, stream_hopper
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, BLOCK_N, GATED, STORE, linear_kernel
from outrider.models.cuda.kernels.wide import wide_kernel
from outrider.models.cuda.kernels.wide_hopper import REGISTERS, STEP, wide_hopper_kernel
from outrider.models.cuda.launches import dependent, swizzled
from outrider.models.cuda.tiling import (
    FEW_ROWS,
    Cut,
    EighthTiling,
    HopperTiling,
    PartsTiling,
    Product,
    StreamTiling,
    Tiling,
    WideTiling,
    eighth_tiling,
    hopper_tiling,
    parts_tiling,
    stream_tiling,
    tiling,
    wide_tiling,
)


class Matrix(NamedTuple):
    """[out, in] as it is, or of 8 bits (e4m3 or int8) with a scale per output, in words (`kernels/eighth.py`)."""

    values: Tensor
    scales: Tensor | None = None

    @property
    def numbers(self) -> Tensor:
        """As kernels take them."""
        return self.values.view(torch.int32) if self.words else self.values

    @property
    def words(self) -> bool:
        return self.scales is not None


class Products:
    """`residual` [max_rows, hidden] is the stream of a pass, `squares` [max_rows, tiles] the sums of its squares by
    tiles of columns: who adds to the one writes the other, who divides by its rms reads it."""

    def __init__(
        self,
        architecture: Architecture,
        gpu: GPU,
        dtype: torch.dtype,
        device: torch.device,
        max_rows: int,
        narrow: int,
        splits: Sequence[tuple[int, int]],
    ) -> None:
        """`narrow`: rows of a pass of any kind. `splits`: of each matrix, the outputs and the parts of its depth."""
        self.tiles = -(-architecture.hidden // BLOCK_N)
        self.residual = torch.zeros(max_rows, architecture.hidden, dtype=dtype, device=device)
        self.squares = torch.zeros(max_rows, self.tiles, dtype=torch.float32, device=device)
        self.widens = gpu.widens(dtype)
        self._architecture = architecture
        self.gpu = gpu
        self.chosen: dict[tuple[Product, int], Tiling] = {}
        """What was found to be faster than usual on this GPU, by product and rows of a tile."""
        self._launch = dependent(gpu)
        waiting = gpu.multiprocessors * 128 * 256 if self.widens and gpu.multiplies_apart else 0
        self._waiting = torch.zeros(waiting, dtype=torch.float32, device=device)
        row_tiles = -(-narrow // 64)
        parts = max(-(-n // BLOCK_N) * s for n, s in splits) * row_tiles * BLOCK_N * 64
        self._partial = torch.zeros(parts, dtype=torch.float32, device=device)
        self._counter = torch.zeros(
            max(-(-n // BLOCK_N) for n, _ in splits) * row_tiles, dtype=torch.int32, device=device
        )

    def linear(
        self,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        rows: int,
        y: Tensor,
        *,
        normed: bool = False,
        gated: bool = False,
        gain: Tensor | None = None,
        index: Tensor | None = None,
        multiplier: float = 1.0,
        live: Tensor | None = None,
    ) -> None:
        """y = multiplier * x · weightᵀ. `normed`: x is to be divided by its source's rms. `gain`: add to the residual
        instead, and let y be that times the gain. `live`: how many of the rows are wanted, known on the device: the
        others may be left as they are."""
        columns, depth = weight.values.shape
        columns = columns // 2 if gated else columns
        product = Product(columns, depth, gated, weight.values.element_size())
        ends = (
            y,
            None if gain is None else self.residual,
            gain,
            None if gain is None else self.squares,
        )
        squares = self.squares if normed else None
        common = {
            "N": columns,
            "K": depth,
            "EPILOGUE": GATED if gated else STORE if gain is None else ADD,
            "GELU": self._architecture.activation != "silu",
            "TILES": self.tiles,
            "LEVELS": (self.tiles - 1).bit_length(),
            "SPLIT": product.split,
            "INTEGERS": weight.values.dtype == torch.int8,
            "PACKED": not self.gpu.interpreted,
            "MULTIPLIER": multiplier,
        }
        match cut := self.cut(product, rows, gathered=index is not None, counted=live is not None):
            case Tiling():
                self._narrow(cut, x, weight, bias, index, squares, ends, rows, common)
            case WideTiling():
                self._wide(cut, x, weight, bias, squares, ends, rows, common)
            case HopperTiling():
                self._apart(cut, x, weight.values, bias, squares, ends, rows, live, common)
            case StreamTiling():
                self._stream(cut, x, weight.values, bias, squares, ends, rows, common)
            case EighthTiling():
                self._eighth(cut, x, weight, bias, squares, ends, rows, common)
            case PartsTiling():
                self._parts(cut, x, weight.values, bias, squares, ends, rows, common)

    def cut(self, product: Product, rows: int, *, gathered: bool = False, counted: bool = False) -> Cut:
        """`gathered`: rows of x do not come one after the other. `counted`: only the device knows how many."""
        columns, depth, gated, size = product
        if not gathered and self.widens:
            of = product, rows, self.gpu
            if not counted and (cut := stream_tiling(*of) or parts_tiling(*of) or eighth_tiling(*of)):
                return cut
            apart = None
            if size > 1:
                apart = hopper_tiling(columns, depth, rows, self.gpu, gated=gated, split=product.split)
            if apart is not None:
                return apart
            if rows > FEW_ROWS:
                return wide_tiling(depth, self.gpu.shared, gated=gated, split=product.split, size=size)
        usual = tiling(columns, depth, rows, self.gpu, gated=gated, split=product.split, size=size)
        chosen = self.chosen.get((product, usual.rows))
        return usual if chosen is None else chosen

    def _narrow(
        self,
        cut: Tiling,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        index: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for few rows."""
        linear_kernel[(-(-rows // cut.rows), -(-common["N"] // cut.block_n), cut.split)](
            x,
            weight.numbers,
            weight.scales,
            bias,
            index,
            squares,
            *ends,
            self._partial,
            self._counter,
            rows,
            self._architecture.norm_eps,
            M=cut.rows,
            BLOCK_N=cut.block_n,
            BLOCK_K=cut.block_k,
            UNROLLED=cut.unrolled,
            PREFETCH=cut.prefetch,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **common,
            **self._launch,
        )

    def _wide(
        self,
        cut: WideTiling,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for many rows of x as they come."""
        copied, parts = self.gpu.copies, 4 if weight.words else 1
        sources = (x, weight.numbers)
        if copied:
            sources = (
                TensorDescriptor.from_tensor(x, [cut.rows, cut.block_k // parts]),
                TensorDescriptor.from_tensor(weight.numbers, [cut.block_n, cut.block_k // parts]),
            )
        wide_kernel[(-(-rows // cut.rows) * -(-common["N"] // cut.block_n),)](
            *sources,
            weight.scales,
            bias,
            squares,
            *ends,
            rows,
            self._architecture.norm_eps,
            M=cut.rows,
            BLOCK_N=cut.block_n,
            BLOCK_K=cut.block_k,
            PAIRED=cut.paired,
            GROUP=cut.group,
            COPIED=copied,
            PARTS=parts,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **common,
            **UNFUSED,
        )

    def _apart(
        self,
        cut: HopperTiling,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        live: Tensor | None,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for more rows than few of x as they come."""
        tiles = -(-rows // cut.rows) * -(-common["N"] // cut.block_n)
        wide_hopper_kernel[(min(self.gpu.multiprocessors, tiles),)](
            swizzled(x, cut.rows, STEP),
            swizzled(weight, cut.block_n, STEP),
            bias,
            squares,
            *ends,
            self._waiting if common["SPLIT"] > 1 else None,
            live,
            rows,
            self._architecture.norm_eps,
            **_by_roles(common),
            M=cut.rows,
            BLOCK_N=cut.block_n,
            STAGES=cut.stages,
            GROUP=cut.group,
            maxnreg=REGISTERS,
        )

    def _stream(
        self,
        cut: StreamTiling,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for few rows of x as they come."""
        units = -(-common["N"] // (cut.groups * BLOCK_N)) * common["SPLIT"]
        stream_hopper.stream_hopper_kernel[(min(self.gpu.multiprocessors, units),)](
            swizzled(x, cut.rows, STEP),
            swizzled(weight, BLOCK_N, STEP),
            bias,
            squares,
            *ends,
            *self._parts_of(common),
            rows,
            self._architecture.norm_eps,
            **_by_roles(common),
            M=cut.rows,
            GROUPS=cut.groups,
            STAGES=cut.stages,
            maxnreg=stream_hopper.REGISTERS[cut.groups],
        )

    def _eighth(
        self,
        cut: EighthTiling,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for few rows of x as they come and weights of 8 bits."""
        units = -(-common["N"] // BLOCK_N) * common["SPLIT"]
        eighth_hopper.eighth_hopper_kernel[(min(self.gpu.multiprocessors, units),)](
            swizzled(x, cut.rows, eighth_hopper.GROUP // 4),
            swizzled(weight.numbers, BLOCK_N, eighth_hopper.GROUP // 4),
            weight.scales,
            bias,
            squares,
            *ends,
            *self._parts_of(common),
            rows,
            self._architecture.norm_eps,
            **_by_roles(common, eighth_hopper.GROUP),
            M=cut.rows,
            STAGES=cut.stages,
            INTEGERS=common["INTEGERS"],
            maxnreg=eighth_hopper.REGISTERS,
        )

    def _parts(
        self,
        cut: PartsTiling,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        squares: Tensor | None,
        ends: tuple[Tensor | None, ...],
        rows: int,
        common: dict[str, Any],
    ) -> None:
        """As `linear`, for more rows than few of x as they come."""
        row_tiles = -(-rows // (64 * cut.groups))
        units = row_tiles * -(-common["N"] // cut.block_n) * common["SPLIT"]
        programs = self.gpu.multiprocessors // row_tiles * row_tiles
        parts_hopper.parts_hopper_kernel[(min(programs, units),)](
            swizzled(x, parts_hopper.BOX, STEP),
            swizzled(weight, cut.block_n, STEP),
            bias,
            squares,
            *ends,
            *self._parts_of(common),
            rows,
            self._architecture.norm_eps,
            **_by_roles(common),
            GROUPS=cut.groups,
            BOX=parts_hopper.BOX,
            BLOCK_N=cut.block_n,
            STAGES=cut.stages,
            maxnreg=parts_hopper.REGISTERS[cut.groups],
        )

    def _parts_of(self, common: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """Where parts of the depth meet, if there are several."""
        return (self._partial, self._counter) if common["SPLIT"] > 1 else (None, None)


def _by_roles(common: dict[str, Any], step: int = STEP) -> dict[str, Any]:
    """What all kernels written by the roles of warps are launched with."""
    sizes = {name: common[name] for name in ("N", "K", "GELU", "TILES", "LEVELS", "SPLIT", "MULTIPLIER")}
    launch = {"STEP": step, "num_warps": 4, "launch_pdl": True}
    return {**sizes, "EPILOGUE": common["EPILOGUE"].value, **launch, **UNFUSED}
