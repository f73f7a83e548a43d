"""Sequences come, go, are aborted, sent back and added again in any order, while steps on a device are under way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import device_requests
import numpy as np
import pytest
import torch
from device_requests import device_of, host_engine
from draft_trees import grown, walked
from judged import by_reference
from numpy.typing import NDArray
from simulated import hashed, said, simulate
from tiny_gpu_head import CPU, VOCAB, loud_head
from tiny_gpu_head import TARGET as SHAPE

from outrider.bench.shapes import random_weights
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import Speculation
from outrider.core.drafter import Drafter
from outrider.core.request import RequestView, TokenGrammar
from outrider.core.step import StepPlan, tree_of
from outrider.drafters.candidates import samples
from outrider.drafters.head import HeadDrafter
from outrider.drafters.mix import MixDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.router import RouterDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.head.load import place_head
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams
from outrider.sampling.warp import REPORTED

BATCH, CONTEXT = 5, 96

DRAWN_BY = {"temperature", "top_k", "top_p", "min_p"}

DRAFT_SALT, HEAD_SALT = 0x5BD1E995, 0x1B873593


class OwnNgram(NgramDrafter):
    """As a drafter of one's own, which the host has to ask for every step."""

    looks_up = continues = False
    device_part = Drafter.device_part  # type: ignore[assignment]
    paid = Drafter.paid


class Fickle(FixedLength):
    """Another length at every launch, but for long stretches of none."""

    def __init__(self, rng: random.Random, most: int, tree: bool = False) -> None:
        super().__init__(most, tree)
        self.most, self.rng, self.silent = most, rng, 0
        self.away = False

    def _next(self) -> None:
        if self.silent:
            self.silent -= 1
            self.nodes = 0
            return
        if self.rng.random() < 0.15:
            self.silent = self.rng.choice([1, 3, 40])
        self.nodes = self.rng.randint(0, self.most)

    def pays(self, prompts: Sequence[RequestView], running: int) -> list[bool]:
        return [True] * len(prompts)

    def draft(self, *args: Any) -> Any:
        self._next()
        return super().draft(*args)

    def plan(self, *args: Any) -> StepPlan:
        self._next()
        return super().plan(*args)


def decoder(salt: int = 0, *, batch: int = BATCH, context: int = CONTEXT, blocks: int | None = None) -> CudaDecoder:
    """`blocks` of its cache; None: as many as all slots could fill."""
    weights = random_weights(SHAPE, CPU, torch.float32, seed=1)
    made = CudaDecoder.load(SHAPE, weights, torch.float32, CPU, max_batch=batch, max_context=context)
    if blocks is not None:
        made.provide(blocks, context)
    simulated: Any = made.network
    simulated.salt, simulated.width = salt, VOCAB
    return made


def drafters(kind: str, target: CudaDecoder) -> Drafter:
    if kind == "none":
        return NoDrafter()
    if kind == "ngram":
        return NgramDrafter()
    if kind == "suffix":
        return SuffixDrafter()
    if kind == "own":
        return OwnNgram()
    if kind == "mix":
        head_drafter = drafters("head", target)
        assert isinstance(head_drafter, HeadDrafter)
        return MixDrafter(head_drafter, SuffixDrafter())
    if kind in ("head", "trees"):
        head: Any = place_head(loud_head(), target)
        network: Any = head.network
        network.salt, network.width, network.ids = HEAD_SALT, VOCAB, head.ids.numpy()
        return HeadDrafter(head, VOCAB)
    model = ModelDrafter(decoder(DRAFT_SALT))
    return model if kind == "model" else RouterDrafter(model, {"ngram": NgramDrafter()})


def made(number: int, prompt: list[int], params: SamplingParams) -> Request:
    return device_requests.made(number, prompt, params, VOCAB, context=CONTEXT)


