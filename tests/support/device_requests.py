"""Sequences of token ids for engines over tiny models on a device: their text is nobody's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams


def made(
    number: int,
    prompt: Sequence[int],
    params: SamplingParams,
    vocab: int,
    *,
    context: int = sys.maxsize,
    trace: bool = True,
) -> Request:
    """At most as long as a `context`."""
    resolved = params.resolve({}, [], vocab)
    return Request(
        id=number,
        tokens=list(prompt),
        prompt_length=len(prompt),
        params=resolved,
        limit=min(resolved.max_tokens, context - len(prompt)),
        stream=TextStream(lambda token: b"x", resolved.stop, False),
        history=History(list(prompt)),
        keep_trace=trace,
    )
