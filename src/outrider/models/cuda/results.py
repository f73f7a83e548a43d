"""What a step on the device gave, on its way to the host."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from outrider.core.step import SlotOutcome, StepOutcome
from outrider.models.cuda.lanes import MAX_LENGTH


class Result:
    """What one step gave, and how long its halves took."""

    def __init__(self, out: Tensor, device: torch.device) -> None:
        self._out = out
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(out.shape, dtype=out.dtype, pin_memory=on_gpu)
        self._marks = [torch.Event(device, enable_timing=True) for _ in range(3)] if on_gpu else []
        self._read = torch.Event(device) if on_gpu else None
        self._lanes = self._length = 0

    def start(self) -> None:
        self._mark(0)

    def drafted(self) -> None:
        self._mark(1)

    def finish(self, lanes: int, length: int) -> None:
        self._mark(2)
        self._host[:lanes].copy_(self._out[:lanes], non_blocking=True)
        if self._read is not None:
            self._read.record()
        self._lanes, self._length = lanes, length

    def read(self) -> StepOutcome:
        if self._read is not None:
            self._read.synchronize()
        seconds = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)] or [0.0, 0.0]
        n, rows = self._length, self._host[: self._lanes]
        if not n:
            return StepOutcome([SlotOutcome(0, (token,), ()) for token in rows[:, 1].tolist()], *seconds)
        gained, drafted = rows[:, : n + 2].tolist(), rows[:, 2 + MAX_LENGTH : 2 + MAX_LENGTH + n].tolist()
        offered = rows[:, -1].tolist()
        outcomes = [
            SlotOutcome(accepted, tuple(tokens[: accepted + 1]), _drafts(drafts), bool(taken))
            for (accepted, *tokens), drafts, taken in zip(gained, drafted, offered, strict=True)
        ]
        return StepOutcome(outcomes, *seconds)

    def _mark(self, which: int) -> None:
        if self._marks:
            self._marks[which].record()


def _drafts(tokens: list[int]) -> tuple[int, ...]:
    """Up to the first that is none."""
    return tuple(tokens[: tokens.index(-1)] if -1 in tokens else tokens)
