"""The next batch is made while the GPU works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], prepare: Callable[[T], None]) -> Iterator[T]:
    """The same, one made and prepared ahead by a thread of its own. Nobody else may draw from `items`."""

    def take() -> T | None:
        item = next(items, None)
        if item is not None:
            prepare(item)
        return item

    with ThreadPoolExecutor(1, "ahead") as pool:
        coming = pool.submit(take)
        while (item := coming.result()) is not None:
            coming = pool.submit(take)
            yield item
