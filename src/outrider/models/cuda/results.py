"""What a step on the device gave, on its way to the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from outrider.core.step import PLAIN, SlotOutcome, StepOutcome, StepShape
from outrider.models.cuda.lanes import MAX_LENGTH
from outrider.models.cuda.reports import Reports


class Result:
    """What one step gave, and how long its halves took."""

    def __init__(self, out: Tensor, reports: Reports, device: torch.device) -> None:
        self._out, self._reports = out, reports
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(out.shape, dtype=out.dtype, pin_memory=on_gpu)
        self._told = torch.zeros(reports.table.shape, dtype=reports.table.dtype, pin_memory=on_gpu)
        self._rows_told = 0
        self._marks = [torch.Event(device, enable_timing=True) for _ in range(3)] if on_gpu else []
        self._read = torch.Event(device) if on_gpu else None
        self._lanes, self._shape = 0, PLAIN

    def start(self) -> None:
        self._mark(0)

    def drafted(self) -> None:
        self._mark(1)

    def finish(self, lanes: int, shape: StepShape, told: bool) -> None:
        """`told`: whether any lane reports."""
        self._mark(2)
        self._host[:lanes].copy_(self._out[:lanes], non_blocking=True)
        self._rows_told = told * lanes * (shape.size + 1)
        if told:
            rows = slice(self._rows_told)
            self._told[rows].copy_(self._reports.table[rows], non_blocking=True)
        if self._read is not None:
            self._read.record()
        self._lanes, self._shape = lanes, shape

    def read(self) -> StepOutcome:
        if self._read is not None:
            self._read.synchronize()
        outcome = self._outcome()
        return self._with_reports(outcome) if self._rows_told else outcome

    def _with_reports(self, outcome: StepOutcome) -> StepOutcome:
        told, count = self._reports.read(self._told[: self._rows_told]), self._shape.size + 1
        lanes = []
        for number, lane in enumerate(outcome.lanes):
            own = told[number * count :][: len(lane.tokens)]
            lanes.append(lane._replace(reports=tuple([each for each in own if each is not None])))
        return replace(outcome, lanes=lanes)

    def _outcome(self) -> StepOutcome:
        seconds = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)] or [0.0, 0.0]
        n, rows = self._shape.size, self._host[: self._lanes]
        if self._shape.nodes:
            return StepOutcome(_trees(rows, self._shape), *seconds)
        if not n:
            plain = [SlotOutcome(0, (token,) if accepted == 0 else (), ()) for accepted, token in rows[:, :2].tolist()]
            return StepOutcome(plain, *seconds)
        gained, drafted = rows[:, : n + 2].tolist(), rows[:, 2 + MAX_LENGTH : 2 + MAX_LENGTH + n].tolist()
        offered = rows[:, -1].tolist()
        outcomes = [
            SlotOutcome(max(accepted, 0), tuple(tokens[: accepted + 1]), _drafts(drafts), bool(taken))
            for (accepted, *tokens), drafts, taken in zip(gained, drafted, offered, strict=True)
        ]
        return StepOutcome(outcomes, *seconds)

    def _mark(self, which: int) -> None:
        if self._marks:
            self._marks[which].record()


def _trees(rows: Tensor, shape: StepShape) -> list[SlotOutcome]:
    """The lanes of a step that drafted trees."""
    gained = rows[:, : shape.verified + 2].tolist()
    drafts, parents, claims = torch.tensor_split(rows[:, 2 + MAX_LENGTH : -1], 3, dim=1)
    lanes = []
    for (accepted, *tokens), drafted, above, claimed in zip(
        gained, drafts.tolist(), parents.tolist(), claims.contiguous().view(torch.float32).tolist(), strict=True
    ):
        nodes = _drafts(drafted[: shape.nodes])
        n = len(nodes)
        found = tuple(above[:n]), tuple(claimed[:n])
        lanes.append(SlotOutcome(accepted, tuple(tokens[: accepted + 1]), nodes, False, (), *found))
    return lanes


def _drafts(tokens: list[int]) -> tuple[int, ...]:
    """Up to the first that is none."""
    return tuple(tokens[: tokens.index(-1)] if -1 in tokens else tokens)
