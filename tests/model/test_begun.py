"""First tokens come with their prompts' pass, before any drafter has read them; nothing else changes by it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tiny_engine import VOCAB, again, alone, drafter_for, drafts_by_position, finish, request, small_decoder, text

from outrider import SamplingParams
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.model import DraftHead
from outrider.drafters.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.native.decoder import NativeDecoder
from outrider.sampling.history import History

PROMPTS = (40, 23, 31)


@pytest.fixture
def model(source: Any) -> NativeDecoder:
    made = small_decoder(source)
    made.chunk = 128  # all of these prompts fit a pass
    return made


def asked(temperature: float, tokens: int = 30) -> list[Request]:
    return [request(i, text(length, 20 + i), temperature, tokens) for i, length in enumerate(PROMPTS)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["none", "suffix", "head", "model", "head+suffix"])
def test_tokens_and_drafts_are_those_of_steps_alone(
    source: Any, model: NativeDecoder, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts, too, at all positions that both have drafted at, and how sure they are: to the bit."""
    begun, stepped = asked(temperature), asked(temperature)
    finish(Engine(model, drafter_for(name, source, model, keeps=False), FixedLength(4)), *begun)
    assert all(one.trace[0].draft.tokens == () for one in begun)
    monkeypatch.setattr(HostExecutor, "begins", False)
    finish(Engine(model, drafter_for(name, source, model, keeps=False), FixedLength(4)), *stepped)
    compared = 0
    for one, other in zip(begun, stepped, strict=True):
        assert one.tokens == other.tokens
        assert one.tokens[one.prompt_length :] == alone(model, one)
        mine, its = drafts_by_position(one), drafts_by_position(other)
        common = mine.keys() & its.keys()
        assert [mine[at] for at in common] == [its[at] for at in common]
        compared += len(common)
    assert name == "none" or compared


def test_the_first_token_waits_for_no_drafter(
    source: Any, model: NativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_for("head", source, model)
    engine, one = Engine(model, drafter, FixedLength(4)), request(0, text(40, 9), 0.0, 12)
    network, seen = drafter.networks["head"], list[str]()
    assert isinstance(network, DraftHead)

    def noted(name: str) -> None:
        made = getattr(network, name)

        def noting(*given: Any, **named: Any) -> Any:
            seen.append(name)
            return made(*given, **named)

        monkeypatch.setattr(network, name, noting)

    for name in ("forward", "rank", "draft"):
        noted(name)
    engine.add(one)
    (chunk,) = engine.step()
    assert len(chunk.token_ids) == 1
    assert seen == []
    engine.step()
    assert seen[0] == "forward", "then the prompt is read, before a draft is made"
    assert len(seen) > 1
    engine.remove(one)


@pytest.mark.parametrize("ends", [[0], [1], [0, 2], [0, 1, 2]])
def test_those_that_end_with_their_first_token_are_read_by_nobody(
    source: Any, model: NativeDecoder, ends: list[int]
) -> None:
    """And the others' rows are still theirs: their drafts are those they have when nobody ends."""
    whole, cut = asked(0.0), asked(0.0)
    for i in ends:
        cut[i].limit = 1
    finish(Engine(model, drafter_for("head", source, model, keeps=False), FixedLength(4)), *whole)
    engine = Engine(model, drafter_for("head", source, model, keeps=False), FixedLength(4))
    finish(engine, *cut)
    assert engine.leaks() == []
    for i, (one, other) in enumerate(zip(cut, whole, strict=True)):
        if i in ends:
            assert one.generated == 1
        else:
            assert one.tokens == other.tokens
            assert drafts_by_position(one) == drafts_by_position(other)


def test_prompts_that_are_scored_are_scored(model: NativeDecoder, source: Any) -> None:
    """Whoever is scored needs rows of its prompt; it, and those with it, begin by a step."""
    scored, other = request(0, text(20, 3), 0.0, 8), request(1, text(25, 4), 0.0, 8)
    scored.params = replace(scored.params, prompt_logprobs=0)
    finish(Engine(model, drafter_for("head", source, model), FixedLength(4)), scored, other)
    assert len(scored.scores) == 19
    assert [one.tokens[one.prompt_length :] for one in (scored, other)] == [
        alone(model, one) for one in (scored, other)
    ]


def any_request(rng: random.Random, number: int, shared: list[int]) -> Request:
    """Of any parameters; many end with their first token."""
    prompt = shared[: rng.randrange(1, len(shared) + 1)] if rng.random() < 0.5 else []
    prompt = prompt + text(rng.choice([0, 1, 5, 30, 60]), rng.randrange(1 << 20)) or [1]
    ways: list[dict[str, Any]] = [
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"stop_token_ids": rng.sample(range(VOCAB), 30)},
        {"stop": [chr(97 + rng.randrange(26)), "ab"]},
        {"min_tokens": 3, "stop_token_ids": rng.sample(range(VOCAB), 60)},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.7},
        {"logprobs": 0, "processed_logprobs": True, "logit_bias": {3: 5.0}},
    ]
    asked: dict[str, Any] = {"temperature": rng.choice([0.0, 0.7, 1.5]), "seed": rng.randrange(1000)}
    for way in rng.sample(ways, rng.randrange(3)):
        asked |= way
    params = SamplingParams(**asked).resolve({}, (), VOCAB)
    limit = rng.choice([1, 1, 2, 12, 40]) if params.prompt_logprobs is None else rng.choice([0, 1, 12])
    limit = max(limit, params.min_tokens)
    return fresh(Request(number, prompt, len(prompt), params, limit, TextStream(bytes, (), False), History(prompt)))


