"""Drafting on the device, as part of a step: chains with a draft model, chains or trees with a head.

Nothing is run while nothing is drafted: what the model or head has missed is run in one pass when it drafts again, or
when no more of it can be kept. Among many lanes a head leaves that out instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from outrider.core.step import Manner, PendingFeatures, StepShape, StepSlot
from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import Graphs, Key, Launches
from outrider.models.cuda.growth import TreeGrowth
from outrider.models.cuda.judge import Drawn, Judge
from outrider.models.cuda.kernels.steps import wait_kernel
from outrider.models.cuda.lanes import DRAFT_SLOT, MAX_LENGTH, STRIDE, Lanes
from outrider.models.cuda.network import HEAD_ROWS, NARROW_ROWS, Network
from outrider.models.cuda.trees import Trees

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder
    from outrider.models.cuda.head import CudaHead

WAITING = 32
"""Most tokens of a lane that wait to be run."""
KEPT = 16
"""Those of them that are kept where what waits is left out: of the 16 tokens after them the shipped head guesses 67%
(with the whole text 76%)."""


class Chains(Protocol):
    """Fills `Lanes.drafts`. `draft` is asked before every step, also of those that draft nothing."""

    skips: int
    """As `Stepper.skips`."""
    drawn: Drawn
    """What the drafts were drawn from, in the lanes that the rejection rule judges."""

    def launches(self, lanes: int, shape: StepShape, manner: Manner) -> Iterator[tuple[Key, Launches]]:
        """What drafts of this shape need, and what those after a step that verified as many do."""
        ...

    def seat(self, number: int, lane: StepSlot) -> None: ...
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def draft(self, graphs: Graphs, lanes: int, shape: StepShape, manner: Manner, offered: bool) -> None:
        """`offered`: whether other drafts may be verified in their stead."""
        ...

    def verify(self, target: Network, lanes: int, length: int) -> None:
        """The target has run chains, and nothing has been accepted yet; recorded with that."""
        ...

    def settle(self, graphs: Graphs, lanes: int) -> None:
        """The host takes over: run what cannot be told it."""
        ...

    def left(self, number: int) -> PendingFeatures:
        """What the host needs to draft on where the steps of a lane have ended."""
        ...


class ModelChains:
    skips = 0

    def __init__(self, model: CudaDecoder, lanes: Lanes, vocab_size: int) -> None:
        """`vocab_size`: the target's tokens that may be chosen; the model may have fewer."""
        self._network = model.network
        self._lanes = lanes
        columns = min(vocab_size, model.vocab_size)
        self._chooser = Chooser(HEAD_ROWS, columns, model.device)
        self.drawn = Drawn(_drafts(lanes), columns, None, vocab_size, model.device)
        self._judge = Judge(self._chooser, lanes, lanes.most, self.drawn)
        self._behind = 0
        """Tokens before the last that the model has not run, of any lane at most."""
        self._plain = False
        """Whether there are more of them than the two that a draft begins with."""

    def launches(self, lanes: int, shape: StepShape, manner: Manner) -> Iterator[tuple[Key, Launches]]:
        yield ("behind", lanes), partial(self._catch_up, lanes)
        if length := shape.drafted:
            yield ("draft", lanes, length, manner), partial(self._chain, lanes, length, manner)

    def seat(self, number: int, lane: StepSlot) -> None:
        """All is in the cache."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """The cache does not move."""

    def verify(self, target: Network, lanes: int, length: int) -> None:
        """The model drafts from tokens alone."""

    def left(self, number: int) -> PendingFeatures:
        return PendingFeatures()

    def draft(self, graphs: Graphs, lanes: int, shape: StepShape, manner: Manner, offered: bool) -> None:
        length = shape.drafted
        if self._plain and (length or self._behind >= _most(lanes, self._network)):
            self.settle(graphs, lanes)
        if length:
            graphs.run(("draft", lanes, length, manner), partial(self._chain, lanes, length, manner))
        self._behind = shape.verified + 1 + (0 if length else self._behind)
        self._plain = offered or not length  # what was offered is not what the model has run

    def settle(self, graphs: Graphs, lanes: int) -> None:
        while self._behind > 0:
            graphs.run(("behind", lanes), partial(self._catch_up, lanes))
            self._behind -= _most(lanes, self._network)
        self._behind, self._plain = 0, False

    def _catch_up(self, lanes: int) -> None:
        count = _most(lanes, self._network)
        self._lanes.place_waiting(self._network, lanes, count)
        self._network.body(lanes * count, together=count > 2, chain=count)

    def _chain(self, lanes: int, length: int, manner: Manner) -> None:
        """The first pass also runs the token before the last: had the whole of the last draft been accepted, the draft
        model would not have seen it yet; otherwise its row is written again as it was."""
        network, board = self._network, self._lanes
        for depth in range(length):
            start, count = (-1, 2) if depth == 0 else (depth, 1)
            board.place(network, DRAFT_SLOT, lanes, start, count, wanted=1)
            network.body(lanes * count, together=False, chain=1)
            network.head(lanes)
            _choose(self._chooser, self._judge, network, board, lanes, depth, manner)


class HeadChains:
    """The features of a lane's tokens wait in a ring, by their positions, until the head runs their rows."""

    def __init__(self, head: CudaHead, lanes: Lanes, vocab_size: int) -> None:
        """`vocab_size`: the target's tokens that may be chosen; draft ids beyond them are not drafted."""
        self._network = head.network
        self._lanes = lanes
        columns = int((head.ids < vocab_size).sum())
        self._chooser = Chooser(HEAD_ROWS, columns, head.device, head.ids)
        self.drawn = Drawn(_drafts(lanes), columns, head.ids, vocab_size, head.device)
        self._judge = Judge(self._chooser, lanes, lanes.most, self.drawn)
        self.trees = Trees(lanes)
        self._growth = TreeGrowth(head.network, lanes, self.trees, columns, head.ids)
        shape = lanes.most, WAITING + MAX_LENGTH + 1, head.network.inbox.shape[1]
        self._ring = torch.zeros(shape, dtype=head.dtype, device=head.device)
        self._index = torch.zeros(head.network.max_rows, dtype=torch.int32, device=head.device)
        self._last = torch.zeros(HEAD_ROWS, dtype=torch.int32, device=head.device)
        self.skips = 0
        self._waiting = 1
        """Tokens that wait, of any lane at most."""
        self._counts: dict[tuple[int, bool], set[int]] = {}
        """By lanes, and whether for trees: how many a pass takes in, as recorded."""

    def launches(self, lanes: int, shape: StepShape, manner: Manner) -> Iterator[tuple[Key, Launches]]:
        most, length = _most(lanes, self._network), shape.drafted
        counts = self._counts.setdefault((lanes, shape.nodes > 0), {most})
        if not length:
            yield ("wait", lanes, most), partial(self._take_in, lanes, most, leave=1)
            yield ("skip", lanes), partial(self._lanes.skip, lanes, KEPT)
            return
        counts.add(length + 1)
        for count in (length + 1, most):
            yield self._absorbing(lanes, count, shape, manner)
        if shape.nodes:
            yield self._growing(lanes, shape, manner)
        elif length > 1:
            yield ("draft", lanes, length, manner), partial(self._chain, lanes, length, manner)

    def seat(self, number: int, lane: StepSlot) -> None:
        """It comes with the features of the token before its last."""
        if lane.features is not None:
            self._ring[number, (lane.length - 1) % self._ring.shape[1]] = lane.features

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._ring[target] = self._ring[source]

    def verify(self, target: Network, lanes: int, length: int) -> None:
        width = self._ring.shape[2]
        wait_kernel[(lanes * (length + 1), -(-width // 1024))](
            self._lanes.records,
            target.features,
            self._ring,
            length + 1,
            width,
            RING=self._ring.shape[1],
            STRIDE=STRIDE,
            BLOCK=1024,
        )

    def keep(self, target: Network, lanes: int, shape: StepShape) -> None:
        """Trees were judged, and their lanes advanced; recorded with that."""
        self.trees.keep_features(target.features, self._ring, lanes, shape)

    def left(self, number: int) -> PendingFeatures:
        """Features of the tokens before each of those that wait: [waiting, layers * target hidden]."""
        length, gap, absorbed = self._lanes.length(number)
        places = torch.arange(absorbed + gap, length) % self._ring.shape[1]
        return PendingFeatures(self._ring[number, places.to(self._ring.device)], gap)

    def settle(self, graphs: Graphs, lanes: int) -> None:
        """The host is given what waits."""

    def draft(self, graphs: Graphs, lanes: int, shape: StepShape, manner: Manner, offered: bool) -> None:
        length, most = shape.drafted, _most(lanes, self._network)
        if not length:
            if most < WAITING:  # a pass every few steps for nothing
                self._skip(graphs, lanes)
            while self._waiting >= WAITING:
                self._wait(graphs, lanes, most)
            self._waiting += shape.verified + 1
            return
        while self._waiting > most:
            self._wait(graphs, lanes, most)
        counts = self._counts.get((lanes, shape.nodes > 0), ())
        count = min((count for count in counts if count >= self._waiting), default=self._waiting)
        graphs.run(*self._absorbing(lanes, count, shape, manner))
        if shape.nodes:
            graphs.run(*self._growing(lanes, shape, manner))
        elif length > 1:
            graphs.run(("draft", lanes, length, manner), partial(self._chain, lanes, length, manner))
        self._waiting = shape.verified + 1

    def _absorbing(self, lanes: int, count: int, shape: StepShape, manner: Manner) -> tuple[Key, Launches]:
        if shape.nodes:
            return ("absorb for a tree", lanes, count, manner), partial(self._plant, lanes, count, manner)
        return ("absorb", lanes, count, manner), partial(self._absorb, lanes, count, manner)

    def _growing(self, lanes: int, shape: StepShape, manner: Manner) -> tuple[Key, Launches]:
        grow = partial(self._growth.grow, lanes, shape, self._last, manner)
        return ("grow", lanes, shape.drafted, shape.nodes, manner), grow

    def _wait(self, graphs: Graphs, lanes: int, most: int) -> None:
        graphs.run(("wait", lanes, most), partial(self._take_in, lanes, most, leave=1))
        self._waiting = max(1, self._waiting - most)

    def _skip(self, graphs: Graphs, lanes: int) -> None:
        """Before a step that drafts nothing: make room for its tokens."""
        if self._waiting >= WAITING:
            graphs.run(("skip", lanes), partial(self._lanes.skip, lanes, KEPT))
            self._waiting = KEPT
            self.skips += 1

    def _take_in(self, lanes: int, count: int, leave: int) -> None:
        """Run what waits, at most `count` rows a lane."""
        network, ring = self._network, self._ring.shape[1]
        self._lanes.place_waiting(network, lanes, count, leave, self._index, self._last, ring)
        network.fuse(lanes * count, self._ring, self._index)
        network.run(lanes * count, count > 2, network.given, chain=count)

    def _absorb(self, lanes: int, count: int, manner: Manner) -> None:
        """The last token's row gives the first draft."""
        self._take_in(lanes, count, leave=0)
        self._choose(lanes, 0, manner)

    def _plant(self, lanes: int, count: int, manner: Manner) -> None:
        """The last token's row gives the first level of a tree."""
        self._take_in(lanes, count, leave=0)
        self._growth.begin(lanes, self._last, manner)

    def _chain(self, lanes: int, length: int, manner: Manner) -> None:
        """The others, each from the head's own state after the one before."""
        network = self._network
        for depth in range(1, length):
            self._lanes.place(network, DRAFT_SLOT, lanes, depth, 1, wanted=1, head=True)
            network.run(lanes, False, network.states, self._last if depth == 1 else None, chain=1)
            self._choose(lanes, depth, manner)

    def _choose(self, lanes: int, depth: int, manner: Manner) -> None:
        self._network.head(lanes)
        _choose(self._chooser, self._judge, self._network, self._lanes, lanes, depth, manner)


def _most(lanes: int, network: Network) -> int:
    """Tokens of each lane that one pass can catch up with."""
    return max(1, min(WAITING, min(network.max_rows, NARROW_ROWS) // lanes))


def _drafts(lanes: Lanes) -> int:
    """The most that one step verifies, of all lanes together."""
    return min(NARROW_ROWS, lanes.most * MAX_LENGTH)


def _choose(
    chooser: Chooser, judge: Judge, network: Network, board: Lanes, lanes: int, depth: int, manner: Manner
) -> None:
    """The drafts of one level, by the network's logits."""
    noise, said = board.chosen_by(manner)
    chooser.choose(network.logits, lanes, noise, board.drafts[:, depth], said)
    if manner >= Manner.JUDGED:
        judge.draw(network.logits, lanes, board.noise, said, depth, board.drafts)
