"""The lanes of steps taken on the device: everything a step reads and leaves for the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.core.step import Manner, StepSlot
from outrider.models.cuda.chooser import Noise
from outrider.models.cuda.graphs import Staging, oldest
from outrider.models.cuda.kernels import steps
from outrider.models.cuda.network import Network
from outrider.models.cuda.said import Said

NOISE_AHEAD = 512
"""Generated positions per lane whose noise keys are on the device."""

MAX_LENGTH = 32
"""Longest chain, and most nodes of a tree."""

WIDTH = 64
"""Rows of a lane in one pass, at most."""

_MOST = 2**31 - 1

OUT = 4 * MAX_LENGTH + 3
"""Int32 that a step gives a lane: drafts accepted, tokens gained, drafts; of a tree its parents and claims; whether the
drafts were offered."""

TARGET_SLOT, DRAFT_SLOT = steps.TARGET_SLOT.value, steps.DRAFT_SLOT.value
_NUMBERS, _START, _WORDS = steps.NUMBERS.value, steps.START.value, steps.WORDS.value
_REJECTS = steps.REJECTS.value
STRIDE = _WORDS + 2 * NOISE_AHEAD
"""Int32 of a lane's record.

    tokens in the target's cache; tokens generated; its cache slots in the target and in the draft model or head; how
    many tokens a head's cache has no rows for, and how many it has rows for; the first position whose token is known
    here; top_k; min_tokens; whether scores are processed; logprobs and one, 0:
    none are reported; what guides it (`kernels/steps.py`)
    temperature, top_p, log(min_p): fp64 each
    where the rejection rule judges its drafts, the tokens it generates at most; else 0
    the generated position of the first noise key
    noise keys
