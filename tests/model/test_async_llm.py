"""`AsyncLLM`: the methods of `LLM` for asyncio, over the same engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import sleep
from typing import Any

import pytest
from tiny_llm import tiny_llm

from outrider import LLM, AsyncLLM, Busy, InvalidRequest, SamplingParams, Speculation, Unavailable

PROMPTS = ["hello hello hello", "the weather the weather", "a b c a b c a", "once upon", "xyz"]
CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return tiny_llm(tmp_path_factory.mktemp("llm"), template=template)


def params(i: int, max_tokens: int = 16) -> SamplingParams:
    return SamplingParams(temperature=float(i % 2), seed=i, max_tokens=max_tokens, ignore_eos=True)


def run(llm: LLM, act: Callable[[AsyncLLM], Awaitable[None]], max_queue: int | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(300), AsyncLLM(llm, max_queue=max_queue) as opened:
            await act(opened)

    asyncio.run(main())
    assert llm.engine.idle
    assert llm.engine.leaks() == []


def slow_down(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred tokens take many seconds, so that what is asked for or stopped meanwhile finds them on their way."""
    forward = llm.model.forward

    def slowly(batch: Any) -> Any:
        sleep(0.1)
        return forward(batch)

    monkeypatch.setattr(llm.model, "forward", slowly)


def test_everything_at_once_is_what_each_gets_alone(shared: LLM) -> None:
    """More than there are slots, streams and whole answers, drafted for and plain."""
    expected = [shared.generate(p, params(i))[0].token_ids for i, p in enumerate(PROMPTS)]
    chatted = shared.chat(CHAT, params(1))

    async def act(llm: AsyncLLM) -> None:
        async def streamed(i: int) -> list[int]:
            return [token async for chunk in llm.stream(PROMPTS[i], params(i)) for token in chunk.token_ids]

        async def whole(i: int) -> list[int]:
            way = Speculation(max_nodes=0) if i % 3 == 0 else None
            return (await llm.generate(PROMPTS[i], params(i), speculation=way))[0].token_ids

        async def said() -> str:
            return "".join([chunk.text async for chunk in llm.stream_chat(CHAT, params(1))])

        places = range(len(PROMPTS))
        got = await asyncio.gather(*map(streamed, places), *map(whole, places))
        assert got == [*expected, *expected]
        batch = await llm.generate(PROMPTS, [params(i) for i in places])
        assert [done.token_ids for done in batch] == expected
        assert (await llm.chat(CHAT, params(1))).text == await said() == chatted.text

    run(shared, act)


def test_the_llm_is_lent_meanwhile_and_back_afterwards(shared: LLM) -> None:
    expected = shared.generate(PROMPTS[0], params(0))[0].token_ids

    async def act(llm: AsyncLLM) -> None:
        for ask in (lambda: shared.generate(PROMPTS[0]), shared.close, shared.service):
            with pytest.raises(InvalidRequest, match="answers through an AsyncLLM"):
                ask()
        assert (await llm.generate(PROMPTS[0], params(0)))[0].token_ids == expected

    run(shared, act)
    assert shared.generate(PROMPTS[0], params(0))[0].token_ids == expected


def test_whoever_stops_reading_lets_go(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(shared, monkeypatch)

    async def act(llm: AsyncLLM) -> None:
        stream = llm.stream(PROMPTS[0], params(0, max_tokens=100))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        task = asyncio.create_task(llm.generate(PROMPTS[1], params(1, max_tokens=100)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert (await llm.generate(PROMPTS[2], params(2)))[0].token_ids

    run(shared, act)


def test_what_cannot_be_is_said(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(shared, monkeypatch)

    async def act(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequest, match="it is empty"):
            await llm.generate("")
        with pytest.raises(Busy):
            await asyncio.gather(*(llm.generate(p, params(0, max_tokens=100)) for p in PROMPTS))

    run(shared, act, max_queue=0)
    closed = AsyncLLM(shared)
    with pytest.raises(InvalidRequest, match="not open"):
        asyncio.run(closed.generate("a"))
    with pytest.raises(InvalidRequest, match="takes an LLM"):
        AsyncLLM("smollm2-135m")  # type: ignore[arg-type]


def test_closing_ends_what_still_runs(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(shared, monkeypatch)

    async def main() -> None:
        llm = AsyncLLM(shared)
        async with llm:
            task = asyncio.create_task(llm.generate(PROMPTS * 3, params(0, max_tokens=100)))
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            await task

    asyncio.run(main())
    assert shared.engine.idle


def test_nobody_else_steps_what_was_lent(shared: LLM) -> None:
    """What shares its model is lent with it, and what is being read is not."""
    other = shared.with_drafter("ngram")

    async def refused(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequest, match="AsyncLLM or a server"):
            other.generate("hello", params(0))
        with pytest.raises(InvalidRequest, match="AsyncLLM or a server"):
            other.service()
        assert await llm.generate([]) == []

    run(shared, refused)
    reading: Any = other.stream("hello", params(0))
    next(reading)
    with pytest.raises(InvalidRequest, match="is answering"):
        shared.service()
    reading.close()
    assert other.generate("hello", params(0))[0].token_ids == shared.generate("hello", params(0))[0].token_ids


def test_closing_what_was_made_of_another_leaves_that_alone(shared: LLM) -> None:
    with shared.with_drafter("ngram") as other:
        expected = other.generate("hello", params(0))[0].token_ids
    with pytest.raises(InvalidRequest, match="closed"):
        other.generate("hello")
    assert shared.generate("hello", params(0))[0].token_ids == expected
