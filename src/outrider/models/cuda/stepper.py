"""Whole steps on the device: draft a chain or a tree, verify, accept, keep; the host only launches and, later, reads.

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

from outrider.core.step import (
    Guide,
    Manner,
    Offer,
    PendingFeatures,
    StepOutcome,
    StepShape,
    StepSlot,
    step_width,
    step_widths,
)
from outrider.models.cuda.chains import Chains, HeadChains, ModelChains
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import GraphRecording, Graphs, Key, Launches, Staging, oldest
from outrider.models.cuda.growth import WIDTH as GROWN_ROWS
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.judge import Judge
from outrider.models.cuda.kernels.steps import accept_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, OUT, STRIDE, TARGET_SLOT, WIDTH, Lanes
from outrider.models.cuda.network import HEAD_ROWS, NARROW_ROWS
from outrider.models.cuda.offers import Offers
from outrider.models.cuda.reports import Reports
from outrider.models.cuda.results import Result

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder


TREE_ROWS = 256
"""Rows of all lanes together that a level of their trees may have."""
IN_ORDER = 64
"""Rows beyond which logits of all rows are not computed by their numbers, but as they come."""
_MEASURED = 5
"""Steps by which each size is measured."""


class DeviceStepper:
    """A `Stepper` for one target and, unless steps are plain, one draft model or head on the same device."""

    horizon = NOISE_AHEAD

    def __init__(self, target: CudaDecoder, draft: CudaDecoder | CudaHead | None, vocab_size: int) -> None:
        self._target = target.network
        self.reach = min(target.max_context, draft.max_context) if draft else target.max_context
        lanes = step_width(target.max_batch)
        device = target.device
        spares = target.max_batch, draft.max_batch if draft else 0
        self._board = Lanes(lanes, *spares, target.network.capacity, vocab_size, device)
        self._offers = Offers(self._board)
        self._reports = Reports(NARROW_ROWS, vocab_size, device)
        self._chosen = torch.zeros(lanes * (MAX_LENGTH + 1), dtype=torch.int32, device=device)
        self._chooser = Chooser(HEAD_ROWS, vocab_size, device)
        self._has_run = torch.zeros(lanes, dtype=torch.int32, device=device)
        """By lane: its row in the target's last pass, where a step begins with that."""
        self._sending = [Staging(lanes, device) for _ in range(4)]
        self._chains: Chains | None = None
        self._head: HeadChains | None = None
        """The same, where they may be trees."""
        if isinstance(draft, CudaHead):
            self._chains = self._head = HeadChains(draft, self._board, vocab_size)
        elif draft is not None:
            self._chains = ModelChains(draft, self._board, vocab_size)
        drawn = self._chains.drawn if self._chains is not None else None
        self._judge = Judge(self._chooser, self._board, HEAD_ROWS, drawn)
        self._graphs = Graphs(device)
        self._all_results = tuple(Result(self._board.out, self._reports, device) for _ in range(3))
        self._results = list(self._all_results)
        """Those that are free."""
        self._under_way: list[Result] = []
        self._seconds: dict[int, dict[StepShape, float]] = {}
        """By their width: what steps of each shape prepared take."""

    def limit(self, lanes: int) -> int:
        """The longest chain that fits one pass of the target."""
        return min(MAX_LENGTH, NARROW_ROWS // step_width(lanes) - 1)

    def trees(self, lanes: int) -> bool:
        return self._head is not None and step_width(lanes) * GROWN_ROWS <= TREE_ROWS

    def seconds(self, lanes: int) -> Mapping[StepShape, float]:
        return self._seconds.get(step_width(lanes), {})

    @property
    def late(self) -> int:
        return self._graphs.late

    @property
    def skips(self) -> int:
        return self._chains.skips if self._chains is not None else 0

    def recordings(self, shapes: Sequence[StepShape]) -> Iterator[GraphRecording]:
        return self._graphs.recordings(self._all_launches(shapes), self._passes(shapes))

    def _passes(self, shapes: Sequence[StepShape]) -> Iterator[tuple[Key, Launches, Launches]]:
        """Of the target: however tokens are chosen after them, they are the same. Alone they need their rows placed."""
        for count, fitting in self._sizes(shapes):
            for verified in sorted({_verified(shape) for shape in fitting}):
                key, launches = self._passing(count, verified)
                yield key, partial(self._place_and, launches, count, verified), launches

    def _passing(self, lanes: int, shape: StepShape) -> tuple[Key, Launches]:
        if shape.nodes:
            launches = partial(self._target.body, lanes * (shape.nodes + 1), together=True)
            return ("pass of trees", lanes, shape.nodes), launches
        count = shape.verified + 1
        return ("pass", lanes, count), partial(self._target.body, lanes * count, together=count > 2, chain=count)

    def _place_and(self, launches: Launches, lanes: int, shape: StepShape) -> None:
        self._place(lanes, shape)
        launches()

    def _place(self, lanes: int, shape: StepShape) -> None:
        """The rows of a step, for the target."""
        if shape.nodes:
            assert self._head is not None, "trees are a head's"
            self._head.trees.place(self._target, lanes, shape)
        else:
            count = shape.verified + 1
            self._board.place(self._target, TARGET_SLOT, lanes, 0, count, wanted=count)

    def _all_launches(self, shapes: Sequence[StepShape]) -> Iterator[tuple[Key, Launches]]:
        for count, fitting in self._sizes(shapes):
            for manner in reversed(Manner):
                known = [shape for shape in fitting if not shape.nodes or manner < Manner.FULL]
                if self._chains is not None:
                    for drafted in sorted({_drafted(shape) for shape in known}):
                        yield from self._chains.launches(count, drafted, manner)
                else:
                    yield self._beginning(count, manner)
                for verified in sorted({_verified(shape) for shape in known}):
                    yield self._verifying(count, verified, manner)

    def _sizes(self, shapes: Sequence[StepShape]) -> Iterator[tuple[int, list[StepShape]]]:
        """Every number of lanes with every shape: chains are cut to what fits, trees left out that do not."""
        for count in step_widths(self._board.most):
            if (most := self.limit(count)) >= 0:
                chains = {StepShape(min(s.drafted, most), min(s.verified, most)) for s in shapes if not s.nodes}
                trees = {s for s in shapes if 0 < s.nodes <= most and self.trees(count)}
                yield count, sorted(chains | trees)

    def measure(self, shapes: Sequence[StepShape]) -> Iterator[None]:
        """Drafting and verifying chains take what they take together."""
        for count, fitting in self._sizes(shapes):
            drafting, verifying = {0: 0.0}, {0: 1.0}
            chains = [shape for shape in fitting if not shape.nodes]
            levels = {shape.drafted for shape in chains}
            for length in sorted({shape.verified for shape in chains}):
                drafted = length if length in levels else 0
                seconds, verifying[length] = self._measured(count, StepShape(drafted, length))
                drafting.setdefault(drafted, seconds)
                yield
            found = {shape: drafting[shape.drafted] + verifying[shape.verified] for shape in chains}
            for shape in fitting:
                if shape.nodes:
                    found[shape] = sum(self._measured(count, shape))
                    yield
            self._seconds[count] = found

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
    def launch(
        self,
        lanes: int,
        shape: StepShape,
        manner: Manner,
        offers: Mapping[int, Offer] = {},
        run: Sequence[int] = (),
        guides: Mapping[int, Guide] = {},
    ) -> None:
        """Start a step of the first `lanes` lanes; does not wait for it."""
        count = step_width(lanes)
        result = self._results.pop(0)
        if _aligns(shape, manner):
            self._offers.send(shape.drafted, offers, guides)
        result.start()
        if self._chains is not None:
            self._chains.draft(self._graphs, count, shape, manner, bool(offers or guides))
        result.drafted()
        self._run(count, shape, manner, run)
        result.finish(lanes, shape, told=manner >= Manner.FULL)
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
            self._chains.settle(self._graphs, step_width(lanes))

    @torch.inference_mode()
    def left(self, number: int) -> PendingFeatures:
        assert not self._under_way
        return PendingFeatures() if self._chains is None else self._chains.left(number)

    def _run(self, lanes: int, shape: StepShape, manner: Manner, has_run: Sequence[int]) -> None:
        if has_run:
            sending = oldest(self._sending)
            sending.free()[: len(has_run)] = torch.tensor(has_run, dtype=torch.int32)
            sending.send(self._has_run, len(has_run))
            self._graphs.run(*self._beginning(lanes, manner))
        else:
            self._graphs.run(*self._verifying(lanes, shape, manner))

    def _beginning(self, lanes: int, manner: Manner) -> tuple[Key, Launches]:
        return ("begin", lanes, manner), partial(self._begin, lanes, manner)

    def _verifying(self, lanes: int, shape: StepShape, manner: Manner) -> tuple[Key, Launches]:
        if shape.nodes:
            judge = partial(self._verify_trees, lanes, shape, manner)
            return ("verify a tree", lanes, shape.verified, shape.nodes, manner), judge
        return ("verify", lanes, shape.verified, manner), partial(self._verify, lanes, shape.verified, manner)

    def _verify(self, lanes: int, length: int, manner: Manner) -> None:
        shape, rows = StepShape(0, length), lanes * (length + 1)
        self._align(lanes, length, manner)
        self._place(lanes, shape)
        self._graphs.part(*self._passing(lanes, shape))
        if manner >= Manner.JUDGED:
            self._judge.deal(lanes, length)
        self._choose(rows, manner)
        if self._chains is not None:
            self._chains.verify(self._target, lanes, length)
        self._accept(lanes, length, manner)
        if manner >= Manner.FULL:
            self._board.count(lanes)

    def _begin(self, lanes: int, manner: Manner) -> None:
        """A plain step without its pass: its rows were run with the prompts, and the cache has what they left."""
        self._align(lanes, 0, manner)
        self._place(lanes, StepShape(0, 0))
        if manner >= Manner.JUDGED:
            self._judge.deal(lanes, 0)
        self._choose(lanes, manner, self._has_run)
        self._accept(lanes, 0, manner)
        if manner >= Manner.FULL:
            self._board.count(lanes)

    def _align(self, lanes: int, length: int, manner: Manner) -> None:
        """What the host has sent the lanes is held against what has come since."""
        if _aligns(StepShape(0, length), manner):
            self._offers.align(lanes, length)

    def _choose(self, rows: int, manner: Manner, wanted: Tensor | None = None) -> None:
        """What follows each row that the target has run, or those that are `wanted`."""
        network = self._target
        noise, said = self._board.chosen_by(manner)
        for first in range(0, rows, HEAD_ROWS):
            some = min(HEAD_ROWS, rows - first)
            if wanted is None and first == 0 and some > IN_ORDER:
                network.head_in_order(some)
            else:
                network.head(some, first, wanted)
            self._chooser.choose(network.logits, some, noise, self._chosen, said, first)
            if manner >= Manner.JUDGED:
                self._judge.judge(network.logits, some, self._board.noise, said, self._chosen, first)
            if said is not None:
                self._reports.fill(network.logits, some, said.marks, self._chosen, first)

    def _verify_trees(self, lanes: int, shape: StepShape, manner: Manner) -> None:
        """Rows of refused nodes, too, lie beyond the text or are written over when the accepted ones are moved."""
        assert self._head is not None, "trees are a head's"
        network, trees, rows = self._target, self._head.trees, lanes * (shape.nodes + 1)
        self._place(lanes, shape)
        self._graphs.part(*self._passing(lanes, shape))
        self._choose(rows, manner)
        trees.accept(self._chosen, lanes, shape)
        trees.keep(network, lanes)
        self._head.keep(network, lanes, shape)

    def _accept(self, lanes: int, length: int, manner: Manner) -> None:
        board = self._board
        accept_kernel[(lanes,)](
            board.records,
            board.text,
            board.drafts,
            self._chosen,
            self._judge.accepted if manner >= Manner.JUDGED else None,
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


def _aligns(shape: StepShape, manner: Manner) -> bool:
    """Whether a step looks at what the host has sent its lanes: drafts to verify, or what may follow."""
    return not shape.nodes and (shape.verified > 0 or manner >= Manner.FULL)


def _drafted(shape: StepShape) -> StepShape:
    """All that drafting depends on."""
    return shape if shape.nodes else StepShape(shape.drafted, shape.drafted)


def _verified(shape: StepShape) -> StepShape:
    """All that verifying depends on."""
    return shape if shape.nodes else StepShape(0, shape.verified)
