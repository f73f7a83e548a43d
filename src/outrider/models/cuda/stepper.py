"""Whole steps on the device: draft a chain, verify it, accept, keep; the host only launches and, later, reads.

`Stepper` keeps the state of each lane (one sequence) on the device: its last two tokens, how much the cache holds,
how much was generated. A step reads and advances that state, so the next one can be launched before the host has seen
its tokens. Rollback is that integer: rows of refused drafts lie beyond it and are overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.graphs import Graphs, Staging, bucket
from outrider.models.cuda.kernels.steps import accept_kernel, place_kernel
from outrider.models.cuda.network import HEAD_ROWS, Network
from outrider.types import Lane, LaneOutcome, StepOutcome

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder

LAST, PREVIOUS, LENGTH, GENERATED, TARGET_SLOT, DRAFT_SLOT = range(6)
FIELDS = 6
"""Of a lane's state: its last token and the one before, cached tokens, generated tokens, and its cache slots."""

NOISE_AHEAD = 512
"""Generated positions per lane whose noise keys are on the device."""

MAX_LENGTH = 32
"""Longest chain."""


class DeviceStepper:
    """A `Stepper` for one target and, unless steps are plain, one draft model on the same device."""

    max_length = MAX_LENGTH
    horizon = NOISE_AHEAD

    def __init__(self, target: CudaDecoder, draft: CudaDecoder | None, vocab_size: int) -> None:
        self._target, self._draft = target.network, None if draft is None else draft.network
        self._spare = {TARGET_SLOT: target.max_batch, DRAFT_SLOT: draft.max_batch if draft else 0}
        lanes = bucket(target.max_batch)
        device = target.device

        def room(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._flat = room(lanes * (FIELDS + 1 + 2 * NOISE_AHEAD))
        parts = torch.split(self._flat, [lanes * FIELDS, lanes, lanes * 2 * NOISE_AHEAD])
        self._state, self._starts, self._words = parts
        self._temperatures = room(lanes, dtype=torch.float64)
        self._drafts = room(lanes, MAX_LENGTH)
        rows = lanes * (MAX_LENGTH + 1)
        self._chosen = room(rows)
        self._noise = Noise.room(rows, device)
        self._chooser = Chooser(HEAD_ROWS, vocab_size, device)
        self._out = room(lanes, 2 * MAX_LENGTH + 2)
        self._graphs = Graphs(device)
        self._loading = Staging(self._flat.shape[0], device)
        self._results = [Result(self._out, device) for _ in range(3)]
        self._under_way: list[Result] = []
        self._lanes = 0
        self._sampled = False
        self._longest = 0

    def limit(self, lanes: int) -> int:
        """The longest chain that fits one pass of the target with its logits."""
        return min(MAX_LENGTH, HEAD_ROWS // bucket(lanes) - 1)

    def begin(self, lanes: Sequence[Lane]) -> None:
        """Take over `lanes`; nothing may be under way."""
        assert not self._under_way
        host = self._loading.free()
        count = bucket(len(lanes))
        most = self._starts.shape[0]
        state = host[: most * FIELDS].view(most, FIELDS)
        starts = host[most * FIELDS :][:most]
        words = host[most * (FIELDS + 1) :].view(most, NOISE_AHEAD, 2)
        state[:count] = torch.tensor([0, 0, 0, 0, self._spare[TARGET_SLOT], self._spare[DRAFT_SLOT]])
        temperatures = [0.0] * most
        for i, lane in enumerate(lanes):
            state[i] = torch.tensor([lane.last, lane.previous, lane.length, lane.generated, lane.slot, lane.draft_slot])
            starts[i] = lane.generated
            temperatures[i] = lane.temperature
            if lane.words is not None:
                words[i, : len(lane.words)] = lane.words
        self._loading.send(self._flat)
        self._temperatures.copy_(torch.tensor(temperatures, dtype=torch.float64))
        self._lanes = len(lanes)
        self._sampled = any(temperatures)
        self._longest = max(lane.length for lane in lanes)

    @torch.inference_mode()
    def launch(self, length: int) -> None:
        """Start a step with chains of `length` drafts (0: plain); does not wait for it."""
        count = bucket(self._lanes)
        self._longest += length + 1
        context = min(self._target.capacity, max(512, bucket(self._longest + 1)))
        result = self._results.pop(0)
        result.start()
        if length:
            key = ("draft", count, length, context, self._sampled)
            self._graphs.run(key, lambda: self._draft_chain(count, length, context))
        result.drafted()
        key = ("verify", count, length, context, self._sampled)
        self._graphs.run(key, lambda: self._verify(count, length, context))
        result.finish(length)
        self._under_way.append(result)

    def collect(self) -> StepOutcome:
        """Wait for the step launched first of those under way."""
        result = self._under_way.pop(0)
        self._results.append(result)
        return result.read(self._lanes)

    def _draft_chain(self, lanes: int, length: int, context: int) -> None:
        """Fill `_drafts`. The first pass also runs the token before the last: had the whole of the last draft been
        accepted, the draft model would not have seen it yet; otherwise its row is written again as it was."""
        network = self._draft
        assert network is not None
        for depth in range(length):
            start, count = (-1, 2) if depth == 0 else (depth, 1)
            self._place(network, DRAFT_SLOT, lanes, start, count, wanted=1)
            network.body(lanes * count, context, together=False)
            network.head(lanes)
            self._choose(network, lanes, self._drafts[:, depth])

    def _verify(self, lanes: int, length: int, context: int) -> None:
        network, count = self._target, length + 1
        self._place(network, TARGET_SLOT, lanes, 0, count, wanted=count)
        network.body(lanes * count, context, together=count > 2)
        network.head(lanes * count)
        self._choose(network, lanes * count, self._chosen)
        self._accept(lanes, length)

    def _accept(self, lanes: int, length: int) -> None:
        accept_kernel[(lanes,)](
            self._state,
            self._drafts,
            self._chosen,
            self._out,
            self._spare[TARGET_SLOT],
            LENGTH=length,
            LONGEST=MAX_LENGTH,
            WIDTH=bucket(length + 1),
            num_warps=1,
        )

    def _choose(self, network: Network, rows: int, chosen: Tensor) -> None:
        self._chooser.choose(network.logits, rows, self._noise if self._sampled else None, chosen)

    def _place(self, network: Network, slot: int, lanes: int, start: int, count: int, wanted: int) -> None:
        t = network.tables
        place_kernel[(lanes,)](
            self._state,
            self._drafts,
            self._words,
            self._temperatures,
            self._starts,
            t.tokens,
            t.slots,
            t.positions,
            t.indices,
            t.bases,
            t.wanted,
            self._noise.words,
            self._noise.temperatures,
            self._spare[slot],
            START=start,
            COUNT=count,
            WANTED=wanted,
            SLOT_FIELD=slot,
            LONGEST=MAX_LENGTH,
            AHEAD=NOISE_AHEAD,
            WIDTH=bucket(count),
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
