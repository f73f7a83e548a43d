"""A device that fails, which is nobody's doing: those that go on get the tokens they would have had. The arithmetic is
simulated; the errors are PyTorch's own classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import device_requests
from any_order import decoder, made
from device_faults import FAULTS, KINDS, Ship, check, engine_of, once, planted, several
from device_requests import device_of
from simulated import only_interpreted, simulate
from tiny_gpu_head import VOCAB

from outrider.errors import DeviceLost
from outrider.models.cuda import passes
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted


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
