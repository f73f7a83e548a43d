"""What the host offers to the lanes of the next step, and what may follow in those that are guided, on its way to the
device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from outrider.core.step import Guide, Offer
from outrider.models.cuda.graphs import Staging, oldest
from outrider.models.cuda.kernels import align
from outrider.models.cuda.kernels.align import align_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, OUT, STRIDE, WIDTH, Lanes

OFFERED = 40
"""Tokens of an offer, at most: those of the step under way, and a chain after them."""

_FIELDS = align.TOKENS.value


class Offers:
    """One entry per lane: levels drafted on the device; where the offer starts and its tokens, none where there is no
    offer; how many masks go with it, and the first of them. Entries are replaced as a whole before each step that
    reads them, so none outlives its request."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        device = lanes.records.device
        self._table = torch.zeros(lanes.most, _FIELDS + OFFERED, dtype=torch.int32, device=device)
        self._staged = [Staging(self._table.numel(), device) for _ in range(4)]
        self._levels: int | None = 0
        """What is said of every lane where nothing is offered to any; None: something is."""

    def send(self, drafted: int, offers: Mapping[int, Offer], guides: Mapping[int, Guide] = {}) -> None:
        """For the steps launched from now on; waits for nothing. Lanes with a guide have no other offer."""
        if not offers and not guides and self._levels == drafted:
            return
        places = self._lanes.said.masks.send([guide.masks for guide in guides.values()]) if guides else []
        staged = oldest(self._staged)
        entries = staged.free().view(self._table.shape).numpy()
        entries[:, :_FIELDS] = drafted, 0, 0, 0, 0
        masks = dict(zip(guides, places, strict=True))
        for number, offer in (*offers.items(), *((number, guide.offer) for number, guide in guides.items())):
            tokens, own = offer.tokens[:OFFERED], masks.get(number, range(0))
            entries[number, 1:_FIELDS] = offer.start, len(tokens), len(own), own.start
            entries[number, _FIELDS : _FIELDS + len(tokens)] = tokens
        staged.send(self._table.view(-1))
        self._levels = None if offers or guides else drafted

    def align(self, lanes: int, length: int) -> None:
        """Put each lane's drafts in place; see `align_kernel`."""
        board = self._lanes
        align_kernel[(lanes,)](
            board.records,
            board.text,
            self._table,
            board.drafts,
            board.out,
            length,
            board.capacity,
            OFFERED=OFFERED,
            LONGEST=MAX_LENGTH,
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )
