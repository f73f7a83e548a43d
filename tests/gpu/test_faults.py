"""What fails on a device: a request by itself, or the device, which is nobody's doing. Either way those that go on get
the tokens they would have had. The arithmetic is simulated; the errors are PyTorch's own classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import device_requests
import simulated
from any_order import decoder, drafters, expected, made
from device_requests import device_of, stepped
from simulated import only_interpreted, simulate
from tiny_gpu_head import VOCAB

from outrider.control.controller import FixedLength
from outrider.engine.crew import Crew
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import DeviceLost, NotANumber, RequestFailed
from outrider.models.cuda import passes
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.network import Network
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted

FAULTS: dict[str, Callable[[], Exception]] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "launch": lambda: RuntimeError("Triton Error [CUDA]: invalid argument"),
    "sync": lambda: torch.AcceleratorError("CUDA error: unspecified launch failure"),
}
KINDS = ["none", pytest.param("model", marks=pytest.mark.slow), "head", pytest.param("trees", marks=pytest.mark.slow)]


class Reader:
    begun = 0.0

    def __init__(self, *requests: Request) -> None:
        self.requests = requests
        self.tokens: list[int] = []
        self.error: Exception | None = None


class Ship:
    """A crew, and what each of its readers was given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.crew: Crew[Reader] = Crew(
            engine,
            lambda reader, chunk: reader.tokens.extend(chunk.token_ids),
            lambda reader, why: setattr(reader, "error", why),
            lambda: made(999, [5], SamplingParams(temperature=0, max_tokens=1)),
        )

    def board(self, requests: Sequence[Request]) -> list[Reader]:
        readers = [Reader(one) for one in requests]
        for reader in readers:
            self.crew.add(reader)
        return readers

    def sail(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if self.crew.idle:
                return
            self.crew.step()
        raise AssertionError("no end")


def several(tokens: int = 14) -> list[Request]:
    """Greedy and drawn, of which some begin alike."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "seed": 4},
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5},
    ]
    begin = [i % VOCAB for i in range(20)]
    return [made(i, [*begin[: 4 * i], 2, i], SamplingParams(max_tokens=tokens, **way)) for i, way in enumerate(ways)]


def engine_of(kind: str, target: CudaDecoder, on_device: bool = True) -> Engine:
    length = FixedLength(0) if kind == "none" else FixedLength(3, kind == "trees")
    return stepped(target, drafters(kind, target), length, on_device=on_device)


def check(target: CudaDecoder, readers: Sequence[Reader]) -> None:
    for reader in readers:
        (one,) = reader.requests
        whole = expected(target, one)
        assert reader.error is None
        assert one.tokens == whole
        assert reader.tokens == whole[one.prompt_length :], "nothing is given twice, nor lost"


def planted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool], why: str) -> list[int]:
    """From now on that method raises an error of the device whenever `when` says so of a call. Returns how often, in a
    list of one."""
    real, count = getattr(owner, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        if when(*args, **options):
            count[0] += 1
            raise FAULTS[why]()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return count


def once(after: int) -> Callable[..., bool]:
    """True of one call, after so many others."""
    left = [after]

    def when(*_: Any, **__: Any) -> bool:
        left[0] -= 1
        return left[0] == -1

    return when


# -- one request


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


# -- the device


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("why", "where"), [("memory", "launch"), ("launch", "launch"), ("sync", "collect"), ("memory", "seat")]
)
def test_a_device_that_fails_once_changes_no_token(
    kind: str, why: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of several requests: all are computed again, from the tokens they have."""
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of(kind, target))
    readers = ship.board(several()[1:])
    for _ in range(3):
        ship.crew.step()
    assert all(reader.tokens for reader in readers)
    stepper: Any = device_of(ship.engine)._stepper
    if where == "seat":
        readers += ship.board([made(50, [9, 9, 9], SamplingParams(temperature=1.0, seed=8, max_tokens=9))])
    count = planted(monkeypatch, stepper, where, once(0), why)
    before = [list(reader.tokens) for reader in readers]
    ship.crew.step()
    assert count == [1]
    assert [reader.tokens for reader in readers] == before
    assert ship.engine.stats.restarts == 1
    ship.sail()
    check(target, readers)
    assert ship.engine.stats.restarts == 1
    assert ship.engine.leaks() == []


