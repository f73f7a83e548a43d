"""Matrices in few bits, as a head's compact form keeps them on disk. They are widened when read; how a decoder keeps
them is its own affair.

A matrix of vocabulary rows is mostly what all rows have in common, and some of its columns are far wider than others.
Both are taken out first, so that the few levels there are go to what tells rows apart:

    weight[r, c] = centre[c] + spread[c] * scales[r] * (code[r, c] - (levels - 1) / 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider.models.head.weights import SCALES
from outrider.models.memory import lazy_zeros
from outrider.models.native.formats import unpacked

CODES, SPREAD, CENTRE = ".codes", ".spread", ".centre"
"""Suffixes of the tensors that, with `SCALES`, take the place of `.weight`."""
_AT_ONCE = 256
"""Rows that are unpacked together: what they take on the way stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Packed:
    codes: Tensor
    """uint8 [rows, ⌈columns · bits / 8⌉]: a row's codes one after the other, the highest bit of each first."""
    scales: Tensor
    """fp32 [rows]"""
    spread: Tensor
    """fp32 [columns]"""
    centre: Tensor
    """fp32 [columns]"""

    @staticmethod
    def of(codes: Tensor, bits: int, scales: Tensor, spread: Tensor, centre: Tensor) -> Packed:
        """codes [rows, columns], each below 2 ** bits; eight columns or more, so that a row's bytes tell the bits."""
        assert codes.shape[1] >= 8
        places = np.arange(bits - 1, -1, -1, dtype=np.uint8)
        split = codes.to(torch.uint8).numpy()[:, :, None] >> places & 1
        packed = np.packbits(split.reshape(len(codes), -1), axis=1)
        return Packed(torch.from_numpy(packed), scales, spread, centre)

    def weight(self) -> Tensor:
        """fp32 [rows, columns]"""
        columns = len(self.spread)
        bits = self.codes.shape[1] * 8 // columns
        weight = lazy_zeros((len(self.codes), columns), torch.float32, torch.device("cpu"), full=True)
        if unpacked(self.codes, bits, self.scales, self.spread, self.centre, weight):
            return weight
        first = np.arange(columns) * bits
        at, shift = first // 8, (16 - bits - first % 8).astype(np.uint16)  # of each code, within a byte and the next
        for start in range(0, len(weight), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            some = self.codes[part].numpy()
            pairs = some.astype(np.uint16) << 8
            pairs[:, :-1] |= some[:, 1:]
            codes = torch.from_numpy((np.take(pairs, at, axis=1) >> shift & (1 << bits) - 1).astype(np.float32))
            weight[part] = self.centre + self.spread * self.scales[part, None] * (codes - (2**bits - 1) / 2)
        return weight

    def tensors(self, name: str) -> dict[str, Tensor]:
        parts = {CODES: self.codes, SCALES: self.scales, SPREAD: self.spread, CENTRE: self.centre}
        return {name + suffix: tensor for suffix, tensor in parts.items()}


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With every packed matrix whole, as `.weight`. KeyError where a part is missing, ValueError where one does not
    fit."""
    names = [name.removesuffix(CODES) for name in tensors if name.endswith(CODES)]
    parts = {name + suffix for name in names for suffix in (CODES, SCALES, SPREAD, CENTRE)}
    whole = {name: tensor for name, tensor in tensors.items() if name not in parts}
    for name in names:
        codes, scales, spread, centre = (tensors[name + suffix] for suffix in (CODES, SCALES, SPREAD, CENTRE))
        flat = all(part.dim() == 1 for part in (scales, spread, centre))
        if codes.dtype != torch.uint8 or codes.dim() != 2 or not flat or len(spread) < 8:
            raise ValueError(f"{name}{CODES} is no packed matrix")
        if len(scales) != len(codes) or len(spread) != len(centre) or codes.shape[1] > len(spread):
            raise ValueError(f"{name}{CODES} and what belongs to it do not fit")
        whole[f"{name}.weight"] = Packed(codes, scales, spread, centre).weight()
    return whole
