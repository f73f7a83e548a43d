"""Grammars in steps on the device: the tokens of the reference, and nobody else waits for them.

Networks without arithmetic (tests/support/simulated.py), everything else as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton")

import device_requests
from any_order import any_order, decoder, drafters, expected, made
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_gpu import DEVICE, TARGET, gpu_decoder
from tiny_gpu import VOCAB as TINY
from tiny_gpu_head import VOCAB

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.forced import NAME
from outrider.core.draft import Draft, Speculation
from outrider.core.model import Rows
from outrider.core.request import Forced, ResolvedParams
from outrider.core.step import PLAIN, Guide, Manner, Offer, SlotOutcome, StepShape, StepSlot
from outrider.drafters.none import NoDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.device_executor import steppable
from outrider.engine.device_lanes import _processing
from outrider.engine.engine import Engine
from outrider.engine.executor import StepOutput
from outrider.engine.request import Request
from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.lanes import MAX_LENGTH
from outrider.models.cuda.masks import SPARE, Masks
from outrider.models.cuda.said import Said
from outrider.sampling.draw import choices, perturb
from outrider.sampling.noise import Key, words
from outrider.sampling.params import SamplingParams
from outrider.sampling.warp import process, truncate

# The kernels


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


# The engine

PATTERNS = [
    r"(\{abc(d|ef){2,6}\}(ab|fe)c{3}){1,20}",
    r"([abcdef]{2}\{\}){3,9}",
    r"(cdcdab|\{ef\}|fedcba){4,12}",
    r"a[b-f]{4}",
]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 1.0, "top_p": 0.8, "seed": 3, "repetition_penalty": 1.2},
    {"temperature": 0.7, "seed": 5, "logprobs": 1, "min_tokens": 8},
]


def guided(number: int, prompt: list[int], asked: dict[str, Any], pattern: str, tokens: int = 24) -> Request:
    letters = pytest.importorskip("letters", exc_type=ImportError)
    pytest.importorskip("llguidance")
    one = made(number, prompt, SamplingParams(**asked, max_tokens=tokens, stop_token_ids=[letters.END]))
    one.params = replace(one.params, grammar=letters.compiled(pattern, VOCAB))
    return one


def requests_of(grammars: int, others: int, tokens: int = 24) -> list[Request]:
    found = [guided(i, [5, 6, 7 + i], PARAMS[i], PATTERNS[i], tokens) for i in range(grammars)]
    for i in range(others):
        params = SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=20 + 3 * i)
        found.append(made(grammars + i, [3, i], params))
    return found


def finish(engine: Engine, requests: list[Request]) -> None:
    for one in requests:
        engine.add(one)
    while not engine.idle:
        engine.step()
    assert engine.leaks() == []


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: FixedLength(3, tree=False),
    "plain": lambda: FixedLength(0),
    "auto": AutoLength,
}


@only_interpreted
@pytest.mark.parametrize(
    ("kind", "control", "others"),
    [
        ("none", "plain", 0),
        ("suffix", "fixed", 0),
        pytest.param("suffix", "auto", 0, marks=pytest.mark.slow),
        pytest.param("none", "plain", 1, marks=pytest.mark.slow),
        ("suffix", "auto", 1),
        pytest.param("model", "fixed", 1, marks=pytest.mark.slow),
        pytest.param("head", "fixed", 1, marks=pytest.mark.slow),
        pytest.param("mix", "auto", 1, marks=pytest.mark.slow),
        pytest.param("mix", "fixed", 1, marks=pytest.mark.slow),
    ],
)
def test_grammars_run_on_the_device(kind: str, control: str, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and beside others, whatever is drafted for those: the host's tokens, one at a time."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters(kind, target), CONTROLLERS[control]())
    requests = requests_of(4 - others, others, 14)
    if others:
        requests[-1].limit = 34  # so long that it is the last: a head drafts for grammars alone on the host
    truths = [expected(target, one) for one in requests]
    patched: Any = device_of(engine)._host
    patched.verify = None  # nothing may fall back to it
    finish(engine, requests)
    assert [one.tokens for one in requests] == truths
    for one in requests:
        assert len(one.logprobs) == (one.generated if one.params.logprobs is not None else 0)
    if control != "plain":
        assert sum(one.origins.count(NAME) for one in requests) > 3, "nothing was forced"


class InTurns:
    """A grammar that forces two tokens, then leaves a third of the vocabulary to choose from three times, again and
    again. Also where llguidance is not installed."""

    def __init__(self) -> None:
        self.at = 0

    def start(self) -> InTurns:
        return InTurns()

    def advance(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        at, tokens = self.at + len(path), np.arange(TINY)
        mask: NDArray[np.bool_] = tokens == 7 + at % 3 if at % 5 < 2 else (tokens + at) % 3 == 0
        return mask

    def forced(self, path: Sequence[int] = ()) -> Forced:
        at = self.at + len(path)
        tokens = tuple(7 + (at + i) % 3 for i in range(max(0, 2 - at % 5)))
        return Forced(tokens, len(tokens))

    def legal(self, draft: Draft) -> list[int]:
        return [node for node in range(len(draft)) if all(map(self._may, *self._along(draft, node)))]

    def _along(self, draft: Draft, node: int) -> tuple[list[list[int]], list[int]]:
        tokens = [draft.tokens[i] for i in draft.path(node)]
        return [tokens[:i] for i in range(len(tokens))], tokens

    def _may(self, path: Sequence[int], token: int) -> bool:
        mask = self.allowed(path)
        return mask is not None and bool(mask[token])

    def limit(self, path: Sequence[int]) -> str | None:
        return None


def computed(target: CudaDecoder, length: int, *, on_device: bool) -> list[Request]:
    """The second has no grammar, and is the last to end."""
    drafter = SuffixDrafter() if length else NoDrafter()
    engine = device_requests.stepped(target, drafter, FixedLength(length), on_device=on_device)
    if on_device:
        patched: Any = device_of(engine)._host
        patched.verify = None  # nothing may fall back to it
    requests = []
    for i, asked in enumerate(PARAMS[:3]):
        one = device_requests.made(i, [5 + i, 6, 7], SamplingParams(**asked, max_tokens=10 if i == 1 else 6), TINY)
        if i != 1:
            one.params = replace(one.params, grammar=InTurns())
        requests.append(one)
    finish(engine, requests)
    return requests


def test_grammars_with_networks_that_compute() -> None:
    """On a GPU, where there is one: a lane that sits out runs its last row again, and changes nobody's bits."""
    target = gpu_decoder(TARGET, max_batch=4)
    truths = [one.tokens for one in computed(target, 0, on_device=False)]
    for one in (truths[0], truths[2]):
        assert all(InTurns()._may(one[3 : 3 + i], token) for i, token in enumerate(one[3:]))
    for length in (0, 3):
        found = computed(target, length, on_device=True)
        assert [one.tokens for one in found] == truths
    assert sum(one.origins.count(NAME) for one in found) > 2, "nothing was forced"


@only_interpreted
def test_a_mask_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above fail where masks do not arrive: what would be said without them is something else."""
    simulate(monkeypatch)
    target = decoder()
    requests = requests_of(2, 1)
    truths = [expected(target, one) for one in requests]
    send = Masks.send
    monkeypatch.setattr(Masks, "send", lambda self, wanted: send(self, [[None] * len(masks) for masks in wanted]))
    finish(Engine(target, drafters("none", target), FixedLength(0)), requests)
    assert [one.tokens == truth for one, truth in zip(requests, truths, strict=True)] == [False, False, True]


@only_interpreted
@pytest.mark.parametrize("forced", [True, False])
def test_what_is_forced_is_drafted(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without a drafter too; unless the caller will not have it."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("suffix", target), FixedLength(4))
    one = guided(0, [5, 6], {"temperature": 0.9, "seed": 2}, r"(abcdef\{\}fedcba\{a\}){2}")
    one.speculation = Speculation(forced=forced)
    finish(engine, [one])
    assert one.tokens == expected(target, one)
    assert (one.origins.count(NAME) > 10) == forced


@only_interpreted
def test_nobody_else_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain requests gain a token by every step; one with a grammar by every other, while there are such."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("none", target), FixedLength(0))
    device = device_of(engine)
    gained: list[set[int]] = []
    collect = device._collect

    def noted(running: list[Request], started: float) -> StepOutput:
        output = collect(running, started)
        gained.append({request.id for request in output.requests})
        return output

    monkeypatch.setattr(device, "_collect", noted)
    finish(engine, requests_of(1, 2))
    both = [each for each in gained if each & {1, 2}]
    assert len(both) == 23, "as many steps as the longest has tokens: none is waited for"
    assert all({1, 2} <= each for each in both[:20])
    took = [0 in each for each in both]
    assert took[:20] == [True, False] * 10
    alone = gained[len(both) + 1 :]  # the next one was launched while the others ran
    assert alone
    assert all(each == {0} for each in alone), "a step that nobody can take part in is not taken"


@only_interpreted
def test_a_head_drafts_on_the_host_for_grammars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("head", target), FixedLength(3))
    one = guided(0, [5, 6, 7], PARAMS[0], PATTERNS[1])
    assert steppable(one.params)
    finish(engine, [one])
    assert one.tokens == expected(target, one)
    assert one.origins.count("head") > 0


@only_interpreted
@pytest.mark.parametrize(
    ("kind", "controller", "seed"),
    [
        ("mix", "fickle", 2),
        pytest.param("ngram", "fickle", 1, marks=pytest.mark.slow),
        pytest.param("mix", "auto", 3, marks=pytest.mark.slow),
        pytest.param("model", "fickle", 4, marks=pytest.mark.slow),
        pytest.param("suffix", "auto", 5, marks=pytest.mark.slow),
        pytest.param("none", "fixed", 6, marks=pytest.mark.slow),
        pytest.param("head", "fickle", 7, marks=pytest.mark.slow),
    ],
)
def test_grammars_in_any_order(kind: str, controller: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = pytest.importorskip("letters", exc_type=ImportError)
    pytest.importorskip("llguidance")
    grammars = [letters.compiled(pattern, VOCAB) for pattern in PATTERNS]
    any_order(seed, kind, 30, monkeypatch, controller, grammars)


@only_interpreted
def test_no_recording_is_made_for_grammars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(AutoLength, "lengths", (0, 2))  # the interpreter is slow
    monkeypatch.setattr(AutoLength, "offered_lengths", (5,))
    target = decoder(batch=2)
    expected(target, made(9, [1], SamplingParams(temperature=0, max_tokens=1)))  # a first token needs a pass before it
    engine = Engine(target, drafters("suffix", target), AutoLength())
    device = device_of(engine)
    for recording in device.recordings():
        recording.record()
    finish(engine, requests_of(1, 1))
    assert device.late == 0
