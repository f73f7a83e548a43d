"""Masks of grammars in the device's steps: choices are the reference's, and a lane takes part where it is guided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton")

import device_requests
from any_order import decoder
from simulated import only_interpreted, simulate
from tiny_gpu import DEVICE
from tiny_gpu_head import VOCAB

from outrider.core.draft import Draft
from outrider.core.model import Rows
from outrider.core.request import Forced, ResolvedParams
from outrider.core.step import PLAIN, Guide, Manner, Offer, SlotOutcome, StepShape, StepSlot
from outrider.engine.device_lanes import _processing
from outrider.engine.request import Request
from outrider.models.cuda import offers
from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.lanes import MAX_LENGTH
from outrider.models.cuda.masks import SPARE, Masks
from outrider.models.cuda.said import Said
from outrider.sampling.draw import choices, perturb
from outrider.sampling.noise import Key, words
from outrider.sampling.params import SamplingParams
from outrider.sampling.warp import process, truncate


class AtRandom:
    """A grammar that forbids at random, by path: of a path of two tokens what has a chance, of one of three nothing is
    known."""

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab, self.seed = vocab, seed

    def start(self) -> AtRandom:
        return self

    def advance(self, tokens: Sequence[int]) -> None:
        pass

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        if len(path) == 3:
            return None
        mask = np.random.default_rng([self.seed, *path]).random(self.vocab) < 0.2
        mask[IMPOSSIBLE] = True
        if len(path) == 2:
            mask[:] = False
            mask[IMPOSSIBLE] = True
        return mask

    def forced(self, path: Sequence[int] = ()) -> Forced:
        return Forced()

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        return ()

    def legal(self, draft: Draft) -> list[int]:
        return list(range(len(draft)))

    def limit(self, path: Sequence[int]) -> str | None:
        return None


IMPOSSIBLE = [5, 44]
"""Tokens whose logits are -inf."""
DRAWN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.2},
]
BESIDE: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.3, "logit_bias": {4: 1.5, 5: 4.0}},
    {"min_tokens": 3, "stop_token_ids": list(range(0, 60, 2))},
]
CHAIN = 3


def choice(z: torch.Tensor, p: ResolvedParams, key: Key) -> int:
    """The reference's, of processed logits [1, V]."""
    return int(choices(perturb(truncate(z, p), [key]) if p.temperature else z)[0])


@pytest.mark.parametrize("vocab", [90, 1500])
@pytest.mark.parametrize("greedy", [True, False])
def test_masked_choices_are_the_reference_s(vocab: int, greedy: bool) -> None:
    """Rows along a chain: two that leave something, one that would leave nothing, one that nothing is known of. Lanes
    between have no mask."""
    asked = [drawn | beside for drawn in (DRAWN[:1] if greedy else DRAWN) for beside in BESIDE]
    requests = list[Request]()
    for i, each in enumerate([*asked, *DRAWN]):
        params = SamplingParams(**each, seed=i, max_tokens=30)
        one = device_requests.made(i, [1, 9, 3], params, vocab)
        if i < len(asked):
            one.params = replace(one.params, grammar=AtRandom(vocab, i))
        requests.append(one)
    if greedy:
        requests = [one for one in requests if not one.params.temperature]
    count, rows = CHAIN + 1, (CHAIN + 1) * len(requests)
    drafts = torch.full((len(requests), MAX_LENGTH), -1, dtype=torch.int32)
    drafts[:, :CHAIN] = torch.tensor([41, 9, 41])
    said = Said(len(requests), vocab, drafts.to(DEVICE))
    noise = Noise.room(rows, DEVICE)
    logits = torch.randn(rows, vocab + 7, generator=torch.Generator().manual_seed(5)) * 2
    logits[:, vocab:] = 1e4
    logits[:, IMPOSSIBLE] = -math.inf
    found, unmasked, masks, marked = list[int](), list[int](), [], []
    for number, one in enumerate(requests):
        p, asks = one.params, _processing(one)
        if asks is not None:
            said.seat(number, asks)
        least = math.log(p.min_p) if p.min_p > 0 else -math.inf
        for i in range(count):
            row, path = number * count + i, drafts[number, :i].tolist()
            early = i < p.min_tokens
            mask = 0
            if p.grammar is not None:
                masks.append([one.history.walk(p.grammar).allowed(path)])
                mask = len(masks)
            marked.append([number if asks else -1, i, int(early), 0, mask])
            key = Key(p.seed, p.choice, i)
            noise.words[row] = words([key])[0].to(DEVICE)
            noise.numbers[row] = torch.tensor([p.temperature, p.top_p, least, p.top_k], dtype=torch.float64)
            raw = logits[row : row + 1, :vocab]
            found.append(choice(process(raw, p, one.history, [path]), p, key))
            free = replace(p, grammar=None)
            unmasked.append(choice(process(raw, free, one.history, [path]), free, key))
    said.masks = Masks(len(masks), vocab, 0, DEVICE)
    places = said.masks.send(masks)
    assert [place.start for place in places] == list(range(len(masks)))
    said.marks[:rows] = torch.tensor(marked, dtype=torch.int32)
    chosen = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    Chooser(rows, vocab, DEVICE).choose(logits.to(DEVICE), rows, None if greedy else noise, chosen, said)
    assert chosen.tolist() == found
    changed = sum(a != b for a, b in zip(found, unmasked, strict=True))
    assert rows // 6 < changed <= rows // 2, "no test"


def test_what_a_mask_forbids_need_not_be_a_number() -> None:
    """As in the reference, where the mask comes before anybody looks."""
    vocab, masks = 90, []
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(5))
    for row, token in enumerate((7, 8)):
        logits[row, token] = math.nan
        masks.append([np.arange(vocab) >= 8])
    said = Said(3, vocab, torch.zeros(3, MAX_LENGTH, dtype=torch.int32, device=DEVICE))
    said.masks.send([*masks, [None]])
    said.marks[:3] = torch.tensor([[-1, 0, 0, 0, 1 + row] for row in range(3)], dtype=torch.int32)
    chosen = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    Chooser(3, vocab, DEVICE).choose(logits.to(DEVICE), 3, None, chosen, said)
    assert chosen.tolist() == [8 + int(logits[0, 8:].argmax()), -1, int(logits[2].argmax())]


def test_every_lane_has_room_for_a_mask() -> None:
    masks = Masks(4, 40, 3, DEVICE)
    rng = np.random.default_rng(3)
    wanted: list[list[NDArray[np.bool_] | None]] = [[rng.random(40) < 0.5 for _ in range(30)] for _ in range(4)]
    wanted[1][0] = None
    places = masks.send(wanted)
    assert [len(place) for place in places] == [30, 30, 7, 1]
    assert places[-1].stop == 4 + SPARE
    bits = np.unpackbits(masks.table.cpu().numpy().view(np.uint8), axis=1, bitorder="little")[:, :40]
    for place, own in zip(places, wanted, strict=True):
        for row, mask in zip(place, own, strict=False):
            assert (bits[row] == (1 if mask is None else mask)).all()


# A lane that is guided


def only(*tokens: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(VOCAB), tokens)


def guide(start: int, tokens: Sequence[int], *masks: NDArray[np.bool_] | None) -> Guide:
    return Guide(Offer(start, tokens, "told"), masks)


def several(start: int, came: Sequence[int], only_ones: Sequence[int]) -> Guide:
    """Behind each token that may have come meanwhile one that alone may follow."""
    found = None
    for token, following in zip(reversed(came), reversed(only_ones), strict=True):
        found = guide(start, [token], only(following))._replace(since=1, otherwise=found)
    assert found is not None
    return found


def outcomes(target: CudaDecoder, guides: list[Guide | None], shape: StepShape) -> list[SlotOutcome]:
    """Of one lane's steps, launched two at a time."""
    stepper = target.stepper(None)
    assert stepper is not None
    slot = target.open()
    target.forward([Rows.chain(slot, [5, 6], logits=())])
    target.commit(slot, range(2))
    one = StepSlot(slot, 0, last=7, previous=6, length=2, generated=0, temperature=0, words=None, guided=True)
    stepper.seat({0: one})
    found = []
    for number, each in enumerate(guides):
        stepper.launch(1, shape, Manner.FULL, guides={0: each} if each else {})
        if number:
            found.append(stepper.collect().lanes[0])
    target.close(slot)
    return [*found, stepper.collect().lanes[0]]


