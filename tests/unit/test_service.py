"""The engine behind its asyncio face: what one request does never reaches another."""

from __future__ import annotations

import asyncio
from time import perf_counter, sleep
from typing import Any

import pytest
from served import Model, alone, drain, request, run, tokens_of

from outrider.core.request import Chunk
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import NO_SLOT, Request
from outrider.engine.request_state import Load, OutputStream
from outrider.engine.service import Service
from outrider.errors import Busy, InvalidRequest, RequestFailed, Unavailable


def test_requests_share_the_engine_and_get_what_they_would_alone() -> None:
    prompts = [[1, 2], [3], [4, 5, 6], [1, 2], [7], [8, 9, 1]]

    async def act(service: Service) -> None:
        got = await asyncio.gather(*(tokens_of(service, request(p, seed=i)) for i, p in enumerate(prompts)))
        assert got == [alone(p, seed=i) for i, p in enumerate(prompts)]
        assert service.open == 0

    run(Model(max_batch=3), act, NgramDrafter())


def test_several_sequences_in_one_stream_keep_their_places() -> None:
    async def act(service: Service) -> None:
        texts: dict[int, list[int]] = {0: [], 1: []}
        began = perf_counter()
        with service.stream(request([1, 2]), request([3], seed=5)) as stream:
            async for chunk in stream:
                texts[chunk.index] += chunk.token_ids
                assert 0 < chunk.seconds < perf_counter() - began
        assert texts == {0: alone([1, 2]), 1: alone([3], seed=5)}

    run(Model(), act)


def test_closing_a_stream_cancels_within_a_step_and_frees_its_slot() -> None:
    model = Model(max_context=4000)
    model.delay = 0.01

    async def act(service: Service) -> None:
        with service.stream(request([1], 3000), request([2], 3000)) as stream:
            await anext(stream)
            assert model.used == 2
        passes = len(model.passes)
        assert service.open == 0
        while model.used or service.load.stats.running:
            await asyncio.sleep(0.01)
        assert len(model.passes) <= passes + 1

    run(model, act)


def test_a_full_queue_is_busy_and_has_room_again_later() -> None:
    model = Model(max_batch=1)
    model.delay = 0.002

    async def act(service: Service) -> None:
        with pytest.raises(InvalidRequest, match="at most 3"):
            service.stream(*(request([1]) for _ in range(4)))
        streams = [service.stream(request([i])) for i in range(3)]
        with pytest.raises(Busy) as busy:
            service.stream(request([1]))
        assert 1 <= busy.value.retry_after <= 60
        streams[2].close()
        streams.append(service.stream(request([4])))
        for stream in (streams[0], streams[1], streams[3]):
            assert [d async for d in stream][-1].completion is not None

    run(model, act, max_queue=2)


def test_a_reader_that_falls_behind_is_cut_off_and_told() -> None:
    model = Model(max_context=4000)

    async def act(service: Service) -> None:
        with service.stream(request([1], 3000)) as stream:
            while service.open:
                await asyncio.sleep(0.01)
            read: list[Chunk] = []
            with pytest.raises(RequestFailed, match="slowly"):
                await drain(stream, read)
            assert len(read) == 50
        assert await tokens_of(service, request([3])) == alone([3])

    run(model, act, buffer=50)


def test_stopping_finishes_what_runs_and_cancels_what_takes_too_long() -> None:
    model = Model(max_context=4000)
    model.delay = 0.005

    async def act(service: Service) -> None:
        short, long = service.stream(request([1], 20)), service.stream(request([2], 3000))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(service.stop(3))  # of the 0.1 and the 15 seconds that they take
        await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match="stopping"):
            service.stream(request([3]))
        assert [d async for d in short][-1].completion is not None
        with pytest.raises(Unavailable, match="stopping"):
            await drain(long, [])
        await stopping

    run(model, act)


def test_a_waiting_sequence_has_no_slot() -> None:
    model = Model(max_batch=1, max_context=4000)
    model.delay = 0.005

    async def act(service: Service) -> None:
        first, second = request([1], 3000), request([2])
        with service.stream(first) as one, service.stream(second):
            async for _ in one:  # the first may be at its tokens before the second has been taken up
                assert second.slot == NO_SLOT
                if service.load.stats.waiting:
                    break
            await anext(one)
            assert second.slot == NO_SLOT
            assert (service.load.stats.running, service.load.stats.waiting) == (1, 1)
            assert service.load.stats.kv_used >= 2

    run(model, act)


def test_whoever_has_an_answer_does_not_find_it_running_still(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Load.of

    def late(engine: Engine) -> Load:
        sleep(0.1)
        return of(engine)

    monkeypatch.setattr(Load, "of", staticmethod(late))

    async def act(service: Service) -> None:
        for seed in range(3):
            await tokens_of(service, request([1], 2, seed))
            assert (service.load.stats.running, service.load.stats.kv_used) == (0, 0)

    run(Model(), act)


@pytest.mark.long
def test_behind_64_requests_of_one_client_anothers_first_token_comes_soon() -> None:
    """In passes of the model, not seconds; and whoever had to make way gets the tokens it would have had."""
    model = Model(max_batch=4, max_context=200)

    async def act(service: Service) -> None:
        crew: Any = service._crew
        add = crew.add

        def noted(stream: OutputStream) -> None:
            if stream.requests[0].principal == "new":
                model.watched, model.waited = stream.requests[0], 0
            add(stream)

        crew.add = noted

        async def passes(seq: Request) -> int:
            with service.stream(seq) as stream:
                await anext(stream)
                return model.waited

        prompt = [1, 2, 3, 4, 5]
        alone_ = await passes(request(prompt, principal="new"))
        many = [request([7, 8, 9], 60, seed=i, principal="many") for i in range(64)]
        model.delay = 0.005  # they take seconds, so that the newcomer finds them there
        asked = [asyncio.ensure_future(tokens_of(service, seq)) for seq in many]
        while not many[3].generated:
            await asyncio.sleep(0)
        assert 1 <= await passes(request(prompt, principal="new")) <= 3 * alone_ + 2
        model.delay = 0.0
        assert await asyncio.gather(*asked) == [alone([7, 8, 9], max_tokens=60, seed=i) for i in range(64)]
        assert service.load.stats.preemptions >= 1

    run(model, act, max_queue=64)


def test_a_queue_that_one_has_filled_takes_others() -> None:
    model = Model(max_batch=1)
    model.delay = 0.002

    async def act(service: Service) -> None:
        def ask(principal: str) -> OutputStream:
            return service.stream(request([1], principal=principal))

        streams = [ask("many") for _ in range(3)] + [ask("one"), ask("two"), ask("three")]
        for principal in ("many", "one", "four"):
            with pytest.raises(Busy):
                ask(principal)
        for stream in streams:
            stream.close()

    run(model, act, max_queue=2)


def test_the_longer_the_queue_the_later_to_come_back() -> None:
    model = Model(max_batch=2)

    async def act(service: Service) -> None:
        service._typical = 2.0  # seconds
        told = []
        for waiting in (2, 6, 400):
            service.capacity = waiting
            streams = [service.stream(request([1])) for _ in range(waiting)]
            with pytest.raises(Busy) as busy:
                service.stream(request([1]))
            told.append(busy.value.retry_after)
            for stream in streams:
                stream.close()
        assert told == [1, 5, 60]

    run(model, act)
