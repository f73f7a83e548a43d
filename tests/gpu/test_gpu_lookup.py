"""Lookup beside steps on the device: what is offered a step late changes the speed and never the text.

Networks without arithmetic (tests/support/simulated.py), everything else as on a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import simulated
from any_order import any_order, check_drafts, decoder, drafters, expected, made
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_engine import finish
from tiny_gpu_head import VOCAB
from told import KINDS, Told, ToldBeside

from outrider.bench.forced_kernel import forced_accept_kernel
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import Speculation
from outrider.core.drafter import Drafter
from outrider.core.model import Rows
from outrider.core.step import Guide, Manner, Offer, StepShape, StepSlot
from outrider.drafters.mix import MixDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.router import RouterDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.lanes import MAX_LENGTH, OUT, STRIDE, WIDTH
from outrider.models.cuda.network import Network
from outrider.models.cuda.offers import Offers
from outrider.models.cuda.stepper import DeviceStepper
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted

PROMPTS = [[5, 6, 7], [3], [8, 2, 8, 2], [1, 2, 3, 4, 5, 6]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=16),
    SamplingParams(temperature=0.9, seed=7, max_tokens=12),
    SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[10]),
    SamplingParams(temperature=1.0, top_p=0.8, min_p=0.05, seed=3, max_tokens=12),
]


TRUTHS: dict[int, list[int]] = {}
"""What they become; written when first asked for."""


def made_requests(count: int = 4) -> list[Request]:
    return [made(i, prompt, params) for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))][:count]


def told(target: CudaDecoder, kind: str, head: bool) -> tuple[Told, dict[int, list[int]]]:
    """And the texts themselves, one token at a time on the host."""
    if not TRUTHS:
        TRUTHS.update({one.id: expected(target, one) for one in made_requests()})
    truths = dict(TRUTHS)
    if head:
        return ToldBeside(drafters("head", target), truths, kind, VOCAB), truths
    return Told(truths, kind, VOCAB), truths


# What the device does with an offer


def stepped(target: CudaDecoder, offers: list[Offer | None], shape: StepShape) -> list[Any]:
    """Outcomes of one lane's steps, launched two at a time."""
    stepper = target.stepper(None)
    assert stepper is not None
    slot = target.open()
    target.forward([Rows.chain(slot, [5, 6], logits=())])
    target.commit(slot, range(2))
    stepper.seat({0: StepSlot(slot, 0, last=7, previous=6, length=2, generated=0, temperature=0, words=None)})
    outcomes = []
    stepper.launch(1, shape, Manner.GREEDY, {0: offers[0]} if offers[0] else {})
    for offer in offers[1:]:
        stepper.launch(1, shape, Manner.GREEDY, {0: offer} if offer else {})
        outcomes.append(stepper.collect().lanes[0])
    target.close(slot)
    return [*outcomes, stepper.collect().lanes[0]]


def offer(start: int, *tokens: int) -> Offer:
    return Offer(start, tokens, "told")


def test_offers_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step's offers, made before the first step is known: it gives three tokens."""
    simulate(monkeypatch)
    target = decoder()
    one = made(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=40))
    t = expected(target, one)
    shape = StepShape(0, 4)
    wrong = (t[5] + 1) % VOCAB
    first = offer(3, t[3], t[4], wrong)
    cases = {
        "made before the first step": (offer(3, *t[3:20]), t[6:10]),
        "made after it": (offer(6, *t[6:8]), t[6:8]),
        "shorter than the step": (offer(3, *t[3:8]), t[6:8]),
        "right so far, wrong from now on": (offer(3, *t[3:6], 0, 0, 0, 0), [0, 0, 0, 0]),
        "no longer than what came": (offer(3, *t[3:6]), None),
        "wrong in what came": (offer(3, t[3], t[4], wrong, *t[6:12]), None),
        "one off": (offer(3, *t[4:20]), None),
        "of a text that is not there yet": (offer(9, *t[9:20]), None),
        "of another text": (offer(1, *[(x + 1) % VOCAB for x in t[1:20]]), None),
        "none": (None, None),
    }
    for name, (second, drafts) in cases.items():
        before, after = stepped(target, [first, second], shape)
        assert (before.accepted, before.offered, before.tokens) == (2, True, tuple(t[3:6])), name
        assert after.offered == (drafts is not None), name
        assert after.drafts == tuple(drafts or ()), name
        right = next(
            (i for i, (a, b) in enumerate(zip(drafts or (), t[6:], strict=False)) if a != b), len(drafts or ())
        )
        assert after.accepted == right, name
        assert after.tokens == tuple(t[6 : 7 + right]), name


# The text


@pytest.mark.parametrize(
    ("head", "auto"), [*(pytest.param(head, False, marks=pytest.mark.slow) for head in (False, True)), (True, True)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_offers_change_no_token(kind: str, head: bool, auto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and sampled, four at a time, to their limits and to a stop token, whatever is offered."""
    simulate(monkeypatch)
    target = decoder()
    drafter, truths = told(target, kind, head)
    engine = Engine(target, drafter, AutoLength() if auto else FixedLength(3))
    device_of(engine)
    requests = made_requests()
    finish(engine, *requests)
    assert [one.tokens for one in requests] == list(truths.values())
    found = [one.sources.get("told", (0, 0)) for one in requests]
    drafted, accepted = (sum(each[i] for each in found) for i in (0, 1))
    assert sum(one.origins.count("told") for one in requests) == accepted
    if kind in ("right", "half") or (kind == "short" and not head):
        assert accepted > 0, "no test"
    if kind in ("wrong", "stale", "skips"):
        assert accepted <= 0.5 * drafted, "hits are chance"


def test_right_offers_are_verified_at_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    drafter, truths = told(target, "right", head=False)
    requests = made_requests(1)
    finish(Engine(target, drafter, FixedLength(4)), *requests)
    assert requests[0].tokens == truths[0]
    assert requests[0].steps <= 2 + 16 // 5


def test_an_alignment_that_is_one_off_costs_drafts_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken rule, planted: what the device is sent starts a token too early."""
    simulate(monkeypatch)
    target = decoder()
    send = Offers.send

    def off(self: Offers, drafted: int, offers: dict[int, Offer], guides: dict[int, Guide]) -> None:
        send(self, drafted, {n: each._replace(start=each.start - 1) for n, each in offers.items()}, guides)

    drafter, truths = told(target, "right", head=False)
    healthy = made_requests()
    finish(Engine(target, drafter, FixedLength(3)), *healthy)
    monkeypatch.setattr(Offers, "send", off)
    broken = made_requests()
    finish(Engine(target, drafter, FixedLength(3)), *broken)
    assert [one.tokens for one in broken] == [one.tokens for one in healthy] == list(truths.values())
    assert sum(one.accepted for one in broken) < 0.2 * sum(one.accepted for one in healthy)


def test_accepting_what_is_wrong_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one: every draft is taken for right."""
    simulate(monkeypatch)
    target = decoder()
    drafter, truths = told(target, "half", head=False)
    all_of_them = torch.full((8,), MAX_LENGTH, dtype=torch.int32)

    def accept(self: Any, lanes: int, length: int, manner: Manner) -> None:
        board = self._board
        forced_accept_kernel[(lanes,)](
            *(board.records, board.text, board.drafts, self._chosen, board.out, all_of_them),
            *(length, board.capacity, board.target_spare),
            LONGEST=MAX_LENGTH,
            OUT=OUT,
            STRIDE=STRIDE,
            WIDTH=WIDTH,
        )

    monkeypatch.setattr(DeviceStepper, "_accept", accept)
    requests = made_requests(1)
    finish(Engine(target, drafter, FixedLength(3)), *requests)
    assert requests[0].tokens != truths[0]


@pytest.mark.parametrize("kind", [pytest.param("right", marks=pytest.mark.slow), "half"])
def test_a_lane_that_changes_hands_takes_no_offer_along(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a step with its offer is under way, and another takes the lane before the next."""
    simulate(monkeypatch)
    target = decoder()
    drafter, truths = told(target, kind, head=False)
    engine = Engine(target, drafter, FixedLength(3))
    gone, other, _, last = made_requests()
    engine.add(gone)
    engine.add(other)
    for _ in range(3):
        engine.step()
    assert any(launched.sources for launched in device_of(engine)._under_way)
    engine.remove(gone)
    engine.add(last)
    while not engine.idle:
        engine.step()
    assert other.tokens == truths[other.id]
    assert last.tokens == truths[last.id]
    assert gone.tokens == truths[gone.id][: len(gone.tokens)]
    assert engine.leaks() == []


@pytest.mark.parametrize(
    ("kind", "controller"),
    [
        ("mix", "fickle"),
        pytest.param("suffix", "auto", marks=pytest.mark.slow),
        pytest.param("mix", "auto", marks=pytest.mark.slow),
        pytest.param("suffix", "fickle", marks=pytest.mark.slow),
    ],
)
def test_any_order_with_lookup(kind: str, controller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    any_order(3, kind, 40, monkeypatch, controller)


# The speed


def rounds(monkeypatch: pytest.MonkeyPatch, period: int) -> None:
    """The target says `period` tokens again and again; everybody else guesses."""
    simulate(monkeypatch)
    guess = simulated.head

    def head(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
        guess(self, count, first, wanted)
        if getattr(self, "salt", 0):
            return
        for i, row in enumerate(self.tables.wanted[first : first + count].tolist()):
            self.logits[i] = 0
            self.logits[i, (int(self.tables.tokens[row]) + 1) % period] = 9

    monkeypatch.setattr(Network, "head", head)


@pytest.mark.parametrize("control", ["fixed", "auto"])
@pytest.mark.parametrize("kind", [pytest.param("suffix", marks=pytest.mark.slow), "ngram", "mix"])
def test_repeated_text_is_looked_up(kind: str, control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence tokens a pass without a head, and beside one that is of no use."""
    controller: Controller = AutoLength() if control == "auto" else FixedLength(4)
    rounds(monkeypatch, period=9)
    target = decoder()
    drafter: Drafter = NgramDrafter() if kind == "ngram" else drafters(kind, target)
    engine = Engine(target, drafter, controller)
    requests = [made(i, [i], SamplingParams(temperature=0, max_tokens=80)) for i in range(2)]
    finish(engine, *requests)
    for one in requests:
        assert one.tokens[1:] == [(one.id + 1 + k) % 9 for k in range(80)]
        assert one.generated > 2 * one.steps, one.acceptance
        lookup = "ngram" if kind == "ngram" else "suffix"
        assert one.origins.count(lookup) > 30
        assert one.sources[lookup].accepted == one.origins.count(lookup)


def test_predictions_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a draft model, which has then not run what was accepted; the same tokens, and its drafts stay whole."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, RouterDrafter(drafters("model", target), {"ngram": NgramDrafter()}), FixedLength(3))
    device_of(engine)
    requests = made_requests()
    truths = [expected(target, one) for one in requests]
    for one, truth in zip(requests, truths, strict=True):
        answer = truth[one.prompt_length :]
        one.speculation = Speculation(prediction=(*answer[:8], 0, *answer[9:14], *answer[18:]))
    finish(engine, *requests)
    assert [one.tokens for one in requests] == truths
    assert sum(one.origins.count("prediction") for one in requests) > 10
    bad: list[str] = []
    assert sum(check_drafts(one, "model", bad) for one in requests) > 0
    assert not bad


# Nothing is recorded in traffic


@pytest.mark.parametrize("kind", ["suffix", pytest.param("mix", marks=pytest.mark.slow)])
def test_offers_need_no_recordings_of_their_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(AutoLength, "lengths", (0, 2))  # the interpreter is slow
    monkeypatch.setattr(AutoLength, "offered_lengths", (5,))
    target = decoder()
    mix = drafters("mix", target)
    assert isinstance(mix, MixDrafter)
    alone = Engine(target, mix.head, AutoLength())
    engine = Engine(target, mix if kind == "mix" else SuffixDrafter(), AutoLength())
    keys: list[set[Any]] = []
    for each in (device_of(alone), device_of(engine)):
        recordings: list[Any] = list(each.recordings())
        for recording in recordings:
            recording.record()
        keys.append({recording.key for recording in recordings})
    more = {(key[0], key[2]) for key in keys[1] - keys[0] if key[0] != "begin"}  # those are no offers' either
    assert more == {("verify", 5), ("pass", 6)}
    rounds(monkeypatch, period=9)
    requests = [made(i, [i % 3], SamplingParams(temperature=i % 2, seed=i, max_tokens=30 + 9 * i)) for i in range(5)]
    finish(engine, *requests)
    assert any(one.origins.count("suffix") for one in requests), "no test"
    assert device_of(engine).late == 0
