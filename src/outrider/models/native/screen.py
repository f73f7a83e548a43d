"""A vocabulary matrix in 4 bits, to find the likeliest tokens by: see gemm_screen.h."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.precision import dequantised

_HALF = (6, 18, 30, 43, 57, 74, 95, 127)
LEVELS = (*(-level for level in reversed(_HALF)), *_HALF)
"""What a code stands for: the sixteen levels that suit a normal distribution best (Lloyd and Max), as int8."""
_DEVIATION = 127 / 2.733
"""The standard deviation they suit."""
_LEAST = -256
"""Which level is nearest changes at whole halves of a unit only, so a number's halves, rounded up, tell its code. Below
so many, and above, it stays the same."""
_EDGES = (torch.tensor(LEVELS[1:]) + torch.tensor(LEVELS[:-1])).float()
_CODES = torch.bucketize(torch.arange(_LEAST, -_LEAST + 1).float(), _EDGES).to(torch.uint8)
_LEVELS = torch.tensor(LEVELS, dtype=torch.float32)[_CODES.int()]
_ROWS = 1024
"""Rows coded at once, so that no wide copy of the matrix is made."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A matrix [out, in] ≈ mean + scales[:, None] * LEVELS[codes] * stretch."""

    codes: Tensor
    """uint8 [out, in], below 16."""
    scales: Tensor
    """[out]"""
    mean: Tensor
    """[in]"""
    stretch: Tensor
    """[in]"""

    def wide(self) -> Tensor:
        levels = torch.tensor(LEVELS, dtype=torch.float32)
        return self.mean + self.scales[:, None] * levels[self.codes.int()] * self.stretch


def coded(values: Tensor, scales: Tensor) -> Coded:
    """What int8 `values` and their `scales` stand for, in 4 bits. Inputs are brought to one spread about their mean, so
    that one scale suits all those of a row: a few are many times as large as the others, and in all rows alike."""
    parts = list(zip(torch.split(values, _ROWS), torch.split(scales, _ROWS), strict=True))
    total, squares = (torch.zeros(values.shape[1]) for _ in range(2))
    for part, scale in parts:
        wide = dequantised(part, scale)
        total += wide.sum(dim=0)
        squares += wide.square().sum(dim=0)
    mean = total / len(values)
    stretch = (squares / len(values) - mean.square()).clamp_min(0).sqrt()
    stretch = torch.where(stretch > 1e-6 * stretch.max(), stretch, 1.0)  # an input that is the same in all rows
    codes = torch.empty(values.shape, dtype=torch.uint8)
    found = torch.empty(len(values))
    for (part, scale), into, fitted in zip(parts, torch.split(codes, _ROWS), torch.split(found, _ROWS), strict=True):
        even = (dequantised(part, scale) - mean) / stretch  # [_ROWS, in]
        unit = even.square().mean(dim=1).sqrt().div_(_DEVIATION)
        unit.masked_fill_(unit == 0, 1.0)  # a row that is the mean
        halves = (even / (unit / 2)[:, None]).ceil_().clamp_(_LEAST, -_LEAST)
        halves = halves.nan_to_num_(-_LEAST).int().sub_(_LEAST).flatten()  # what is no number has to have a place, too
        torch.index_select(_CODES, 0, halves, out=into.view(-1))
        level = torch.index_select(_LEVELS, 0, halves).view(even.shape)
        torch.div((even * level).sum(dim=1), level.square().sum(dim=1), out=fitted)  # the scale that suits these codes
    return Coded(codes, found, mean, stretch)
