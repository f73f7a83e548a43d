"""The lanes of steps taken on the device: everything a step reads and leaves for the next one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.models.cuda.chooser import Noise
from outrider.models.cuda.graphs import Staging, bucket
from outrider.models.cuda.kernels.steps import absorb_kernel, place_kernel
from outrider.models.cuda.network import Network
from outrider.types import Lane

LAST, PREVIOUS, LENGTH, GENERATED, TARGET_SLOT, DRAFT_SLOT, GAP = range(7)
FIELDS = 7
"""Of a lane's state: its last token and the one before, cached tokens, generated tokens, its cache slots, and how many
rows a head's cache lacks."""

NOISE_AHEAD = 512
"""Generated positions per lane whose noise keys are on the device."""

MAX_LENGTH = 32
"""Longest chain."""


class Lanes:
    """Room for `most` lanes; those that only fill up a step stand in the spare slots."""

    def __init__(self, most: int, target_spare: int, draft_spare: int, device: torch.device) -> None:
        def room(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.most = most
        self._spare = {TARGET_SLOT: target_spare, DRAFT_SLOT: draft_spare}
        self._flat = room(most * (FIELDS + 1 + 2 * NOISE_AHEAD))
        parts = torch.split(self._flat, [most * FIELDS, most, most * 2 * NOISE_AHEAD])
        self.state, self._starts, self._words = parts
        self._temperatures = torch.zeros(most, dtype=torch.float64, device=device)
        self.drafts = room(most, MAX_LENGTH)
        self.noise = Noise.room(most * (MAX_LENGTH + 1), device)
        """Of the rows placed last whose logits are wanted."""
        self.out = room(most, 2 * MAX_LENGTH + 2)
        """What a step gave each lane: drafts accepted, tokens gained, drafts."""
        self._loading = Staging(self._flat.shape[0], device)

    @property
    def target_spare(self) -> int:
        return self._spare[TARGET_SLOT]

    def load(self, lanes: Sequence[Lane]) -> None:
        host = self._loading.free()
        most = self.most
        state = host[: most * FIELDS].view(most, FIELDS)
        starts = host[most * FIELDS :][:most]
        words = host[most * (FIELDS + 1) :].view(most, NOISE_AHEAD, 2)
        state[:] = torch.tensor([0, 0, 0, 0, self._spare[TARGET_SLOT], self._spare[DRAFT_SLOT], 0])
        temperatures = [0.0] * most
        for i, lane in enumerate(lanes):
            places = lane.slot, lane.draft_slot, lane.gap
            state[i] = torch.tensor([lane.last, lane.previous, lane.length, lane.generated, *places])
            starts[i] = lane.generated
            temperatures[i] = lane.temperature
            if lane.words is not None:
                words[i, : len(lane.words)] = lane.words
        self._loading.send(self._flat)
        self._temperatures.copy_(torch.tensor(temperatures, dtype=torch.float64))
        # As though the last token had just been gained.
        self.out[:, 0] = 0
        self.out[:, 1] = self.state.view(most, FIELDS)[:, LAST]

    def place(
        self, network: Network, slot: int, lanes: int, start: int, count: int, wanted: int, head: bool = False
    ) -> None:
        """Describe `count` rows of each lane in the network's tables; see `place_kernel`."""
        place_kernel[(lanes,)](
            self.state,
            self.drafts,
            *self._keys(),
            *_tables(network),
            self.noise.words,
            self.noise.temperatures,
            self._spare[slot],
            START=start,
            COUNT=count,
            WANTED=wanted,
            SLOT_FIELD=slot,
            LONGEST=MAX_LENGTH,
            AHEAD=NOISE_AHEAD,
            WIDTH=bucket(count),
            HEAD=head,
            num_warps=1,
        )

    def place_gained(self, network: Network, lanes: int, count: int, last: Tensor) -> None:
        """Describe a head's rows of what the last step, of `count` rows each, gained; `last` gets where each lane's
        last one is. See `absorb_kernel`."""
        absorb_kernel[(lanes,)](
            self.state,
            self.out,
            *self._keys(),
            *_tables(network),
            self.noise.words,
            self.noise.temperatures,
            last,
            self._spare[DRAFT_SLOT],
            COUNT=count,
            SLOT_FIELD=DRAFT_SLOT,
            LONGEST=MAX_LENGTH,
            AHEAD=NOISE_AHEAD,
            WIDTH=bucket(count),
            num_warps=1,
        )

    def _keys(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._words, self._temperatures, self._starts


def _tables(network: Network) -> tuple[Tensor, ...]:
    t = network.tables
    return t.tokens, t.slots, t.positions, t.indices, t.bases, t.wanted
