"""The rejection rule on the device, for the rows of lanes that ask for it."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.kernels import rejection
from outrider.models.cuda.kernels.deal import RULE, deal_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.lanes import MAX_LENGTH, NOISE_AHEAD, OUT, STRIDE, WIDTH, Lanes
from outrider.models.cuda.said import Said

_TURNS, _RULE = rejection.TURNS.value, RULE.value
_DIGITS = 16


class Drawn:
    """What drafts were drawn from: `shares` [rows, columns] int64, those of a level's lanes in a row. `places` [vocab]:
    the column of each token, -1: it has none; None: its own number."""

    def __init__(self, rows: int, columns: int, ids: Tensor | None, vocab: int, device: torch.device) -> None:
        self.shares = torch.zeros(rows, columns, dtype=torch.int64, device=device)
        self.places: Tensor | None = None
        if ids is not None:
            self.places = torch.full((vocab,), -1, dtype=torch.int32, device=device)
            self.places[ids[:columns].to(device)] = torch.arange(columns, dtype=torch.int32, device=device)


class Judge:
    """Of the rows that a `chooser` has looked at last, up to `rows` at a time: see `kernels/rejection.py`."""

    def __init__(self, chooser: Chooser, lanes: Lanes, rows: int, drawn: Drawn | None = None) -> None:
        """`drawn`: what its lanes' drafts are drawn from, or were."""
        self._chooser = chooser
        self._lanes = lanes
        self._drawn = drawn
        device, blocks, most = lanes.records.device, chooser.blocks, lanes.most * (MAX_LENGTH + 1)

        def room(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._edges = room(_TURNS, rows), room(_TURNS, rows), room(_TURNS, rows, _DIGITS), room(rows)
        self._rows = room(rows, 2, dtype=torch.float64)
        self._totals = room(rows, blocks, dtype=torch.float64)
        self._shares, self._rests = room(rows, blocks), room(rows, blocks)
        self._rules = room(most, _RULE, dtype=torch.int32)
        self._uniforms = room(most, 2, dtype=torch.float64)
        self.accepted = room(most, dtype=torch.int32)
        """By row of a step: whether its draft is, where it is judged here."""

    def deal(self, lanes: int, length: int) -> None:
        """The rows after each lane's text and its `length` drafts are to be judged."""
        self._deal(lanes, 0, length + 1, draws=False)

    def judge(self, logits: Tensor, rows: int, noise: Noise, said: Said | None, chosen: Tensor, first: int) -> None:
        """Those from `first` on, by the first `rows` logits: `chosen` gets their drafts, or what is drawn instead."""
        self._weigh(logits, rows, noise, said, chosen, first, self._drawn, None)

    def draw(self, logits: Tensor, lanes: int, noise: Noise, said: Said | None, depth: int, drafts: Tensor) -> None:
        """The lanes' drafts, so many levels down, by the first `lanes` logits, and note what from."""
        assert self._drawn is not None
        self._deal(lanes, depth, 1, draws=True)
        kept = self._drawn.shares[depth * lanes : (depth + 1) * lanes]
        self._weigh(logits, lanes, noise, said, drafts[:, depth], 0, None, kept)

    def _deal(self, lanes: int, depth: int, count: int, draws: bool) -> None:
        board = self._lanes
        deal_kernel[(lanes,)](
            board.records,
            board.drafts,
            board.out,
            self._rules,
            self._uniforms,
            depth,
            count,
            DRAWS=draws,
            LONGEST=MAX_LENGTH,
            OUT=OUT,
            AHEAD=NOISE_AHEAD,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )

    def _weigh(
        self,
        logits: Tensor,
        rows: int,
        noise: Noise,
        said: Said | None,
        chosen: Tensor,
        first: int,
        drawn: Drawn | None,
        kept: Tensor | None,
    ) -> None:
        chooser, chosen = self._chooser, chosen[first:]
        given, sizes, blocks = chooser.scored(logits, said, first)
        grid, every, edges = (rows, chooser.blocks), len(self._rows), self._edges
        numbers, rules, uniforms = noise.numbers[first:], self._rules[first:], self._uniforms[first:]
        looked = given, chooser.found, numbers, rules
        rejection.row_kernel[(rows,)](
            *looked[1:], self._rows, edges[-1], chooser.blocks, BLOCKS=blocks["BLOCKS"], **UNFUSED
        )
        edges[2].zero_()
        for turn in range(_TURNS):
            rejection.edge_kernel[grid](*looked, self._rows, edges, turn, every, *sizes, **blocks, num_warps=8)
        rejection.total_kernel[grid](*looked, self._rows, edges, self._totals, every, *sizes, **blocks)
        source = (None, None) if drawn is None else (drawn.shares, drawn.places)
        width = 0 if drawn is None else drawn.shares.shape[1]
        weighed = *looked, uniforms, self._rows, edges, self._totals, source
        found = self._shares, self._rests
        rejection.rest_kernel[grid](*weighed, kept, *found, every, width, *sizes, **blocks)
        rejection.draw_kernel[(rows,)](
            *weighed, *found, self.accepted[first:], chosen, every, width, *sizes, chosen.stride(0), **blocks
        )
