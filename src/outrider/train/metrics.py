"""Numbers of many steps, added up on the device: looking at each would make the host wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    means: dict[str, float]
    bad: int
    bad_in_a_row: int
    """The longest row that reached into or lies within what was read."""


class Sums:
    """Numbers of bad batches are left out. Their names are the same in every step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._row = torch.zeros((), device=device)
        self._clear()

    def _clear(self) -> None:
        self._names: tuple[str, ...] = ()
        self._totals = torch.zeros((), device=self._device)
        self._count = 0
        self._bad = torch.zeros((), device=self._device)
        self._longest = self._row.clone()

    def add(self, bad: Tensor, numbers: Mapping[str, Tensor]) -> None:
        self._count += 1
        self._names = tuple(numbers)
        self._bad += bad
        self._row = (self._row + 1) * bad
        self._longest = torch.maximum(self._longest, self._row)
        values = torch.stack([value.detach().float() for value in numbers.values()])
        self._totals = self._totals + torch.where(bad, 0.0, values)

    def read(self) -> Seen:
        bad, longest = int(self._bad), int(self._longest)
        good = self._count - bad
        totals = self._totals.tolist()
        means = {name: total / good for name, total in zip(self._names, totals, strict=True)} if good else {}
        self._clear()
        return Seen(means, bad, longest)
