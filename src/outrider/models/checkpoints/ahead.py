"""Reading further tensors while one is put in its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

_MOST = 8
_NUMBERS = 1 << 24
"""What is read ahead may hold no more than so many, 64 MiB in fp32, or be a single tensor."""


class _Sized(Protocol):
    def numel(self) -> int: ...


T = TypeVar("T", bound=_Sized)


def read_ahead(tensors: Iterator[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """The same, in the same order; a thread reads the next ones meanwhile. What that raises is raised in its turn.
    Whoever stops early waits for the one that is being read."""
    pool = ThreadPoolExecutor(1, "reading ahead")
    try:
        coming: deque[Future[Any]] = deque([pool.submit(next, tensors, None)])
        while (item := coming.popleft().result()) is not None:
            room = _NUMBERS // max(1, item[1].numel())
            coming.extend(pool.submit(next, tensors, None) for _ in range(max(1, min(_MOST, room)) - len(coming)))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