def fresh(one: Request) -> Request:
    """The same, which nobody has begun."""
    prompt, stream = one.tokens[: one.prompt_length], TextStream(lambda t: bytes([97 + t % 26]), one.params.stop, False)
    return Request(one.id, prompt, len(prompt), one.params, one.limit, stream, History(prompt), keep_trace=True)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 100))])
def test_whoever_comes_and_goes_is_told_what_steps_alone_tell(source: Any, seed: int) -> None:
    """Texts, reasons, log-probabilities and scores, to the bit: prompts in any pieces, some of them cached, some that
    are let go of or sent back right behind their first token."""
    rng = random.Random(seed)
    model = small_decoder(source)
    model.chunk = rng.choice([24, 48, 128])
    name = ("none", "suffix", "head", "model", "head+suffix")[seed % 5]
    controller: Controller = FixedLength(rng.choice([1, 4, 8])) if seed % 3 else AutoLength(8, 16)
    engine = Engine(model, drafter_for(name, source, model), controller)
    shared = text(rng.randrange(5, 60), seed)
    every = [any_request(rng, i, shared) for i in range(rng.randrange(2, 8))]
    coming, gone = list(every), set[int]()
    while coming or not engine.idle:
        for one in coming[: rng.choice([0, 1, 1, 3])]:
            engine.add(one)
            coming.remove(one)
        engine.step()
        for one in engine.scheduler.running[:]:
            if one.generated == 1 and rng.random() < 0.2:
                engine.remove(one)
                gone.add(one.id)
        if rng.random() < 0.1:
            again(engine)
    assert engine.leaks() == []
    for one in every:
        steps = Engine(small_decoder(source), NoDrafter(), FixedLength(0))
        steps.executor.begins = False
        truth = fresh(one)
        finish(steps, truth)
        count = one.generated
        assert one.tokens == truth.tokens[: len(one.tokens)]
        assert one.logprobs == truth.logprobs[:count]
        if one.id not in gone:
            assert one.finish_reason == truth.finish_reason
            assert (one.stream.text, one.logprobs, one.scores) == (truth.stream.text, truth.logprobs, truth.scores)
