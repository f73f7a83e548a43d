"""Sequences of token ids for engines over tiny models on a device: their text is nobody's."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Several

from outrider.engine.sequence import Sequence
from outrider.engine.text import TextStream
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams


def made(
    number: int,
    prompt: Several[int],
    params: SamplingParams,
    vocab: int,
    *,
    context: int = sys.maxsize,
    trace: bool = True,
) -> Sequence:
    """At most as long as a `context`."""
    resolved = params.resolve({}, [], vocab)
    return Sequence(
        id=number,
        tokens=list(prompt),
        prompt_length=len(prompt),
        params=resolved,
        limit=min(resolved.max_tokens, context - len(prompt)),
        stream=TextStream(lambda token: b"x", resolved.stop, False),
        history=History(list(prompt)),
        keep_trace=trace,
    )
