"""Threads that fill matrices while the next ones are found room for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Readers:
    """Tasks are begun in the order they come in. What one raises is raised by a later `do`, or at the end; whoever ends
    by an error leaves what has not begun undone. No thread outlives it."""

    def __init__(self) -> None:
        threads = min(8, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "reading weights")
        self._waiting: deque[Future[None]] = deque()
        self._most = 4 * threads

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            while kind is None and self._waiting:
                self._waiting.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def do(self, task: Callable[[], None]) -> None:
        """Soon. Waits for the earliest where many are to be done, so that whoever asks is told how far it is."""
        self._waiting.append(self._pool.submit(task))
        if len(self._waiting) > self._most:
            self._waiting.popleft().result()
