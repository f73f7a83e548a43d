"""Among many lanes, a head that is not asked to draft is left behind: it changes what it drafts later, and no token."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from any_order import HEAD_SALT, IDS, Fickle, check_drafts, decoder, drafters, expected, made
from device_requests import device_of
from simulated import hashed, only_interpreted, said, simulate
from tiny_gpu_head import VOCAB

from outrider.control.controller import FixedLength
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.cuda import chains
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted

SILENT, DRAFTED = 60, 3


class AfterSilence(Fickle):
    """Nothing for a while, then chains."""

    def __init__(self) -> None:
        super().__init__(Random(0), DRAFTED)
        self.silent = SILENT

    def _next(self) -> None:
        self.nodes = 0 if self.silent else DRAFTED
        self.silent = max(0, self.silent - 1)


def drafted_by_a_head(text: list[int], absorbed: int, gap: int, count: int) -> list[int]:
    """That has rows of the first `absorbed` tokens but one and lacks the next `gap`."""
    entries = []
    for i in range(1, len(text)):
        h = hashed(text[:i])
        entries.append([text[i], h >> 16, h & 0xFFFF])
    entries = entries[:absorbed] + entries[absorbed + gap :]
    found: list[int] = []
    for _ in range(count):
        after = hashed(text + found)
        seen = hashed(np.array(entries))
        found.append(IDS[int(said(after, VOCAB, HEAD_SALT, seen)[IDS].argmax())])
        entries.append([found[-1], after >> 16, after & 0xFFFF])
    return found


def drafts(one: Request) -> list[tuple[list[int], list[int]]]:
    """And the text before each."""
    at, found = one.prompt_length, []
    for step in one.trace:
        if step.draft.tokens:
            found.append((one.tokens[:at], list(step.draft.tokens)))
        at += len(step.path) + (step.token is not None)
    return found


@pytest.mark.parametrize("at_once", [4, pytest.param(chains.WAITING, marks=pytest.mark.slow)])
def test_long_silence_among_many_lanes_leaves_a_gap(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`at_once`: tokens of each lane that one pass takes in: all that wait, where there are few lanes."""
    simulate(monkeypatch)
    monkeypatch.setattr(chains, "_most", lambda lanes, network: at_once)
    target = decoder()
    controller = AfterSilence()
    engine = Engine(target, drafters("head", target), controller)
    stepper: Any = device_of(engine)._stepper
    prompts = [[5, 6, 7], [3, 1, 4, 1, 5], [8, 2]]
    requests = [made(i, prompt, SamplingParams(temperature=0, max_tokens=80)) for i, prompt in enumerate(prompts)]
    for one in requests:
        engine.add(one)
    while controller.silent:
        engine.step()
    lanes = {one.id: stepper._board.length(number) for number, one in enumerate(requests)}
    while not engine.idle:
        engine.step()
    # Another one that begins with what one of them said: of the head's rows it has those before the gap.
    again = made(9, [*requests[0].tokens[:60], 1, 2], SamplingParams(temperature=0, max_tokens=12))
    engine.add(again)
    engine.step()
    number = device_of(engine)._lanes.requests.index(again)
    lanes[again.id] = stepper._board.length(number)
    while not engine.idle:
        engine.step()
    assert engine.stats.prefix_hits == 1
    assert engine.leaks() == []
    assert (stepper.skips > 0) == (at_once < chains.WAITING)
    for one in (*requests, again):
        assert one.tokens == expected(target, one)
        _, gap, absorbed = lanes[one.id]
        assert (gap > 0) == (at_once < chains.WAITING)
        assert len(drafts(one)) > 2
        if one is again:
            absorbed = len(prompts[0]) - 2
        for text, draft in drafts(one):
            assert draft == drafted_by_a_head(text, absorbed if gap else len(text), gap, len(draft))


def test_the_host_goes_on_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with penalties is stepped on the host, and so are the others meanwhile."""
    simulate(monkeypatch)
    monkeypatch.setattr(chains, "_most", lambda lanes, network: 4)
    target = decoder()
    controller = AfterSilence()
    engine = Engine(target, drafters("head", target), controller)
    first = made(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=80))
    engine.add(first)
    while controller.silent:
        engine.step()
    before = len(drafts(first))
    _, gap, _ = device_of(engine)._stepper._board.length(0)  # type: ignore[attr-defined]
    second = made(1, [4, 4], SamplingParams(temperature=0, max_tokens=3, repetition_penalty=1.3))
    engine.add(second)
    while not engine.idle:
        engine.step()
    assert engine.leaks() == []
    assert gap > 0
    assert first.tokens == expected(target, first)
    assert second.tokens == expected(target, second)
    assert len(drafts(first)) > before + 2
    for text, draft in drafts(first):
        assert draft == drafted_by_a_head(text, 1, gap, len(draft))


def test_a_conversation_that_goes_on_has_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens the last step of a turn brought, which no draft followed: every draft is that of a head which
    has read all that was said."""
    simulate(monkeypatch)
    target, rng, bad, count = decoder(), Random(3), list[str](), 0
    engine, text = (
        Engine(target, drafters("head", target), FixedLength(3, False)),
        [rng.randrange(VOCAB) for _ in range(13)],
    )
    for turn in range(4):
        words = [rng.randrange(VOCAB) for _ in range(7)]
        one = made(turn, [*text, *words], SamplingParams(max_tokens=9, temperature=0))
        engine.add(one)
        while not one.finish_reason:
            engine.step()
        count += check_drafts(one, "head", bad)
        text = one.tokens
    assert bad == []
    assert count > 8
    assert engine.stats.prefix_hits == 3
