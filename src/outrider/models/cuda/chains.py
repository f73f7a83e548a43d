"""Drafting chains on the device, as part of a step: with a draft model, or with a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from outrider.models.cuda.chooser import Chooser
from outrider.models.cuda.graphs import Graphs
from outrider.models.cuda.lanes import DRAFT_SLOT, Lanes
from outrider.models.cuda.network import HEAD_ROWS, Network
from outrider.types import Lane, LaneOutcome

if TYPE_CHECKING:
    from outrider.models.cuda.decoder import CudaDecoder
    from outrider.models.cuda.head import CudaHead


class Chains(Protocol):
    """Fills `Lanes.drafts`. `draft` is asked before every step, also of those that draft nothing."""

    def prepare(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None:
        """Record what drafts of this length need, and what those after a step of this length do."""
        ...

    def begin(self, lanes: Sequence[Lane]) -> None: ...
    def draft(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None: ...
    def verified(self, target: Network, lanes: int, length: int) -> None:
        """The target has run the drafts; recorded with that."""
        ...

    def left(self, lane: int, last: LaneOutcome | None) -> Tensor | None:
        """What the host needs to draft on where the steps have ended, `last` being the last one."""
        ...


class ModelChains:
    def __init__(self, model: CudaDecoder, lanes: Lanes, chooser: Chooser) -> None:
        self._network = model.network
        self._lanes = lanes
        self._chooser = chooser

    def prepare(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None:
        self.draft(graphs, lanes, length, sampled)

    def begin(self, lanes: Sequence[Lane]) -> None:
        """All is in the cache."""

    def verified(self, target: Network, lanes: int, length: int) -> None:
        """The model drafts from tokens alone."""

    def left(self, lane: int, last: LaneOutcome | None) -> None:
        return None

    def draft(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None:
        if length:
            key = ("draft", lanes, length, sampled)
            graphs.run(key, lambda: self._chain(lanes, length, sampled))

    def _chain(self, lanes: int, length: int, sampled: bool) -> None:
        """The first pass also runs the token before the last: had the whole of the last draft been accepted, the draft
        model would not have seen it yet; otherwise its row is written again as it was."""
        network, board = self._network, self._lanes
        for depth in range(length):
            start, count = (-1, 2) if depth == 0 else (depth, 1)
            board.place(network, DRAFT_SLOT, lanes, start, count, wanted=1)
            network.body(lanes * count, together=False)
            network.head(lanes)
            self._chooser.choose(network.logits, lanes, board.noise if sampled else None, board.drafts[:, depth])


class HeadChains:
    """The features a step gained wait here for the next one, which begins by taking them into the head's cache."""

    def __init__(self, head: CudaHead, lanes: Lanes, vocab_size: int) -> None:
        """`vocab_size`: the target's tokens that may be chosen; draft ids beyond them are not drafted."""
        self._network = head.network
        self._lanes = lanes
        columns = int((head.ids < vocab_size).sum())
        self._chooser = Chooser(HEAD_ROWS, columns, head.device, head.ids)
        self._features = torch.zeros_like(head.network.inbox[:HEAD_ROWS])
        """[lanes * rows each, taps * target hidden]"""
        self._each = 1
        self._last = torch.zeros(HEAD_ROWS, dtype=torch.int32, device=head.device)

    def prepare(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None:
        self._each = length + 1
        self.draft(graphs, lanes, length, sampled)

    def begin(self, lanes: Sequence[Lane]) -> None:
        """Each lane comes with the features of the token before its last."""
        self._each = 1
        for i, lane in enumerate(lanes):
            if lane.features is not None:
                self._features[i] = lane.features

    def verified(self, target: Network, lanes: int, length: int) -> None:
        rows = lanes * (length + 1)
        self._features[:rows].copy_(target.features[:rows])

    def left(self, lane: int, last: LaneOutcome | None) -> Tensor:
        """Features of the tokens before each of those gained last: [gained, taps * target hidden]."""
        start = lane * self._each
        return self._features[start : start + (1 if last is None else len(last.tokens))]

    def draft(self, graphs: Graphs, lanes: int, length: int, sampled: bool) -> None:
        each = self._each
        graphs.run(("absorb", lanes, each, sampled), lambda: self._absorb(lanes, each, sampled))
        if length > 1:
            key = ("draft", lanes, length, sampled)
            graphs.run(key, lambda: self._chain(lanes, length, sampled))
        self._each = length + 1

    def _absorb(self, lanes: int, each: int, sampled: bool) -> None:
        """Take the features in, `each` rows a lane; the last token's row gives the first draft."""
        network = self._network
        self._lanes.place_gained(network, lanes, each, self._last)
        network.fuse(lanes * each, self._features)
        network.run(lanes * each, each > 2, network.given)
        self._choose(lanes, 0, sampled)

    def _chain(self, lanes: int, length: int, sampled: bool) -> None:
        """The others, each from the head's own state after the one before."""
        network = self._network
        for depth in range(1, length):
            self._lanes.place(network, DRAFT_SLOT, lanes, depth, 1, wanted=1, head=True)
            network.run(lanes, False, network.states, self._last if depth == 1 else None)
            self._choose(lanes, depth, sampled)

    def _choose(self, lanes: int, depth: int, sampled: bool) -> None:
        network, board = self._network, self._lanes
        network.head(lanes)
        self._chooser.choose(network.logits, lanes, board.noise if sampled else None, board.drafts[:, depth])