"""


class Lanes:
    """Room for `most` lanes; those that are empty stand in the spare slots.

    Whatever is done here takes effect for the steps launched afterwards, and waits for nothing.
    """

    def __init__(
        self, most: int, target_spare: int, draft_spare: int, capacity: int, vocab: int, device: torch.device
    ) -> None:
        """`capacity`: tokens of a lane's text, at most. `vocab`: tokens that may be chosen."""

        def room(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.most, self.capacity = most, capacity
        self._spare = {TARGET_SLOT: target_spare, DRAFT_SLOT: draft_spare}
        self.records = room(most, STRIDE)
        self.numbers = self.records.view(torch.float64)
        """The records again, for those of its fields that are."""
        self.text = room(most, capacity)
        """The token at each position, from where it is known on."""
        self.drafts = room(most, MAX_LENGTH)
        """-1: none."""
        self.noise = Noise.room(most * (MAX_LENGTH + 1), device)
        """Of the rows placed last whose logits are wanted."""
        self.said = Said(most, vocab, self.drafts)
        self.out = room(most, OUT)
        """What a step gave each lane."""
        self._empty = torch.tensor(
            [0, 0, target_spare, draft_spare, *[0] * (_WORDS - 4)], dtype=torch.int32, device=device
        )
        self._staged = [Staging(most * STRIDE, device) for _ in range(4)]
        self._tails = [Staging(5 * most, device) for _ in range(4)]
        self._renewed = [Staging(STRIDE, device) for _ in range(2 * most)]
        """As many as may be renewed at once: none waits for a step under way."""
        self.clear()

    @property
    def target_spare(self) -> int:
        return self._spare[TARGET_SLOT]

    def clear(self) -> None:
        """Empty them all."""
        self.records[:, :_WORDS] = self._empty

    def vacate(self, number: int) -> None:
        self.records[number, :_WORDS] = self._empty

    def seat(self, lanes: Mapping[int, StepSlot]) -> None:
        """Put requests into lanes, by their numbers."""
        records, tails = oldest(self._staged), oldest(self._tails)
        count, device = len(lanes), self.records.device
        host = records.free().view(self.most, STRIDE)
        numbers, integers = host.view(torch.float64).numpy(), host.numpy()
        known_text = tails.free()[: 5 * count].view(5, count).numpy()
        # Of each lane: its number, two places in `text`, the tokens there.
        for i, (number, lane) in enumerate(lanes.items()):
            known = max(0, lane.length - 1)
            absorbed = max(0, lane.length - lane.gap - (lane.features is not None))
            fields = lane.length, lane.generated, lane.slot, lane.draft_slot, lane.gap, absorbed, known, lane.top_k
            reported = 0 if lane.logprobs is None else 1 + lane.logprobs
            guide = steps.SITS_OUT.value if lane.guided else steps.UNGUIDED.value
            integers[i, :_NUMBERS] = *fields, *_processing(lane), reported, guide
            least = math.log(lane.min_p) if lane.min_p > 0 else -math.inf
            numbers[i, _NUMBERS // 2 : _START // 2] = lane.temperature, lane.top_p, least
            integers[i, _REJECTS], integers[i, _START] = min(lane.rejects, _MOST), lane.generated
            if lane.words is not None:
                integers[i, _WORDS : _WORDS + lane.words.numel()] = lane.words.flatten().numpy()
            first, second = (lane.previous, lane.last) if lane.length else (lane.last, 0)
            place = number * self.capacity + known
            known_text[:, i] = number, place, place + 1, first, second
        sent = torch.empty(count, STRIDE, dtype=torch.int32, device=device)
        records.send(sent.view(-1), count * STRIDE)
        text = torch.empty(5, count, dtype=torch.int32, device=device)
        tails.send(text.view(-1), 5 * count)
        places, tokens = text[:3].long(), text[3:]
        self.text.view(-1)[places[1:].flatten()] = tokens.flatten()
        self.records[places[0]] = sent
        for number, lane in lanes.items():
            if lane.processing is not None:
                self.said.seat(number, lane.processing)

    def renew(self, number: int, generated: int, words: Tensor) -> None:
        """Noise keys [positions, 2] from the generated position `generated` on, which it has reached at least."""
        staged = oldest(self._renewed)
        host, count = staged.free(), 1 + words.numel()
        host[0] = generated
        host[1:count] = words.flatten()
        staged.send(self.records[number, _START:], count)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Into other lanes, which are empty, as they are theirs."""
        for source, target in zip(sources, targets, strict=True):
            for table in (self.records, self.text):
                table[target] = table[source]
            self.vacate(source)
        self.said.move(sources, targets)

    def skip(self, lanes: int, keep: int) -> None:
        """Of what waits for a head, leave out all but the last `keep` tokens of each lane."""
        steps.skip_kernel[(lanes,)](self.records, keep, STRIDE=STRIDE, num_warps=1)

    def length(self, number: int) -> tuple[int, int, int]:
        """Tokens in the target's cache, and of those the head's lacks and has; waits for the device."""
        fields = self.records[number, :_NUMBERS].tolist()
        return fields[steps.LENGTH.value], fields[steps.GAP.value], fields[steps.ABSORBED.value]

    def chosen_by(self, manner: Manner) -> tuple[Noise | None, Said | None]:
        """What the rows placed last are chosen by."""
        return (
            self.noise if manner >= Manner.DRAWN else None,
            self.said if manner >= Manner.FULL else None,
        )

    def count(self, lanes: int) -> None:
        """What a step gained is said now; see `count_kernel`."""
        steps.count_kernel[(lanes,)](
            self.records,
            self.out,
            self.said.table,
            self.said.stride,
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )

    def place(
        self, network: Network, slot: int, lanes: int, start: int, count: int, wanted: int, head: bool = False
    ) -> None:
        """Describe `count` rows of each lane in the network's tables; see `place_kernel`."""
        steps.place_kernel[(lanes,)](
            self.records,
            self.numbers,
            self.text,
            self.drafts,
            *_tables(network),
            self.noise.words,
            self.noise.numbers,
            self.said.marks,
            start,
            count,
            wanted,
            self.capacity,
            self._spare[slot],
            network.tokens,
            SLOT=slot,
            HEAD=head,
            LONGEST=MAX_LENGTH,
            AHEAD=NOISE_AHEAD,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )

    def place_waiting(
        self,
        network: Network,
        lanes: int,
        count: int,
        leave: int = 0,
        index: Tensor | None = None,
        last: Tensor | None = None,
        ring: int = 1,
    ) -> None:
        """Describe the next rows of what waits for a draft model or, with `index`, for a head, at most `count` per lane
        and all but the last `leave`: `index` gets where their features are, `last` where each lane's last row is. See
        `absorb_kernel`."""
        steps.absorb_kernel[(lanes,)](
            self.records,
            self.numbers,
            self.text,
            *_tables(network),
            self.noise.words,
            self.noise.numbers,
            self.said.marks,
            index,
            last,
            count,
            leave,
            self.capacity,
            self._spare[DRAFT_SLOT],
            network.tokens,
            HEAD=index is not None,
            RING=ring,
            AHEAD=NOISE_AHEAD,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
            num_warps=1,
        )


def _processing(lane: StepSlot) -> tuple[int, int]:
    """The tokens it must generate, and whether its scores are processed at all."""
    asked = lane.processing
    return (0, 0) if asked is None else (min(asked.min_tokens, _MOST), 1)


def _tables(network: Network) -> tuple[Tensor, ...]:
    t = network.tables
    return t.tokens, t.slots, t.positions, t.indices, t.bases, t.wanted
