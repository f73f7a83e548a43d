"""What a command has loaded stays until it ends."""

from __future__ import annotations

import gc


def keep_for_good() -> None:
    """The garbage collector need not look at it again: with torch loaded that is a pause of a tenth of a second, now
    and then, in the middle of an answer. Only a process of our own may do so: what is part of a cycle is never freed
    afterwards."""
    gc.collect()
    gc.freeze()
