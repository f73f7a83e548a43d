"""Engines over tiny models: their requests, their drafters, and what a request says alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from tiny_head import sensible_head
from tiny_models import decoder_of, reference

from outrider import SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.core.model import DraftHead, LanguageModel
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.architecture import Architecture
from outrider.models.head.load import place_head
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import FP32
from outrider.models.torch_decoder import TorchDecoder
from outrider.sampling.history import History

VOCAB = 97


class TinyParts:
    """What tiny drafters are made of."""

    vocab_size = VOCAB
    remember = True
    has_head = False

    def __init__(self, reference_model: Any, target: LanguageModel) -> None:
        self._reference, self._target = reference_model, target

    def draft_model(self, path: str) -> LanguageModel:
        return decoder_of(reference("qwen3"), "native")

    def head(self, path: str) -> DraftHead:
        assert isinstance(self._target, NativeDecoder | TorchDecoder)
        ids = torch.tensor([token for token in range(VOCAB) if token % 9])
        return place_head(sensible_head(self._reference.state_dict(), self._target.architecture, ids), self._target)


def small_decoder(source: Any) -> NativeDecoder:
    architecture = Architecture.from_config(source.config.to_dict())
    return NativeDecoder.load(architecture, source.state_dict().items(), FP32, max_batch=4, max_context=160, threads=1)


def drafter_for(name: str, source: Any, target: LanguageModel, keeps: bool = True) -> Drafter:
    """`keeps`: lookup remembers what finished requests said."""

    class Parts(TinyParts):
        remember = keeps

        def draft_model(self, path: str) -> LanguageModel:
            return small_decoder(reference("qwen3"))

    paths = {"model": "model:tiny", "head": "head:tiny", "head+suffix": "head+suffix:tiny"}
    return build(paths.get(name, name), Parts(source, target))


def request(number: int, prompt: Sequence[int], temperature: float = 0.0, limit: int = 20) -> Request:
    params = SamplingParams(temperature=temperature, seed=100 + number).resolve({}, (), VOCAB)
    stream = TextStream(lambda token: b"x", (), False)
    return Request(number, list(prompt), len(prompt), params, limit, stream, History(prompt), keep_trace=True)


def text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(12), k=length)


def finish(engine: Engine, *requests: Request) -> list[list[int]]:
    for each in requests:
        engine.add(each)
    while not engine.idle:
        engine.step()
    assert engine.leaks() == []
    return [each.tokens[each.prompt_length :] for each in requests]


def again(engine: Engine) -> None:
    """Everything that runs leaves and comes back, as the service does after a step that failed."""
    running = list(engine.scheduler.running)
    for each in running:
        engine.remove(each)
    for each in running:
        engine.add(each)


def alone(model: LanguageModel, one: Request) -> list[int]:
    """What a request says by itself, plainly decoded by an engine that has seen nothing else."""
    prompt = one.tokens[: one.prompt_length]
    copy = Request(one.id, prompt, len(prompt), one.params, one.limit, one.stream, History(prompt))
    return finish(Engine(model, NoDrafter(), FixedLength(0)), copy)[0]


def drafts_by_position(request: Request) -> dict[int, tuple[list[int], list[float]]]:
    """Tokens and confidence of each draft, by how many tokens the request had generated."""
    found, at = {}, 0
    for step in request.trace:
        if step.draft.tokens:
            found[at] = list(step.draft.tokens), list(step.draft.confidence)
        at += len(step.path) + (step.token is not None)
    return found
