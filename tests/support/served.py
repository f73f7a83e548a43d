"""A service over a model that can be made slow, or made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from time import sleep
from typing import Any

from toy import TableModel, language, resolved

from outrider.control.controller import FixedLength
from outrider.core.model import Rows
from outrider.core.request import Chunk
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.request_state import OutputStream
from outrider.engine.service import Service
from outrider.engine.text import TextStream
from outrider.sampling.history import History

VOCAB = 12
POISON = 11
PATIENCE = 300
"""Seconds, for a machine that is busy with something else."""
_ids = count()


def request(prompt: Sequence[int], max_tokens: int = 20, seed: int = 0, principal: str = "") -> Request:
    params = resolved(VOCAB, max_tokens=max_tokens, seed=seed, temperature=1.0)
    stream = TextStream(lambda token: b"%d " % token, (), False)
    return Request(
        next(_ids), list(prompt), len(prompt), params, max_tokens, stream, History(prompt), principal=principal
    )


class Model(TableModel):
    """Speaks a random language; fails over a text that begins with the poison, or altogether, when told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(language(VOCAB - 1, 3), VOCAB, **options)
        self.poison_after = 0
        self.broken = False
        self.delay = 0.0
        self.watched: Request | None = None
        self.waited = 0
        """Passes that began while the watched request, which the engine has, was without a token."""
        inner = self._language
        self._language = lambda text: [*inner(text), -50.0]

    def forward(self, batch: Sequence[Rows]) -> Any:
        sleep(self.delay)
        if self.watched is not None and not self.watched.generated:
            self.waited += 1
        if self.broken:
            raise RuntimeError("the device is gone")
        for rows in batch:
            held = self._slots[rows.slot].committed
            if (held and held[0] == POISON) and len(held) > self.poison_after:
                raise ValueError("poisoned")
        return super().forward(batch)

    @property
    def used(self) -> int:
        return len(self._slots)


def run(model: Model, act: Callable[[Service], Awaitable[None]], drafter: Any = None, **options: Any) -> None:
    engine = Engine(model, drafter or NoDrafter(), FixedLength(3))

    async def main() -> None:
        service = Service(engine, probe=lambda: request([1], 1), **options)
        service.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await act(service)
        finally:
            await service.stop(0)
            assert model.used == 0, "every slot is free again"

    asyncio.run(main())


async def tokens_of(service: Service, seq: Request) -> list[int]:
    with service.stream(seq) as stream:
        tokens = [token async for chunk in stream for token in chunk.token_ids]
    assert seq.completion().token_ids == tokens
    return tokens


async def drain(stream: OutputStream, into: list[Chunk]) -> None:
    async for chunk in stream:
        into.append(chunk)


def alone(prompt: Sequence[int], **options: Any) -> list[int]:
    engine, seq = Engine(Model(), NoDrafter(), FixedLength(0)), request(prompt, **options)
    engine.add(seq)
    while seq.finish_reason is None:
        engine.step()
    return seq.tokens[seq.prompt_length :]
