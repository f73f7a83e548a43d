"""A request that fails by itself, on a device: those that go on get the tokens they would have had. The arithmetic is
simulated."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("triton")

import device_requests
import simulated
from any_order import decoder, drafters, expected, made
from device_faults import KINDS, Ship, check, engine_of, several
from simulated import only_interpreted, simulate
from tiny_gpu_head import VOCAB

from outrider.control.controller import FixedLength
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import NotANumber, RequestFailed
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.network import Network
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted


def asked(network: Any, count: int, first: int, wanted: Any) -> list[int]:
    """The rows whose logits are."""
    rows: list[int] = (network.tables.wanted if wanted is None else wanted)[first : first + count].tolist()
    return rows


def spoil(monkeypatch: pytest.MonkeyPatch, target: CudaDecoder, bad: Request, value: float, whole: bool) -> None:
    """From its sixth position on the target's scores for this request are these, one of them or all."""
    real = simulated.head

    def head(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
        real(self, count, first, wanted)
        if self is target.network:
            for i, row in enumerate(asked(self, count, first, wanted)):
                if self.tables.slots[row] == bad.slot and self.tables.positions[row] >= bad.prompt_length + 5:
                    self.logits[i, slice(None) if whole else 3] = value

    monkeypatch.setattr(Network, "head", head)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize(("value", "whole"), [(math.nan, False), pytest.param(-math.inf, True, marks=pytest.mark.slow)])
def test_a_request_without_scores_ends_alone_and_disturbs_nobody(
    kind: str, on_device: bool, value: float, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the step in which they come: nobody else is computed again, nor even waits."""
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of(kind, target, on_device))
    requests = several()
    bad = requests[2]
    spoil(monkeypatch, target, bad, value, whole)
    monkeypatch.setattr(ship.crew, "_recover", lambda error: pytest.fail(f"the step has failed: {error}"))
    readers = ship.board(requests)
    ship.sail()
    guilty = readers.pop(2)
    assert isinstance(guilty.error, NotANumber)
    assert isinstance(guilty.error, RequestFailed)
    assert "not numbers" in str(guilty.error)
    assert bad.generated < bad.limit
    assert ship.engine.leaks() == []
    monkeypatch.setattr(Network, "head", simulated.head)
    check(target, readers)
    assert guilty.tokens == expected(target, bad)[bad.prompt_length :][: len(guilty.tokens)], "until then all was well"


def test_nobody_goes_on_from_rows_that_are_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from those of the request that failed, nor from those that it had gone on from."""
    simulate(monkeypatch)
    target = decoder()
    engine = engine_of("none", target)
    prompt = [i % VOCAB for i in range(40)]

    def ask(number: int, more: int, salt: str | None = None) -> Request:
        one = made(number, [*prompt, more], SamplingParams(temperature=0, max_tokens=8))
        one.cache_salt = salt
        engine.add(one)
        while not one.ended:
            engine.step()
        return one

    ask(0, 1)
    ask(1, 1, "another")
    assert ask(2, 2).reused, "no test"
    real = simulated.head

    def head(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
        real(self, count, first, wanted)
        self.logits[:count] = math.nan

    monkeypatch.setattr(Network, "head", head)
    assert isinstance(ask(3, 3).failure, NotANumber)
    monkeypatch.setattr(Network, "head", real)
    after = ask(4, 4)
    assert not after.reused
    assert after.tokens == expected(target, after)
    assert ask(5, 5, "another").reused, "of another caller it is nobody's business"
    assert engine.leaks() == []


@pytest.mark.parametrize("generate", [0, 4])
def test_a_prompt_that_cannot_be_scored_fails_alone(generate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of("none", target))
    bad = made(
        7, [3, 1, 4, 1, 5, 9, 2, 6], SamplingParams(temperature=0, max_tokens=max(1, generate), prompt_logprobs=1)
    )
    bad.limit = generate
    good = several()[:2]
    real = simulated.head

    def head(self: Any, count: int, first: int = 0, wanted: Any = None) -> None:
        real(self, count, first, wanted)
        for i, row in enumerate(asked(self, count, first, wanted)):
            if self.tables.slots[row] == bad.slot and self.tables.positions[row] == 5:
                self.logits[i, 0] = math.nan

    monkeypatch.setattr(Network, "head", head)
    guilty, *readers = ship.board([bad, *good])
    ship.sail()
    assert isinstance(guilty.error, NotANumber)
    assert not guilty.tokens
    monkeypatch.setattr(Network, "head", real)
    check(target, readers)


def test_what_is_longer_than_the_whole_cache_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside it do not wait, and it does not wait for them."""
    simulate(monkeypatch)
    target = decoder(batch=3, context=1000, blocks=6)
    ship = Ship(Engine(target, drafters("none", target), FixedLength(0)))

    def request(number: int, length: int) -> Request:
        prompt = [(number + i) % VOCAB for i in range(length)]
        return device_requests.made(number, prompt, SamplingParams(temperature=0, max_tokens=30), VOCAB, context=1000)

    first, long, last = ship.board([request(0, 20), request(1, 800), request(2, 30)])
    ship.crew.step()
    assert isinstance(long.error, RequestFailed)
    assert "800 tokens" in str(long.error)
    assert first.tokens
    ship.sail()
    check(target, [first, last])
    assert ship.engine.leaks() == []


def test_what_outgrows_the_whole_cache_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache smaller than a context: the text fits at first."""
    simulate(monkeypatch)
    target = decoder(batch=3, context=1000, blocks=4)
    ship = Ship(Engine(target, drafters("none", target), FixedLength(0)))
    params = SamplingParams(temperature=0, max_tokens=300)
    growing = device_requests.made(40, [7] * 300, params, VOCAB, context=1000)
    readers = ship.board([growing, several()[0]])
    ship.sail()
    assert isinstance(readers[0].error, RequestFailed)
    assert readers[0].tokens
    assert "does not fit a cache of 512" in str(readers[0].error)
    check(target, readers[1:])
    assert ship.engine.leaks() == []
