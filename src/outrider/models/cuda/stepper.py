"""Whole steps on the device: draft a chain, verify it, accept, keep; the host only launches and, later, reads.

What the host has found in the text meanwhile comes with a launch (`offers`), and is verified where it still fits.

The state of each lane (one request) is on the device: its last tokens, how much the cache holds, how much was
generated. A step reads and advances that state, so the next one can be launched before the host has seen its tokens.
Rollback is that integer: rows of refused drafts lie beyond it and are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.core.step import Manner, Offer, PendingFeatures, StepOutcome, StepShape, StepSlot
from outrider.models.cuda.chains import Chains, HeadChains, ModelChains
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import GraphRecording, Graphs, Key, Launches, bucket, buckets
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.kernels.steps import accept_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, OUT, STRIDE, TARGET_SLOT, WIDTH, Lanes
from outrider.models.cuda.network import HEAD_ROWS, NARROW_ROWS
from outrider.models.cuda.offers import Offers
from outrider.models.cuda.reports import Reports
from outrider.models.cuda.results import Result

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
        self._board = Lanes(lanes, *spares, target.network.capacity, vocab_size, device)
        self._offers = Offers(self._board)
        self._reports = Reports(NARROW_ROWS, vocab_size, device)
        self._chosen = torch.zeros(lanes * (MAX_LENGTH + 1), dtype=torch.int32, device=device)
        self._chooser = Chooser(HEAD_ROWS, vocab_size, device)
        self._chains: Chains | None = None
        if isinstance(draft, CudaHead):
            self._chains = HeadChains(draft, self._board, vocab_size)
        elif draft is not None:
            self._chains = ModelChains(draft, self._board, vocab_size)
        self._graphs = Graphs(device)
        self._all_results = tuple(Result(self._board.out, self._reports, device) for _ in range(3))
        self._results = list(self._all_results)
        """Those that are free."""
        self._under_way: list[Result] = []
        self._seconds: dict[int, dict[StepShape, float]] = {}
        """By bucket of lanes: what steps of each shape prepared take."""

    def limit(self, lanes: int) -> int:
        """The longest chain that fits one pass of the target."""
        return min(MAX_LENGTH, NARROW_ROWS // bucket(lanes) - 1)

    def seconds(self, lanes: int) -> Mapping[StepShape, float]:
        return self._seconds.get(bucket(lanes), {})

    @property
    def late(self) -> int:
        return self._graphs.late

    @property
    def skips(self) -> int:
        return self._chains.skips if self._chains is not None else 0

    def recordings(self, shapes: Sequence[StepShape]) -> Iterator[GraphRecording]:
        return self._graphs.recordings(self._all_launches(shapes))

    def _all_launches(self, shapes: Sequence[StepShape]) -> Iterator[tuple[Key, Launches]]:
        for count, fitting in self._sizes(shapes):
            for manner in reversed(Manner):
                if self._chains is not None:
                    for length in sorted({shape.drafted for shape in fitting}):
                        yield from self._chains.launches(count, length, manner)
                for length in sorted({shape.verified for shape in fitting}):
                    yield ("verify", count, length, manner), partial(self._verify, count, length, manner)

    def _sizes(self, shapes: Sequence[StepShape]) -> Iterator[tuple[int, list[StepShape]]]:
        """Every number of lanes with every shape, cut to what fits."""
        for count in buckets(self._board.most):
            if (most := self.limit(count)) >= 0:
                yield count, sorted({StepShape(min(s.drafted, most), min(s.verified, most)) for s in shapes})

    def measure(self, shapes: Sequence[StepShape]) -> Iterator[None]:
        """Drafting and verifying take what they take together."""
        for count, fitting in self._sizes(shapes):
            drafting, verifying = {0: 0.0}, {0: 1.0}
            levels = {shape.drafted for shape in fitting}
            for length in sorted({shape.verified for shape in fitting}):
                drafted = length if length in levels else 0
                seconds, verifying[length] = self._measured(count, StepShape(drafted, length))
                drafting.setdefault(drafted, seconds)
                yield
            self._seconds[count] = {shape: drafting[shape.drafted] + verifying[shape.verified] for shape in fitting}

    def _measured(self, lanes: int, shape: StepShape) -> tuple[float, float]:
        """What drafting takes and what verifying does: the medians of a few steps; where there is no clock, all take
        alike."""
        outcomes = []
        for _ in range(_MEASURED):
            self.launch(lanes, shape, Manner.GREEDY)
            outcomes.append(self.collect())
        return median(o.draft_seconds for o in outcomes), median(o.target_seconds for o in outcomes) or 1.0

    @torch.inference_mode()
    def seat(self, lanes: Mapping[int, StepSlot]) -> None:
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
    def launch(self, lanes: int, shape: StepShape, manner: Manner, offers: Mapping[int, Offer] = {}) -> None:
        """Start a step of the first `lanes` lanes; does not wait for it."""
        count = bucket(lanes)
        result = self._results.pop(0)
        if shape.verified:
            self._offers.send(shape.drafted, offers)
        result.start()
        if self._chains is not None:
            self._chains.draft(self._graphs, count, shape, manner, bool(offers))
        result.drafted()
        self._run(count, shape.verified, manner)
        result.finish(lanes, shape.verified, told=manner is Manner.FULL)
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
    def left(self, number: int) -> PendingFeatures:
        assert not self._under_way
        return PendingFeatures() if self._chains is None else self._chains.left(number)

    def _run(self, lanes: int, length: int, manner: Manner) -> None:
        self._graphs.run(("verify", lanes, length, manner), lambda: self._verify(lanes, length, manner))

    def _verify(self, lanes: int, length: int, manner: Manner) -> None:
        network, count = self._target, length + 1
        rows = lanes * count
        if length:
            self._offers.align(lanes, length)
        self._board.place(network, TARGET_SLOT, lanes, 0, count, wanted=count)
        network.body(rows, together=count > 2, chain=count)
        noise, said = self._board.chosen_by(manner)
        for first in range(0, rows, HEAD_ROWS):
            some = min(HEAD_ROWS, rows - first)
            network.head(some, first)
            self._chooser.choose(network.logits, some, noise, self._chosen, said, first)
            if said is not None:
                self._reports.fill(network.logits, some, said.marks, self._chosen, first)
        if self._chains is not None:
            self._chains.verify(network, lanes, length)
        self._accept(lanes, length)
        if said is not None:
            self._board.count(lanes)

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
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )
