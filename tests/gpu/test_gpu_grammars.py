"""Grammars in steps on the device: the tokens of the reference, and nobody else waits for them.

Networks without arithmetic (tests/support/simulated.py), everything else as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("triton")

import device_requests
from any_order import any_order, decoder, drafters, expected, made
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_engine import finish
from tiny_gpu import TARGET, gpu_decoder
from tiny_gpu import VOCAB as TINY
from tiny_gpu_head import VOCAB

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.forced import NAME
from outrider.core.draft import Draft, Speculation
from outrider.core.request import Forced
from outrider.drafters.none import NoDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine import guesses
from outrider.engine.device_executor import steppable
from outrider.engine.engine import Engine
from outrider.engine.executor import StepOutput
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.masks import Masks
from outrider.sampling.params import SamplingParams

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
    finish(engine, *requests)
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

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        found: list[int] = np.flatnonzero(mask).tolist()
        return found if len(found) < 9 else ()

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
    finish(engine, *requests)
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
    finish(Engine(target, drafters("none", target), FixedLength(0)), *requests)
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
    finish(engine, one)
    assert one.tokens == expected(target, one)
    assert (one.origins.count(NAME) > 10) == forced


def gains(engine: Engine, requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """By step: who gained by it. There is time for every guess."""
    monkeypatch.setattr(guesses, "SECONDS", 1e9)
    device, found = device_of(engine), list[set[int]]()
    collect = device._collect

    def noted(running: list[Request]) -> StepOutput:
        output = collect(running)
        found.append({request.id for request in output.requests})
        return output

    monkeypatch.setattr(device, "_collect", noted)
    finish(engine, *requests)
    return found


@only_interpreted
def test_nobody_else_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain requests gain a token by every step; one with a grammar of which nothing is guessed by every other, while
    there are such."""
    simulate(monkeypatch)
    monkeypatch.setattr(guesses, "MOST", 0)
    target = decoder()
    engine = Engine(target, drafters("none", target), FixedLength(0))
    gained = gains(engine, requests_of(1, 2), monkeypatch)
    both = [each for each in gained if each & {1, 2}]
    assert len(both) == 23, "as many steps as the longest has tokens: none is waited for"
    assert all({1, 2} <= each for each in both[:20])
    took = [0 in each for each in both]
    assert took[:20] == [True, False] * 10
    alone = gained[len(both) + 1 :]  # the next one was launched while the others ran
    assert alone
    assert all(each == {0} for each in alone), "a step that nobody can take part in is not taken"


@only_interpreted
@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("suffix", 3)])
@pytest.mark.parametrize("pattern", [0, 2])
def test_what_is_guessed_is_not_waited_for(
    kind: str, length: int, pattern: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few tokens may follow, all that may come is known beforehand, and no step is sat out; the same tokens."""
    simulate(monkeypatch)
    target = decoder()
    one = guided(0, [5, 6, 7], PARAMS[1], PATTERNS[pattern], 30)
    other = made(1, [3, 1], SamplingParams(temperature=0.8, max_tokens=40))
    truths = [expected(target, each) for each in (one, other)]
    engine = Engine(target, drafters(kind, target), FixedLength(length))
    gained = gains(engine, [one, other], monkeypatch)
    assert [each.tokens for each in (one, other)] == truths
    first = next(i for i, each in enumerate(gained) if 0 in each)
    last = max(i for i, each in enumerate(gained) if 0 in each)
    assert all(0 in each for each in gained[first : last + 1])
    assert all(1 in each for each in gained[:20])


@only_interpreted
@pytest.mark.parametrize("most", [1, 2])
def test_a_guess_that_fails_costs_one_step(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of what may follow is left out: where it comes a step is sat out, and the next one is not."""
    simulate(monkeypatch)
    monkeypatch.setattr(guesses, "MOST", most)
    target = decoder()
    requests = requests_of(3, 1, 18)
    requests[-1].limit = 60
    truths = [expected(target, one) for one in requests]
    gained = gains(Engine(target, drafters("none", target), FixedLength(0)), requests, monkeypatch)
    assert [one.tokens for one in requests] == truths
    sat = 0
    for one in requests[:3]:
        took = [i for i, each in enumerate(gained) if one.id in each]
        steps = [after - before for before, after in pairwise(took)]
        assert set(steps) <= {1, 2}
        sat += steps.count(2)
    assert 0 < sat < sum(one.generated for one in requests[:3]) // 2


@only_interpreted
def test_no_guess_is_made_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(guesses, "SECONDS", 0.0)
    monkeypatch.setattr(guesses, "_guess", None)  # nobody may ask, not even what is likely
    target = decoder()
    requests = requests_of(2, 1)
    truths = [expected(target, one) for one in requests]
    finish(Engine(target, drafters("none", target), FixedLength(0)), *requests)
    assert [one.tokens for one in requests] == truths


@only_interpreted
def test_a_head_drafts_on_the_host_for_grammars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("head", target), FixedLength(3))
    one = guided(0, [5, 6, 7], PARAMS[0], PATTERNS[1])
    assert steppable(one.params)
    finish(engine, one)
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
    finish(engine, *requests_of(1, 1))
    assert device.late == 0
