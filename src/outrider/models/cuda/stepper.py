"""Whole steps on the device: draft a chain, verify it, accept, keep; the host only launches and, later, reads.

The state of each lane (one sequence) is on the device: its last two tokens, how much the cache holds, how much was
generated. A step reads and advances that state, so the next one can be launched before the host has seen its tokens.
Rollback is that integer: rows of refused drafts lie beyond it and are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.models.cuda.chains import Chains, HeadChains, ModelChains
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import Graphs, bucket, buckets
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.kernels.steps import accept_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, TARGET_SLOT, Lanes
from outrider.models.cuda.network import HEAD_ROWS
from outrider.types import Lane, LaneOutcome, StepOutcome

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


_MEASURED = 5
"""Steps by which each size is measured."""


class DeviceStepper:
    """A `Stepper` for one target and, unless steps are plain, one draft model or head on the same device."""

    max_length = MAX_LENGTH
    horizon = NOISE_AHEAD

    def __init__(self, target: CudaDecoder, draft: CudaDecoder | CudaHead | None, vocab_size: int) -> None:
        self._target = target.network
        lanes = bucket(target.max_batch)
        device = target.device
        self._board = Lanes(lanes, target.max_batch, draft.max_batch if draft else 0, device)
        self._chosen = torch.zeros(lanes * (MAX_LENGTH + 1), dtype=torch.int32, device=device)
        self._chooser = Chooser(HEAD_ROWS, vocab_size, device)
        self._chains: Chains | None = None
        if isinstance(draft, CudaHead):
            self._chains = HeadChains(draft, self._board, vocab_size)
        elif draft is not None:
            self._chains = ModelChains(draft, self._board, self._chooser)
        self._graphs = Graphs(device)
        self._results = [Result(self._board.out, device) for _ in range(3)]
        self._under_way: list[Result] = []
        self._collected: list[LaneOutcome] = []
        self._seconds: dict[int, dict[int, float]] = {}
        """By bucket of lanes: what steps of each length prepared take."""
        self._lanes = 0
        self._sampled = False

    def limit(self, lanes: int) -> int:
        """The longest chain that fits one pass of the target with its logits."""
        return min(MAX_LENGTH, HEAD_ROWS // bucket(lanes) - 1)

    def seconds(self, lanes: int) -> Mapping[int, float]:
        """What a step of so many lanes takes, by the lengths prepared; nothing before `prepare`."""
        return self._seconds.get(bucket(lanes), {})

    @torch.inference_mode()
    def prepare(self, lengths: Sequence[int]) -> Iterator[None]:
        """Record and measure steps of every number of lanes with chains of these lengths; yields after each. Nothing is
        begun."""
        self._board.load(())
        for count in buckets(self._board.most):
            self._lanes, self._seconds[count] = count, {}
            for length in sorted({min(length, self.limit(count)) for length in lengths}):
                for self._sampled in (True, False):
                    if self._chains is not None:
                        self._chains.prepare(self._graphs, count, length, self._sampled)
                    self._run(count, length)
                    yield
                self._seconds[count][length] = self._measured(length)
        self._lanes = 0

    def _measured(self, length: int) -> float:
        """The median of a few steps; where there is no clock, all take alike."""
        times = []
        for _ in range(_MEASURED):
            self.launch(length)
            outcome = self.collect()
            times.append(outcome.draft_seconds + outcome.target_seconds)
        return median(times) or 1.0

    @torch.inference_mode()
    def begin(self, lanes: Sequence[Lane]) -> None:
        """Take over `lanes`; nothing may be under way."""
        assert not self._under_way
        self._board.load(lanes)
        if self._chains is not None:
            self._chains.begin(lanes)
        self._collected = []
        self._lanes = len(lanes)
        self._sampled = any(lane.temperature for lane in lanes)

    @torch.inference_mode()
    def launch(self, length: int) -> None:
        """Start a step with chains of `length` drafts (0: plain); does not wait for it."""
        count = bucket(self._lanes)
        result = self._results.pop(0)
        result.start()
        if self._chains is not None:
            self._chains.draft(self._graphs, count, length, self._sampled)
        result.drafted()
        self._run(count, length)
        result.finish(length)
        self._under_way.append(result)

    def collect(self) -> StepOutcome:
        """Wait for the step launched first of those under way."""
        result = self._under_way.pop(0)
        self._results.append(result)
        outcome = result.read(self._lanes)
        self._collected = outcome.lanes
        return outcome

    def left(self, lane: int) -> Tensor | None:
        assert not self._under_way
        last = self._collected[lane] if self._collected else None
        return None if self._chains is None else self._chains.left(lane, last)

    def _run(self, lanes: int, length: int) -> None:
        self._graphs.run(("verify", lanes, length, self._sampled), lambda: self._verify(lanes, length))

    def _verify(self, lanes: int, length: int) -> None:
        network, count = self._target, length + 1
        self._board.place(network, TARGET_SLOT, lanes, 0, count, wanted=count)
        network.body(lanes * count, together=count > 2)
        network.head(lanes * count)
        self._chooser.choose(network.logits, lanes * count, self._board.noise if self._sampled else None, self._chosen)
        self._accept(lanes, length)
        if self._chains is not None:
            self._chains.verified(network, lanes, length)

    def _accept(self, lanes: int, length: int) -> None:
        accept_kernel[(lanes,)](
            self._board.state,
            self._board.drafts,
            self._chosen,
            self._board.out,
            self._board.target_spare,
            LENGTH=length,
            LONGEST=MAX_LENGTH,
            WIDTH=bucket(length + 1),
            num_warps=1,
        )


class Result:
    """What one step gave, on its way to the host, and how long its halves took."""

    def __init__(self, out: Tensor, device: torch.device) -> None:
        self._out = out
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(out.shape, dtype=out.dtype, pin_memory=on_gpu)
        self._marks = [torch.Event(device, enable_timing=True) for _ in range(3)] if on_gpu else []
        self._read = torch.Event(device) if on_gpu else None
        self._length = 0

    def start(self) -> None:
        self._mark(0)

    def drafted(self) -> None:
        self._mark(1)

    def finish(self, length: int) -> None:
        self._mark(2)
        self._host.copy_(self._out, non_blocking=True)
        if self._read is not None:
            self._read.record()
        self._length = length

    def read(self, lanes: int) -> StepOutcome:
        if self._read is not None:
            self._read.synchronize()
        n = self._length
        outcomes = []
        for row in self._host[:lanes].tolist():
            accepted = row[0]
            drafts = row[2 + MAX_LENGTH :][:n]
            outcomes.append(LaneOutcome(accepted, tuple(row[1 : 2 + accepted]), tuple(drafts)))
        seconds = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)] or [0.0, 0.0]
        return StepOutcome(outcomes, *seconds)

    def _mark(self, which: int) -> None:
        if self._marks:
            self._marks[which].record()
