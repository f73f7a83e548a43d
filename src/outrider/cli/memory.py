"""What a command has loaded stays until it ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """The garbage collector does not look through what imports make, neither meanwhile nor at the end: with torch that
    takes a tenth of a second each."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_for_good() -> None:
    """The garbage collector need not look at it again: with torch loaded that is a pause of a tenth of a second, now
    and then, in the middle of an answer. Only a process of our own may do so: what is part of a cycle is never freed
    afterwards."""
    gc.collect()
    gc.freeze()
