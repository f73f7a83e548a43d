"""The engine behind its asyncio face when something fails: whom that reaches, and whom it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from served import PATIENCE, POISON, Model, alone, drain, request, run, tokens_of

from outrider.control.controller import FixedLength
from outrider.core.model import Rows
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.service import Service
from outrider.errors import DeviceLost, RequestFailed, Unavailable


@pytest.mark.parametrize("drafter", [NoDrafter, NgramDrafter])
@pytest.mark.parametrize("after", [0, 6])
def test_a_request_that_fails_takes_nobody_with_it(after: int, drafter: type) -> None:
    model = Model(max_batch=4)
    model.poison_after = after

    async def act(service: Service) -> None:
        prompts = [[1, 2], [POISON, 3], [4, 5, 6], [7, 7], [8, 0], [9, 9]]
        streams = [tokens_of(service, request(p, seed=i)) for i, p in enumerate(prompts)]
        got = await asyncio.gather(*streams, return_exceptions=True)
        assert isinstance(got[1], RequestFailed)
        assert "poisoned" in str(got[1])
        others = [i for i in range(len(prompts)) if i != 1]
        assert [got[i] for i in others] == [alone(prompts[i], seed=i) for i in others]
        assert service.ready
        assert await tokens_of(service, request([3])) == alone([3])

    run(model, act, drafter())


class Forgetful(NoDrafter):
    """Fails after the step, when every request has its tokens and nobody has been told."""

    def __init__(self) -> None:
        self.steps = 0

    def observe(self, commits: Any) -> None:
        self.steps += 1
        if self.steps == 5:
            raise KeyError("once")


def test_what_a_failed_step_had_brought_is_not_lost() -> None:
    async def act(service: Service) -> None:
        got = await asyncio.gather(*(tokens_of(service, request([i, 1], seed=i)) for i in range(3)))
        assert got == [alone([i, 1], seed=i) for i in range(3)]

    run(Model(), act, Forgetful())


def test_an_engine_that_has_failed_says_so_to_all() -> None:
    model = Model(max_context=4000)
    model.delay = 0.005

    async def act(service: Service) -> None:
        streams = [service.stream(request([i], 3000)) for i in range(3)]
        await anext(streams[0])
        model.broken = True
        for stream in streams:
            with pytest.raises((Unavailable, RequestFailed)):
                await drain(stream, [])
        while service.failure is None:
            await asyncio.sleep(0.01)
        assert not service.ready
        with pytest.raises(Unavailable, match="device is gone"):
            service.stream(request([1]))
        model.broken = False

    run(model, act)


class Fragile(Model):
    """Runs on a device that fails in some passes, and may be lost by that."""

    def __init__(self, *fails: int, lost: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.fails = set(fails)
        self.lost = lost
        self.asked = 0

    def forward(self, batch: Sequence[Rows]) -> Any:
        self.asked += 1
        if self.asked in self.fails:
            raise OSError("the device has failed")
        return super().forward(batch)

    def recovers(self, error: Exception) -> bool:
        if self.lost:
            raise DeviceLost("the device is gone for good")
        return isinstance(error, OSError)


@pytest.mark.parametrize("drafter", [NoDrafter, NgramDrafter])
def test_a_device_that_fails_now_and_then_changes_no_answer(drafter: type) -> None:
    prompts = [[1, 2], [3], [4, 5, 6], [1, 2], [7], [8, 9, 1]]

    async def act(service: Service) -> None:
        got = await asyncio.gather(*(tokens_of(service, request(p, seed=i)) for i, p in enumerate(prompts)))
        assert got == [alone(p, seed=i) for i, p in enumerate(prompts)]
        assert service.load.stats.restarts == 4
        assert service.ready

    run(Fragile(3, 9, 10, 15, max_batch=3), act, drafter())


def test_a_device_that_is_lost_ends_all_and_says_what_helps() -> None:
    async def act(service: Service) -> None:
        streams = [service.stream(request([i], 60)) for i in range(3)]
        for stream in streams:
            with pytest.raises(DeviceLost, match="gone for good"):
                await drain(stream, [])
        assert isinstance(service.lost, DeviceLost)
        assert not service.ready
        with pytest.raises(DeviceLost):
            service.stream(request([1]))

    model = Fragile(5, lost=True)
    engine = Engine(model, NoDrafter(), FixedLength(0))

    async def main() -> None:
        service = Service(engine, probe=lambda: request([1], 1))
        service.start()
        async with asyncio.timeout(PATIENCE):
            await act(service)
        await service.stop(0)

    asyncio.run(main())