def test_nothing_that_was_cached_before_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of("none", target))
    readers = ship.board([made(i, [i] * 40, SamplingParams(temperature=0, max_tokens=20)) for i in range(2)])
    ship.board([made(9, [9] * 40, SamplingParams(temperature=0, max_tokens=1))])
    for _ in range(3):
        ship.crew.step()
    planted(monkeypatch, device_of(ship.engine)._stepper, "collect", once(0), "sync")
    ship.crew.step()
    ship.board([made(10, [9] * 40, SamplingParams(temperature=0, max_tokens=1))])
    ship.sail()
    assert ship.engine.stats.prefix_hits == 0
    check(target, readers)


@pytest.mark.parametrize("kind", ["none", pytest.param("head", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "after"), [("forward", 0), ("drain", 0), ("drain", 1)])
def test_a_device_that_fails_over_a_prompt(kind: str, name: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the books and the cache: a block that the cache was never told of must not be read or written."""
    simulate(monkeypatch)
    target = decoder(context=600, blocks=20)
    ship = Ship(engine_of(kind, target))
    readers = ship.board(several(30)[:3])
    for _ in range(3):
        ship.crew.step()
    if name == "forward":
        planted(monkeypatch, target, name, once(after), "memory")
    else:
        real, now = target._book.drain, once(after)

        def drained() -> Any:
            if (changes := real()) and now():
                raise FAULTS["memory"]()
            return changes

        monkeypatch.setattr(target._book, "drain", drained)
    readers += ship.board(
        [
            device_requests.made(
                60 + i, [i + 1] * 200, SamplingParams(temperature=0, max_tokens=20), VOCAB, context=600
            )
            for i in range(2)
        ]
    )
    ship.sail()
    assert ship.engine.stats.restarts == 1
    monkeypatch.undo()
    simulate(monkeypatch)
    check(target, readers)
    assert ship.engine.leaks() == []


def test_a_device_on_which_too_many_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out whenever more than two run together, and for nobody alone: fewer do, and all get their tokens."""
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of("none", target))
    stepper: Any = device_of(ship.engine)._stepper
    count = planted(monkeypatch, stepper, "launch", lambda lanes, *_, **__: lanes > 2, "memory")
    readers = ship.board(several())
    ship.sail()
    check(target, readers)
    assert 2 <= count[0] <= 4, "as often as it takes to halve five"
    assert ship.engine.leaks() == []


def test_a_request_that_fails_the_device_again_and_again_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    ship = Ship(engine_of("none", target))
    requests = several()
    bad = requests[1]
    lanes = device_of(ship.engine)._lanes

    def there(*_: Any, **__: Any) -> bool:
        return bad in lanes.requests and bad.generated > 5

    planted(monkeypatch, device_of(ship.engine)._stepper, "launch", there, "memory")
    readers = ship.board(requests)
    ship.sail()
    guilty = readers.pop(1)
    assert isinstance(guilty.error, torch.OutOfMemoryError)
    check(target, readers)
    assert ship.engine.leaks() == []


def test_a_device_that_is_lost_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is blamed, and nothing is tried again."""
    simulate(monkeypatch)

    def lost(error: Exception, device: torch.device) -> bool:
        raise DeviceLost("the GPU has failed") from error

    target = decoder()
    ship = Ship(engine_of("none", target))
    readers = ship.board(several())
    ship.crew.step()
    monkeypatch.setattr(passes, "recovered", lost)
    count = planted(monkeypatch, device_of(ship.engine)._stepper, "launch", lambda *_, **__: True, "sync")
    with pytest.raises(DeviceLost):
        ship.crew.step()
    assert count == [1]
    assert not any(reader.error for reader in readers)
    assert ship.crew.readers == readers


@pytest.mark.parametrize("error", [ValueError("CUDA error"), RuntimeError("a list has no tensor"), KeyError("x")])
def test_what_is_no_error_of_a_device(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    assert not decoder().recovers(error)
