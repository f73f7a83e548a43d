"""Requests of token ids for engines over tiny models on a device: their text is nobody's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from outrider.control.controller import Controller
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.engine.device_executor import DeviceExecutor
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
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


def device_of(engine: Engine) -> DeviceExecutor:
    """What takes its steps."""
    assert isinstance(engine.executor, DeviceExecutor)
    return engine.executor


def host_engine(model: LanguageModel, drafter: Drafter, controller: Controller) -> Engine:
    """Takes every step on the host, though the device could."""
    return Engine(model, drafter, controller, executor=HostExecutor(model, drafter, controller))


def stepped(model: LanguageModel, drafter: Drafter, controller: Controller, *, on_device: bool) -> Engine:
    engine = Engine(model, drafter, controller) if on_device else host_engine(model, drafter, controller)
    assert isinstance(engine.executor, DeviceExecutor) == on_device
    return engine