def request(
    rng: random.Random, number: int, prompts: list[list[int]], kind: str, grammars: Sequence[TokenGrammar] = ()
) -> Request:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 1, 2, 3, 20, 40]))]
    if prompts and rng.random() < 0.4:
        other = rng.choice(prompts)
        prompt = other[: rng.randint(1, min(len(other), CONTEXT - 20))] + prompt[: rng.randint(0, 3)]
    common: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 5, 12, 30, 60]), "seed": rng.randrange(1000)}
    if rng.random() < 0.3:
        common["stop_token_ids"] = [rng.randrange(VOCAB)]
    common["temperature"] = rng.choice([0, 0, 1.0, 0.7])
    if common["temperature"] and rng.random() < 0.4:
        common |= rng.choice(
            [{"top_p": 0.8}, {"min_p": 0.1}, {"top_p": 0.5, "min_p": 0.2}, {"top_k": 3}, {"top_k": 5, "top_p": 0.7}]
        )
    if rng.random() < (0.02 if kind == "trees" else 0.15):  # beside one such, all draft chains
        common["verify"] = "rejection"
    if rng.random() < 0.04:
        common |= {"logprobs": 2, "processed_logprobs": True}
        common["max_tokens"] = min(common["max_tokens"], 6)
    elif rng.random() < 0.25:
        common |= rng.choice(
            [
                {"logprobs": 2},
                {"logprobs": 0, "repetition_penalty": 1.3},
                {"frequency_penalty": 0.5, "presence_penalty": -0.3},
                {"logit_bias": {1: 2.0, 5: -3.0}},
                {"min_tokens": 1, "stop_token_ids": [2, 3, 4]},
                {"repetition_penalty": 1.1, "min_tokens": common["max_tokens"] // 2, "stop_token_ids": [2, 3, 4]},
            ]
        )
    one = made(number, prompt, SamplingParams(**common))
    if grammars and rng.random() < 0.5:
        ends = one.params.stop_token_ids | {0}
        one.params = replace(one.params, grammar=rng.choice(grammars), stop_token_ids=ends)
    one.cache_salt = rng.choice([None, None, "a"])
    if kind == "router" and rng.random() < 0.25:
        one.speculation = rng.choice(
            [Speculation(drafter="ngram"), Speculation(prediction=(1, 2, 3)), Speculation(max_nodes=0)]
        )
    elif rng.random() < 0.03:
        one.speculation = Speculation(max_nodes=rng.choice([0, 1, 2]))
    return one


def expected(target: CudaDecoder, one: Request) -> list[int]:
    alone = host_engine(target, NoDrafter(), FixedLength(0))
    again = replace(
        one,
        tokens=one.tokens[: one.prompt_length],
        stream=TextStream(lambda token: b"x", one.params.stop, False),
        history=History(one.tokens[: one.prompt_length]),
        slot=-1,
        num_uncomputed_tokens=0,
        prefix_donor=None,
        finish_reason=None,
        failure=None,
        origins=[],
        logprobs=[],
        trace=[],
        sources={},
        acceptance=[],
    )
    alone.add(again)
    while not again.finish_reason:
        alone.step()
    return again.tokens


def check_drafts(one: Request, source: str, bad: list[str]) -> int:
    """At temperature 0: every chain is what a drafter says that has seen all of the text."""
    at, count = one.prompt_length, 0
    for number, step in enumerate(one.trace):
        draft = list(step.draft.tokens)
        if draft and step.draft.source == source and one.params.features <= REPORTED and at > 1:
            count += 1
            ideal = IDEAL[source](one.tokens[:at], len(draft))
            if draft != ideal:
                bad.append(f"request {one.id} step {number} at {at}: drafted {draft}, whole {ideal}")
        at += len(step.path) + (step.token is not None)
    return count


def check_trees(one: Request, whole: list[int], bad: list[str]) -> int:
    """Every tree is what a head grows that has seen all of the text, and is followed for as long as it goes on like
    that; where scores are processed there are chains."""
    at, count = one.prompt_length, 0
    for number, step in enumerate(one.trace):
        draft, come = step.draft, len(step.path) + (step.token is not None)
        tokens, parents = list(draft.tokens), list(draft.parents)
        if step.path != walked(tokens, parents, whole[at:])[: len(step.path) if step.token is None else None]:
            bad.append(f"request {one.id} step {number} at {at}: {draft} followed by {step.path}, not {whole[at:]}")
        generated = at - one.prompt_length
        known = not one.params.temperature or generated + tree_of(len(tokens)).drafted <= one.limit  # no noise beyond
        if parents != [*range(-1, len(parents) - 1)] and at > 1 and one.params.features <= DRAWN_BY and known:
            count += 1
            ideal = grown(HeadSays(one.tokens[:at]), IDS, len(tokens), one.params, generated)
            if (tokens, parents) != ideal:
                bad.append(f"request {one.id} step {number} at {at}: grown {tokens, parents}, whole {ideal}")
        at += come
    return count


def check_judged(one: Request, gapless: bool, bad: list[str]) -> None:
    """By the rejection rule: every draft is what the reference draws, by a drafter that has seen all of the text, and
    what became of it, whoever drafted, is what the reference makes of it."""
    at = one.prompt_length
    for number, step in enumerate(one.trace):
        text, come = one.tokens[:at], len(step.path) + (step.token is not None)
        then = made(one.id, text[: one.prompt_length], SamplingParams())
        then.params, then.limit = one.params, one.limit
        then.tokens, then.history = text, History(text[: one.prompt_length])
        then.history.append(text[one.prompt_length :])
        drafted = list(step.draft.tokens)[: then.room]
        drawn = step.draft.source in IDEAL
        if step.draft.source == "head" and at == 1:  # it has seen nothing yet, and draws from something else
            at += come
            continue
        levels = [SAYS[step.draft.source](text, drafted[:depth]) for depth in range(len(drafted))] if drawn else []
        target = np.stack([said(hashed(text + drafted[:depth]), VOCAB) for depth in range(len(drafted) + 1)])
        logits, ids = (
            torch.from_numpy(np.stack(levels)) if levels else None,
            torch.tensor(KNOWN.get(step.draft.source, IDS)),
        )
        draft, verdict = by_reference(then, logits, ids, torch.from_numpy(target), () if drawn else drafted)
        gained = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        if gapless and at > 1 and drafted != list(draft.tokens):
            bad.append(f"request {one.id} step {number} at {at}: drew {drafted}, not {draft.tokens}")
        if one.tokens[at : at + come] != gained[:come] or (come < len(gained) and at + come < len(one.tokens)):
            bad.append(f"request {one.id} step {number} at {at}: {step} instead of {gained}")
        at += come


def whole_model(text: list[int], count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        found.append(int(said(hashed(text + found), VOCAB, DRAFT_SALT).argmax()))
    return found


IDS = [1, 2, 4, 5, 8, 9, 11]


class HeadSays:
    """What a head says that has seen all of a text, after some more tokens."""

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self.entries: list[list[int]] = []
        for i in range(1, len(text)):
            h = hashed(text[:i])
            self.entries.append([text[i], h >> 16, h & 0xFFFF])

    def __call__(self, path: Sequence[int]) -> NDArray[np.float32]:
        entries, text = list(self.entries), list(self.text)
        for token in path:
            h = hashed(text)
            text.append(token)
            entries.append([token, h >> 16, h & 0xFFFF])
        logits: NDArray[np.float32] = said(hashed(text), VOCAB, HEAD_SALT, hashed(np.array(entries)))[IDS]
        return logits


def whole_head(text: list[int], count: int) -> list[int]:
    says, found = HeadSays(text), list[int]()
    for _ in range(count):
        found.append(IDS[int(says(found).argmax())])
    return found


IDEAL = {"model": whole_model, "head": whole_head}
SAYS: dict[str, Callable[[list[int], list[int]], NDArray[np.float32]]] = {
    "model": lambda text, path: said(hashed(text + path), VOCAB, DRAFT_SALT),
    "head": lambda text, path: HeadSays(text)(path),
}
KNOWN = {"model": list(range(VOCAB)), "head": IDS}


def any_order(
    seed: int,
    kind: str,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    controller: str = "fickle",
    grammars: Sequence[TokenGrammar] = (),
) -> int:
    """`grammars`: of which half of the requests have one, that token 0 ends."""
    simulate(monkeypatch)
    rng = random.Random(seed)
    target = decoder()
    drafter = drafters(kind, target)
    lengths: dict[str, Callable[[], Controller]] = {
        "fickle": lambda: Fickle(rng, rng.choice([5, 12, 32] if kind == "trees" else [1, 3, 32]), kind == "trees"),
        "auto": AutoLength,
        "fixed": lambda: FixedLength(3, kind == "trees"),
    }
    chosen: Controller = lengths[controller]()
    engine = Engine(target, drafter, chosen, kv_tokens=rng.choice([None, CONTEXT, 2 * CONTEXT]))
    device = device_of(engine)
    slow = random.Random(seed)
    monkeypatch.setattr(device._clock, "idles", lambda *_: slow.random() < 0.5)  # the interpreter has no clock
    if rng.random() < 0.5:
        monkeypatch.setattr(device._stepper, "horizon", rng.choice([1, 4, 8]))
    going: list[Request] = []
    out: list[Request] = []
    every: list[Request] = []
    prompts: list[list[int]] = []
    number = 0
    for _step in range(steps):
        for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 4])):
            if len(going) < 9:
                one = request(rng, number, prompts, kind, grammars)
                number += 1
                prompts.append(one.tokens)
                going.append(one)
                every.append(one)
                engine.add(one)
        if going and rng.random() < 0.08:
            one = rng.choice(going)
            engine.remove(one)
            going.remove(one)
            if rng.random() < 0.7:
                out.append(one)
        if out and rng.random() < 0.3:
            one = out.pop()
            going.append(one)
            engine.add(one)
        if rng.random() < 0.1:
            engine.scheduler.kv_tokens = rng.choice([20, 60, 200, 480])  # somebody may be sent back
        engine.step()
        assert len(device._under_way) <= 2
        going = [one for one in going if not one.finish_reason]
    while not engine.idle:
        engine.step()
    leaks = engine.leaks()
    assert not leaks, leaks
    assert not any((device._lanes._keys, device._lanes._reach, *device._lanes.requests))
    bad: list[str] = []
    count = 0
    for one in every:
        if samples(one.params):  # its text depends on its drafts
            check_judged(one, controller != "auto", bad)
            continue
        whole = expected(target, one)
        if one.finish_reason:
            assert one.tokens == whole, (one.id, one.params)
        else:
            assert one.tokens == whole[: len(one.tokens)], (one.id, one.params)
        assert len(one.logprobs) == (one.generated if one.params.logprobs is not None else 0)
        if kind == "trees":
            count += check_trees(one, whole, bad)
        elif controller != "auto" and kind in ("model", "head", "router", "mix"):  # `auto` may leave gaps
            count += check_drafts(one, {"router": "model", "mix": "head"}.get(kind, kind), bad)
    assert not bad, f"{len(bad)} of {count} drafts: {bad[:3]}"
    return count
