"""What an engine is doing, for those who watch it."""

from __future__ import annotations

from typing import NamedTuple


class Stats(NamedTuple):
    running: int
    """Requests that hold a place, prompts being run included."""
    waiting: int
    kv_used: int
    """Tokens of the running requests; where they share some, at most the next."""
    kv_total: int
    """Tokens that running requests may have together if they share none."""
    kv_kept: int
    """Tokens that finished requests have left in slots nobody has needed since."""
    prefix_hits: int
    """Requests that began with tokens some slot held already."""
    prefix_tokens: int
    """How many tokens that saved."""
    preemptions: int
    late_recordings: int
    """Steps on a device that were compiled or recorded while a request waited for them."""
    restarts: int
    """Errors of the device after which all that ran was computed again."""
