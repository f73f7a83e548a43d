"""Whole steps on the device: draft a chain, verify it, accept, keep; the host only launches and, later, reads.

The state of each lane (one sequence) is on the device: its last tokens, how much the cache holds, how much was
generated. A step reads and advances that state, so the next one can be launched before the host has seen its tokens.
Rollback is that integer: rows of refused drafts lie beyond it and are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.models.cuda.chains import Chains, HeadChains, ModelChains
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import GraphRecording, Graphs, Key, Launches, bucket, buckets
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.kernels.steps import accept_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, STRIDE, TARGET_SLOT, WIDTH, Lanes
from outrider.models.cuda.network import HEAD_ROWS
from outrider.types import Lane, LaneOutcome, StepOutcome

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


_MEASURED = 5
"""Steps by which each size is measured."""


class DeviceStepper:
    """A `Stepper` for one target and, unless steps are plain, one draft model or head on the same device."""

    horizon = NOISE_AHEAD

    def __init__(self, target: CudaDecoder, draft: CudaDecoder | CudaHead | None, vocab_size: int) -> None:
        self._target = target.network
        self.reach = min(target.max_context, draft.max_context) if draft else target.max_context
        lanes = bucket(target.max_batch)
        device = target.device
        spares = target.max_batch, draft.max_batch if draft else 0
        self._board = Lanes(lanes, *spares, target.network.capacity, device)
        self._chosen = torch.zeros(lanes * (MAX_LENGTH + 1), dtype=torch.int32, device=device)
        self._chooser = Chooser(HEAD_ROWS, vocab_size, device)
        self._chains: Chains | None = None
        if isinstance(draft, CudaHead):
            self._chains = HeadChains(draft, self._board, vocab_size)
        elif draft is not None:
            self._chains = ModelChains(draft, self._board, vocab_size)
        self._graphs = Graphs(device)
        self._all_results = tuple(Result(self._board.out, device) for _ in range(3))
        self._results = list(self._all_results)
        """Those that are free."""
        self._under_way: list[Result] = []
        self._seconds: dict[int, dict[int, float]] = {}
        """By bucket of lanes: what steps of each length prepared take."""

    def limit(self, lanes: int) -> int:
        """The longest chain that fits one pass of the target with its logits."""
        return min(MAX_LENGTH, HEAD_ROWS // bucket(lanes) - 1)

    def seconds(self, lanes: int) -> Mapping[int, float]:
        return self._seconds.get(bucket(lanes), {})

    @property
    def late(self) -> int:
        return self._graphs.late

    def recordings(self, lengths: Sequence[int]) -> Iterator[GraphRecording]:
        return self._graphs.recordings(self._all_launches(lengths))

    def _all_launches(self, lengths: Sequence[int]) -> Iterator[tuple[Key, Launches]]:
        for count, length in self._sizes(lengths):
            for sampled in (True, False):
                if self._chains is not None:
                    yield from self._chains.launches(count, length, sampled)
                yield ("verify", count, length, sampled), partial(self._verify, count, length, sampled)

    def _sizes(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Every number of lanes with every length that fits."""
        counts = [count for count in buckets(self._board.most) if self.limit(count) >= 0]
        return [(n, length) for n in counts for length in sorted({min(length, self.limit(n)) for length in lengths})]

    def measure(self, lengths: Sequence[int]) -> Iterator[None]:
        for count, length in self._sizes(lengths):
            self._seconds.setdefault(count, {})[length] = self._measured(count, length)
            yield

    def _measured(self, lanes: int, length: int) -> float:
        """The median of a few steps; where there is no clock, all take alike."""
        times = []
        for _ in range(_MEASURED):
            self.launch(lanes, length, sampled=False)
            outcome = self.collect()
            times.append(outcome.draft_seconds + outcome.target_seconds)
        return median(times) or 1.0

    @torch.inference_mode()
    def seat(self, lanes: Mapping[int, Lane]) -> None:
        self._board.seat(lanes)
        if self._chains is not None:
            for number, lane in lanes.items():
                self._chains.seat(number, lane)

    @torch.inference_mode()
    def vacate(self, number: int | None = None) -> None:
        if number is None:
            self._board.clear()
        else:
            self._board.vacate(number)

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if self._chains is not None:
            self._chains.move(sources, targets)
        self._board.move(sources, targets)

    @torch.inference_mode()
    def renew(self, number: int, generated: int, words: Tensor) -> None:
        self._board.renew(number, generated, words)

    @torch.inference_mode()
    def launch(self, lanes: int, length: int, sampled: bool) -> None:
        """Start a step of the first `lanes` lanes with chains of `length` drafts (0: plain); does not wait for it.
        `sampled`: whether any has a temperature."""
        count = bucket(lanes)
        result = self._results.pop(0)
        result.start()
        if self._chains is not None:
            self._chains.draft(self._graphs, count, length, sampled)
        result.drafted()
        self._run(count, length, sampled)
        result.finish(lanes, length)
        self._under_way.append(result)

    def collect(self) -> StepOutcome:
        """Wait for the step launched first of those under way."""
        result = self._under_way.pop(0)
        self._results.append(result)
        return result.read()

    @torch.inference_mode()
    def reset(self) -> None:
        self._results, self._under_way = list(self._all_results), []
        self._board.clear()

    @torch.inference_mode()
    def settle(self, lanes: int) -> None:
        if self._chains is not None:
            self._chains.settle(self._graphs, bucket(lanes))

    @torch.inference_mode()
    def left(self, number: int) -> Tensor | None:
        assert not self._under_way
        return None if self._chains is None else self._chains.left(number)

    def _run(self, lanes: int, length: int, sampled: bool) -> None:
        self._graphs.run(("verify", lanes, length, sampled), lambda: self._verify(lanes, length, sampled))

    def _verify(self, lanes: int, length: int, sampled: bool) -> None:
        network, count = self._target, length + 1
        self._board.place(network, TARGET_SLOT, lanes, 0, count, wanted=count)
        network.body(lanes * count, together=count > 2)
        network.head(lanes * count)
        self._chooser.choose(network.logits, lanes * count, self._board.noise if sampled else None, self._chosen)
        if self._chains is not None:
            self._chains.verify(network, lanes, length)
        self._accept(lanes, length)

    def _accept(self, lanes: int, length: int) -> None:
        board = self._board
        accept_kernel[(lanes,)](
            board.records,
            board.text,
            board.drafts,
            self._chosen,
            board.out,
            length,
            board.capacity,
            board.target_spare,
            LONGEST=MAX_LENGTH,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
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
        n, rows = self._length, self._host[: self._lanes]
        gained, drafted = rows[:, : n + 2].tolist(), rows[:, 2 + MAX_LENGTH : 2 + MAX_LENGTH + n].tolist()
        outcomes = [
            LaneOutcome(accepted, tuple(tokens[: accepted + 1]), tuple(drafts))
            for (accepted, *tokens), drafts in zip(gained, drafted, strict=True)
        ]
        seconds = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)] or [0.0, 0.0]
        return StepOutcome(outcomes, *seconds)

    def _mark(self, which: int) -> None:
        if self._marks:
            self._marks[which].record()