@only_interpreted
@pytest.mark.parametrize("shape", [PLAIN, StepShape(0, 4)])
def test_a_lane_takes_part_where_it_is_guided(shape: StepShape, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second guide was made for the same text as the first, and knows how it goes on."""
    simulate(monkeypatch)
    target = decoder()
    first = guide(3, [], only(4))
    cases = {
        "none": (None, []),
        "stale": (guide(3, [], only(1)), []),
        "of another text": (guide(3, [5], only(4), only(1)), []),
        "of a text to come": (guide(5, [], only(1)), []),
        "goes on": (guide(3, [4], only(4), only(9)), [9]),
        "knows more": (guide(3, [4, 9], only(4), only(9), only(10)), [9, 10] if shape.verified else [9]),
        "any may": (guide(3, [4], only(4), None), None),
        "behind what came": (guide(3, [4], only(9))._replace(since=1), [9]),
        "behind what is to come": (guide(3, [4, 9], only(10))._replace(since=2), []),
        "one of several": (several(3, [5, 4, 4], [1, 9, 2]), [9]),
        "none of several": (several(3, [5, 6, 7, 8], [1, 9, 2, 3]), []),
    }
    for name, (second, gained) in cases.items():
        one, two, three = outcomes(target, [first, second, None], shape)
        assert one.tokens == (4,), name
        if gained is None:
            assert len(two.tokens) == 1, name
        else:
            assert list(two.tokens) == gained, name
        assert three.tokens == (), name


@only_interpreted
def test_no_more_is_verified_than_there_are_masks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    path = [4, 9, 10, 11]
    for count in range(1, 6):
        masks = [only(token) for token in (*path, 2)][:count]
        (one,) = outcomes(target, [guide(3, path, *masks)], StepShape(0, 4))
        assert list(one.tokens) == [*path, 2][:count]
        assert one.accepted == len(one.drafts) == count - 1
        assert one.offered


@only_interpreted
def test_every_lane_is_guided_before_any_is_in_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """More guides than there is room for: the last ones of the last lanes are left out."""
    simulate(monkeypatch)
    monkeypatch.setattr(offers, "FURTHER", 3)
    target = decoder()
    stepper = target.stepper(None)
    assert stepper is not None
    for number in range(3):
        slot = target.open()
        target.reserve({slot: 8})
        lane = StepSlot(slot, 0, 7, 0, 0, generated=0, temperature=0, words=None, guided=True)
        stepper.seat({number: lane})
    first = {number: guide(1, [], only(4)) for number in range(3)}
    stepper.launch(3, PLAIN, Manner.FULL, guides=first)
    ways = {0: several(1, [5, 6, 4], [1, 2, 9]), 1: several(1, [5, 4, 6], [1, 9, 2]), 2: several(1, [5, 4], [1, 9])}
    stepper.launch(3, PLAIN, Manner.FULL, guides=ways)
    stepper.collect()
    assert [lane.tokens for lane in stepper.collect().lanes] == [(9,), (9,), ()]


@only_interpreted
def test_a_mask_is_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next one looks at none: that should not be taken with such lanes, and gives them nothing."""
    simulate(monkeypatch)
    target = decoder()
    stepper = target.stepper(None)
    assert stepper is not None
    slot = target.open()
    target.reserve({slot: 8})
    stepper.seat({0: StepSlot(slot, 0, 7, 0, 0, generated=0, temperature=0, words=None, guided=True)})
    stepper.launch(1, PLAIN, Manner.FULL, guides={0: guide(1, [], only(4))})
    stepper.launch(1, PLAIN, Manner.GREEDY)
    assert [stepper.collect().lanes[0].tokens for _ in range(2)] == [(4,), ()]
