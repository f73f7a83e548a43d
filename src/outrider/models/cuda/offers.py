"""What the host offers to the lanes of the next step, and what may follow in those that are guided, on its way to the
device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.core.step import Guide, Offer
from outrider.models.cuda.graphs import Staging, oldest
from outrider.models.cuda.kernels import align
from outrider.models.cuda.kernels.align import align_kernel
from outrider.models.cuda.lanes import MAX_LENGTH, OUT, STRIDE, WIDTH, Lanes

OFFERED = 40
"""Tokens of an offer, at most: those of the step under way, and a chain after them."""

FURTHER = 64
"""Guides that there is room for beside one for every lane."""

_FIELDS = align.TOKENS.value


class Offers:
    """One entry per lane: levels drafted on the device; where the offer starts and its tokens, none where there is no
    offer; how many masks go with it, and the first of them; how many of the tokens come before those; and the entry
    that counts where others have come, 0: none. Such entries are behind those of the lanes. Entries are replaced as a
    whole before each step that reads them, so none outlives its request."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        device = lanes.records.device
        self._table = torch.zeros(lanes.most + FURTHER, _FIELDS + OFFERED, dtype=torch.int32, device=device)
        self._staged = [Staging(self._table.numel(), device) for _ in range(4)]
        self._levels: int | None = 0
        """What is said of every lane where nothing is offered to any; None: something is."""

    def send(self, drafted: int, offers: Mapping[int, Offer], guides: Mapping[int, Guide] = {}) -> None:
        """For the steps launched from now on; waits for nothing. Lanes with a guide have no other offer."""
        if not offers and not guides and self._levels == drafted:
            return
        staged = oldest(self._staged)
        entries = staged.free().view(self._table.shape).numpy()
        entries[:, :_FIELDS] = drafted, *[0] * (_FIELDS - 1)
        for number, offer in offers.items():
            tokens = offer.tokens[:OFFERED]
            entries[number, 1:_FIELDS] = offer.start, len(tokens), 0, 0, 0, 0
            entries[number, _FIELDS : _FIELDS + len(tokens)] = tokens
        if guides:
            self._guide(entries, guides)
        staged.send(self._table.view(-1))
        self._levels = None if offers or guides else drafted

    def _guide(self, entries: NDArray[np.int32], guides: Mapping[int, Guide]) -> None:
        """Every lane's first guide, then as many of the others as there is room for."""
        rows = {number: [guide] for number, guide in guides.items()}
        left = FURTHER
        for own in rows.values():
            while left and (other := own[-1].otherwise) is not None:
                own.append(other)
                left -= 1
        flat = [guide for own in rows.values() for guide in own]
        places = iter(self._lanes.said.masks.send([guide.masks for guide in flat]))
        further = self._lanes.most
        for lane, own in rows.items():
            at = lane
            for guide in own:
                tokens, masks = guide.offer.tokens[:OFFERED], next(places)
                more, further = (further, further + 1) if guide is not own[-1] else (0, further)
                entries[at, 1:_FIELDS] = guide.offer.start, len(tokens), len(masks), masks.start, guide.since, more
                entries[at, _FIELDS : _FIELDS + len(tokens)] = tokens
                at = more

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
