"""`LLM` for asyncio: the same methods, over the service that the server answers with."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from outrider.checks import whole
from outrider.core.draft import Speculation
from outrider.core.request import Chunk, Completion
from outrider.engine.request import Request
from outrider.engine.service import Service
from outrider.errors import InvalidRequest
from outrider.llm import LLM, NO_VARIABLES, Message, completions
from outrider.request_builder import Prompt
from outrider.sampling.params import SamplingParams


class AsyncLLM:
    """An `LLM` whose engine runs in a thread of its own, so that the event loop never waits for a pass.

    >>> async with AsyncLLM(LLM("smollm2-135m")) as llm:
    ...     async for chunk in llm.stream("The capital of France is"):
    ...         print(chunk.text, end="", flush=True)

    Whatever is asked for at the same time runs in one batch, and everybody gets what they would get alone. Between
    `async with` and its end the `LLM` answers here alone; afterwards it answers by itself again.

    `max_queue`: the most requests that wait beyond those that run; `Busy` is raised for more (None: all wait).
    """

    def __init__(self, llm: LLM, *, max_queue: int | None = None) -> None:
        if not isinstance(llm, LLM):
            raise InvalidRequest("AsyncLLM takes an LLM, as in AsyncLLM(LLM('smollm2-135m'))")
        self.llm = llm
        self._max_queue = sys.maxsize if max_queue is None else whole("max_queue", max_queue, 0)
        self._service: Service | None = None

    async def __aenter__(self) -> AsyncLLM:
        if self._service is not None and not self._service.ended:
            raise InvalidRequest("this AsyncLLM is open already")
        # No request gains something more often than its context has tokens: nobody is too slow a reader.
        self._service = self.llm.service(max_queue=self._max_queue, buffer=self.llm.model.max_context)
        self._service.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what still runs (`Unavailable`) and give the `LLM` back; safe to repeat."""
        if self._service is not None and not self._service.ended:
            await self._service.stop(grace=0)

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> list[Completion]:
        """As `LLM.generate`."""
        chunks = self.stream(prompts, params, speculation=speculation, speculate=speculate, trace=trace)
        return completions([chunk async for chunk in chunks])

    async def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> AsyncIterator[Chunk]:
        """As `LLM.stream`. What is not read to its end goes on until the iterator is closed (`aclose`) or its task is
        cancelled."""

        def made() -> list[Request]:
            build = self.llm.requests.build_each
            return build(prompts, params, speculation=speculation, speculate=speculate, trace=trace)

        service = self._open_service
        requests = await asyncio.to_thread(made)  # long prompts take a while to encode
        if not requests:
            return
        with service.stream(*requests) as chunks:
            async for chunk in chunks:
                yield chunk

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] = NO_VARIABLES,
        speculation: Speculation | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> Completion:
        """As `LLM.chat`."""
        prompt = self.llm.encode_chat(messages, tools=tools, template_variables=template_variables)
        return (await self.generate([prompt], params, speculation=speculation, speculate=speculate, trace=trace))[0]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] = NO_VARIABLES,
        speculation: Speculation | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> AsyncIterator[Chunk]:
        """As `LLM.stream_chat`."""
        prompt = self.llm.encode_chat(messages, tools=tools, template_variables=template_variables)
        return self.stream([prompt], params, speculation=speculation, speculate=speculate, trace=trace)

    @property
    def _open_service(self) -> Service:
        if self._service is None or (self._service.ended and self._service.failure is None):
            raise InvalidRequest("this AsyncLLM is not open; use it within `async with AsyncLLM(llm) as …:`")
        return self._service
