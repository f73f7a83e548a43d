"""Weights in the layout the matrix kernel streams: see gemm.h, gemm_int8.h and gemm_screen.h."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.models.memory import Arena
from outrider.models.native.screen import LEVELS, coded
from outrider.models.weights import LayerWeights

PANEL = 16
PAIR = 32
DEPTH = 32
INTEGER_DEPTH = 64


def packed(weight: Tensor, arena: Arena) -> Tensor:
    """[columns, depth] in the order the kernel reads: fp32 [pair, depth, 32], bf16 [pair, depth/32, panel, 16, 16] with
    two neighbouring inputs in one int32, int8 [pair, depth/32, panel, 16, 2, 16]."""
    missing = (0, -weight.shape[1] % DEPTH, 0, -weight.shape[0] % PAIR)
    if any(missing):  # padding copies even where there is nothing to pad
        weight = pad(weight, missing)
    if weight.dtype == torch.float32:
        order = weight.view(-1, PAIR, weight.shape[1]).transpose(1, 2)
    elif weight.dtype == torch.int8:
        lanes = weight.view(-1, PAIR // PANEL, PANEL, weight.shape[1] // DEPTH, DEPTH // 2, 2)
        order = lanes.permute(0, 3, 1, 4, 5, 2)
    else:
        lanes = weight.view(torch.int32).view(-1, PAIR // PANEL, PANEL, weight.shape[1] // DEPTH, DEPTH // 2)
        order = lanes.permute(0, 3, 1, 4, 2)
    return arena.zeros(tuple(order.shape), order.dtype).copy_(order)


def packed_for_integers(weight: Tensor, arena: Arena) -> Tensor:
    """int8 [columns, depth] as [pair, depth/64, panel, 16, 16, 4]: four neighbouring inputs of a column together, in
    bytes weight + 128."""
    order = _in_fours(weight)
    data = arena.zeros(tuple(order.shape), torch.uint8)
    return data.copy_(order.contiguous().view(torch.uint8)).bitwise_xor_(128)


def packed_codes(codes: Tensor, arena: Arena) -> Tensor:
    """uint8 [columns, depth] below 16 as [pair, depth/64, panel, 8, 16, 4]: of the sixteen fours of inputs of
    `packed_for_integers`, two to a byte."""
    order = _in_fours(codes)
    low, high = order[:, :, :, 0::2], order[:, :, :, 1::2]
    return arena.zeros(tuple(low.shape), torch.uint8).copy_(high).mul_(16).add_(low)


def _in_fours(weight: Tensor) -> Tensor:
    weight = _filled(weight)
    lanes = weight.view(-1, PAIR // PANEL, PANEL, weight.shape[1] // INTEGER_DEPTH, INTEGER_DEPTH // 4, 4)
    return lanes.permute(0, 3, 1, 4, 2, 5)


def _filled(weight: Tensor) -> Tensor:
    """With zeros, to whole pairs and steps over depth."""
    return pad(weight, (0, -weight.shape[1] % INTEGER_DEPTH, 0, -weight.shape[0] % PAIR))


def interleaved(gate_up: Tensor) -> Tensor:
    """[gate; up] rows as alternating panels, so that a pair holds 16 gate columns and the matching 16 up columns."""
    halves = [pad(half, (0, 0) * (half.dim() - 1) + (0, -half.shape[0] % PANEL)) for half in gate_up.chunk(2)]
    panels = [half.view(-1, PANEL, *half.shape[1:]) for half in halves]
    return torch.stack(panels, dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A linear map ready for the kernel; `columns` and `depth` count the padding."""

    data: Tensor
    scales: Tensor | None
    """Of int8 columns."""
    bias: Tensor | None
    columns: int
    depth: int
    inputs: int
    """Depth without the padding."""
    fine: bool
    screen: PackedScreen | None = None
    """Then `data` is uint8 [columns, depth], weight + 128."""


@dataclass(frozen=True, slots=True)
class PackedScreen:
    """By their names in the C structure; `columns` without the padding."""

    codes: Tensor
    scales: Tensor
    levels: Tensor
    stretch: Tensor
    mean: Tensor
    columns: int


@dataclass(frozen=True, slots=True)
class PackedLayer:
    qkv: PackedMatrix
    o: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix
    norms: dict[str, Tensor | None]
    """By their names in the C structure."""


class Packer:
    """Packs matrices one behind the other, in the order a pass will read them."""

    def __init__(self, integers: bool = False) -> None:
        """`integers`: matrices are int8, and so will be what they are multiplied with."""
        self._arena = Arena()
        self._pack, self._depth = (packed_for_integers, INTEGER_DEPTH) if integers else (packed, DEPTH)

    def matrix(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, *, fine: bool = True) -> PackedMatrix:
        """`fine`: where integers are multiplied, take inputs as two int8 numbers each, about as good as int16: most
        have outliers. Costs nothing for up to four rows."""
        columns = -(-weight.shape[0] // PAIR) * PAIR
        depth = -(-weight.shape[1] // self._depth) * self._depth
        data = self._pack(weight, self._arena)
        widths = columns, depth, weight.shape[1]
        return PackedMatrix(data, _padded(scales, columns), _padded(bias, columns), *widths, fine)

    def screened(self, weight: Tensor, scales: Tensor) -> PackedMatrix:
        """int8 [columns, depth] of which only the largest results matter. Only to multiply integers."""
        narrow = coded(weight, scales)
        data = _filled(weight)
        columns, depth = data.shape
        screen = PackedScreen(
            codes=packed_codes(narrow.codes, self._arena),
            scales=pad(narrow.scales, (0, columns - len(narrow.scales))),
            levels=torch.tensor(LEVELS, dtype=torch.int8).view(torch.uint8) ^ 128,
            stretch=pad(narrow.stretch, (0, depth - weight.shape[1])),
            mean=pad(narrow.mean, (0, depth - weight.shape[1])),
            columns=weight.shape[0],
        )
        rows = self._arena.zeros((columns, depth), torch.uint8).copy_(data.view(torch.uint8)).bitwise_xor_(128)
        padded = pad(scales.float(), (0, columns - len(scales)))
        return PackedMatrix(rows, padded, None, columns, depth, weight.shape[1], fine=False, screen=screen)

    def layer(self, w: LayerWeights) -> PackedLayer:
        gate_up = (interleaved(part) if part is not None else None for part in (w.gate_up_bias, w.gate_up_scales))
        return PackedLayer(
            qkv=self.matrix(w.qkv, w.qkv_bias, w.qkv_scales),
            o=self.matrix(w.o, w.o_bias, w.o_scales),
            gate_up=self.matrix(interleaved(w.gate_up), *gate_up),
            down=self.matrix(w.down, w.down_bias, w.down_scales),
            norms={
                "attention_norm": w.attention_norm,
                "mlp_norm": w.mlp_norm,
                "q_norm": w.q_norm,
                "k_norm": w.k_norm,
                "attention_out_norm": w.attention_out_norm,
                "mlp_out_norm": w.mlp_out_norm,
            },
        )


def _padded(vector: Tensor | None, size: int) -> Tensor | None:
    return None if vector is None else pad(vector.float(), (0, size - vector.shape[0])).contiguous()
