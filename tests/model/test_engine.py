"""The engine under way: requests join, leave, are sent back and reuse each other's beginnings, and every one of them
says what it says alone, decoded plainly. Rows are exact to the bit here, so equality is the test."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tiny_engine import again, alone, drafter_for, drafts_by_position, finish, request, text
from tiny_models import decoder_of, gpt2

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.core.draft import Draft, Verdict
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel, Rows
from outrider.drafters.none import NoDrafter
from outrider.engine import scheduler
from outrider.engine.engine import Engine
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import NO_SLOT, Request
from outrider.engine.slot_manager import LEAST
from outrider.errors import InvalidRequest
from outrider.models.hf import HFModel
from outrider.models.native.decoder import NativeDecoder
from outrider.sampling.random_source import RandomSource
from outrider.verify import RULES, Target, coupled


def counted(model: LanguageModel) -> list[list[Rows]]:
    """Every batch run from now on."""
    batches: list[list[Rows]] = []
    forward: Callable[[Sequence[Rows]], torch.Tensor] = model.forward

    def counting(batch: Sequence[Rows]) -> torch.Tensor:
        batches.append(list(batch))
        return forward(batch)

    model.forward = counting  # type: ignore[method-assign]
    return batches


def prompt_rows(batches: list[list[Rows]]) -> int:
    return sum(len(rows.tokens) for batch in batches for rows in batch if rows.logits is not None)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["none", "suffix", "head", "model", "head+suffix"])
def test_traffic(
    source: Any, model: NativeDecoder, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences come at any time, some are aborted wherever they are, too little room for all: prompts begin with one
    of two instructions, or are what another said before."""
    monkeypatch.setattr(scheduler, "LOOKAHEAD", 6)  # admit with little room, to have to send back
    engine = Engine(model, drafter_for(name, source, model), FixedLength(5), kv_tokens=190)
    rng = random.Random(11)
    instructions = [text(20, 1), text(25, 2)]
    requests: list[Request] = []
    aborted: set[int] = set()
    for step in range(10_000):
        if len(requests) < 24 and rng.random() < 0.7:
            begin = rng.choice([*instructions, [], *(s.tokens for s in requests if s.finish_reason)])
            prompt = [*begin[:30], *text(rng.randint(1, 15), 50 + step)]
            requests.append(request(len(requests), prompt, temperature, rng.choice([1, 20, 80, 80])))
            engine.add(requests[-1])
        engine.step()
        if rng.random() < 0.02 and (open_ones := [s for s in requests if not s.finish_reason]):
            aborted.add((gone := rng.choice(open_ones)).id)
            engine.remove(gone)
            assert gone.slot == NO_SLOT
        if len(requests) == 24 and engine.idle:
            break
    stats = engine.stats
    assert stats.prefix_hits > 2, "too little was reused for the comparison to mean anything"
    assert stats.preemptions > 0
    assert aborted
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)
    assert engine.leaks() == []
    if name != "none":
        assert sum(s.accepted for s in requests) > 2
    for one in requests:
        said = one.tokens[one.prompt_length :]
        assert one.id in aborted or one.finish_reason == "length"
        assert said == alone(model, one)[: len(said)], f"request {one.id}"


@pytest.mark.parametrize("kind", ["torch", "torch-bitwise", "hf"])
def test_other_caches(source: Any, kind: str) -> None:
    """The same over the other decoders; transformers' own keeps nothing, and nothing is then reused."""
    model = HFModel(gpt2(), max_batch=3, max_context=128) if kind == "hf" else decoder_of(source, kind)
    model.chunk = 24
    engine = Engine(model, drafter_for("suffix", source, model), FixedLength(5) if kind == "hf" else AutoLength())
    begin = text(40, 3)
    requests = [request(i, [*begin, *text(1 + 7 * i, i)], float(i % 2)) for i in range(6)]
    said = finish(engine, *requests)
    assert said == [alone(model, one) for one in requests]
    assert (engine.stats.prefix_hits > 0) == (kind != "hf")


@pytest.mark.parametrize("name", ["head", "model", "head+suffix"])
@pytest.mark.parametrize("how", ["taken over", "copied", "copied while running", "sent back"])
def test_drafts_after_reuse_are_those_of_a_fresh_start(source: Any, model: NativeDecoder, name: str, how: str) -> None:
    """A drafter whose cache did not follow would still leave the text right; so its drafts are compared."""
    conversation = text(60, 4)

    def question() -> Request:
        return request(1, [*conversation[:50], *text(9, 5)], 1.0, 25)

    fresh = question()
    finish(Engine(model, drafter_for(name, source, model, keeps=False), FixedLength(4)), fresh)
    engine = Engine(model, drafter_for(name, source, model, keeps=False), FixedLength(4))
    asked = question()
    if how == "copied while running":
        engine.add(request(0, conversation, 1.0, 60))
        while not engine.step():
            pass
    elif how == "copied":
        finish(engine, request(0, conversation, 1.0, 60))
    elif how == "taken over":
        finish(engine, request(0, conversation[:55], 1.0, 3))
    engine.add(asked)
    while not asked.finish_reason:
        engine.step()
        if how == "sent back" and asked.generated >= 8 and not engine.stats.prefix_hits:
            again(engine)
    assert engine.stats.prefix_hits == 1
    assert asked.tokens == fresh.tokens
    if how != "sent back":  # of all positions that both drafted at: one that comes to others begins a token earlier
        both = [drafts_by_position(one) for one in (asked, fresh)]
        common = both[0].keys() & both[1].keys()
        assert len(common) > 2
        assert [both[0][at] for at in common] == [both[1][at] for at in common]
    assert abs(asked.accepted - fresh.accepted) <= 3
    assert fresh.accepted > 3


@pytest.mark.parametrize("common", [30, 49, 50], ids=["parts early", "parts late", "all of it"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_heads_cache_after_reuse_is_that_of_a_fresh_start(
    source: Any, model: NativeDecoder, common: int, temperature: float
) -> None:
    """To the bit: one wrong row among many seldom changes which tokens are drafted, but always how sure the head is of
    them. And all that can be reused is."""
    before = text(50, 4)
    prompt = [*before[:common], *(50 + token for token in text(50 - common, 5))]
    fresh, asked = (request(1, prompt, temperature, 12) for _ in range(2))
    finish(Engine(model, drafter_for("head", source, model), FixedLength(6)), fresh)
    engine = Engine(model, drafter_for("head", source, model), FixedLength(6))
    finish(engine, request(0, before, temperature, 3))
    finish(engine, asked)
    # The row of a token goes with the one after it, and the last token but one is run for its features.
    assert engine.stats.prefix_tokens == min(common - 1, 48)
    drafts, expected = ([step.draft for step in one.trace] for one in (asked, fresh))
    assert [list(draft.tokens) for draft in drafts] == [list(draft.tokens) for draft in expected]
    assert [list(draft.confidence) for draft in drafts] == [list(draft.confidence) for draft in expected]
    assert (drafts[0].source, drafts[1].source) == ("none", "head")  # the first token comes with the prompt


def test_a_conversation_runs_only_what_is_new(model: NativeDecoder) -> None:
    engine = Engine(model, NoDrafter(), FixedLength(0))
    first = request(0, text(40, 6))
    finish(engine, first)
    batches = counted(model)
    second = request(1, [*first.tokens, *text(10, 7)])
    finish(engine, second)
    assert prompt_rows(batches) == 11  # the last token of the answer, and all new ones
    assert len(batches) == second.generated, "the prompt's pass gives the first token"
    assert engine.stats.prefix_tokens == 59


def test_choices_of_one_prompt_run_it_once(model: NativeDecoder) -> None:
    """They come together: the first runs the prompt, the others wait for it and copy."""
    engine = Engine(model, NoDrafter(), FixedLength(0))
    batches = counted(model)
    requests = [request(i, text(100, 8), 1.0) for i in range(4)]
    said = finish(engine, *requests)
    assert 99 <= prompt_rows(batches) < 99 + 3 * LEAST
    assert engine.stats.prefix_hits == 3
    assert said == [alone(model, one) for one in requests]


@pytest.mark.parametrize("name", ["none", "suffix", "head", "model", "head+suffix"])
@pytest.mark.parametrize("how", ["left", "running", "together"])
def test_only_sequences_of_one_salt_share(source: Any, model: NativeDecoder, name: str, how: str) -> None:
    """Whether the other has ended, is decoding or is still reading its prompt; the text is the same in any case."""
    begin = text(60, 70)
    for salts in (("a", "a"), (None, None), ("a", "b"), ("a", None), (None, "a")):
        engine = Engine(model, drafter_for(name, source, model), FixedLength(4))
        pair = [request(i, [*begin, *text(9, 71 + i)], 1.0, 12) for i in range(2)]
        for each, salt in zip(pair, salts, strict=True):
            each.cache_salt = salt
        if how == "left":
            finish(engine, pair[0])
        elif how == "running":
            engine.add(pair[0])
            while not engine.step():
                pass
        finish(engine, *(each for each in pair if not each.finish_reason and each not in engine.scheduler.running))
        assert (engine.stats.prefix_hits, engine.stats.prefix_tokens > 0) == (
            (1, True) if salts[0] == salts[1] else (0, False)
        )
        assert [each.tokens[each.prompt_length :] for each in pair] == [alone(model, each) for each in pair]


class Blind(Drafter):
    """A head's drafter that cannot follow."""

    name = "head"
    reads_features = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.open, self.close, self.read, self.observe = inner.open, inner.close, inner.read, inner.observe  # type: ignore[method-assign]

    def propose(self, requests: Any, budgets: Any) -> list[Draft]:
        drafts: list[Draft] = self._inner.propose(requests, budgets)
        return drafts


def test_a_head_that_cannot_follow_sees_every_prompt_whole(source: Any, model: NativeDecoder) -> None:
    engine = Engine(model, Blind(drafter_for("head", source, model)), FixedLength(4))
    batches = counted(model)
    finish(engine, *(request(i, text(50, 9)) for i in range(3)))
    assert prompt_rows(batches) == 3 * 49
    assert engine.stats.prefix_hits == 0


def test_two_engines_over_one_model(model: NativeDecoder) -> None:
    """What one has left in a slot is gone once the other has used it, and neither takes it for its own."""
    one, two = (Engine(model, NoDrafter(), FixedLength(0)) for _ in range(2))
    prompt = text(30, 10)
    expected = alone(model, request(0, prompt))
    finish(one, request(0, prompt))
    assert one.stats.kv_kept == 49
    finish(two, *(request(i, text(60, 20 + i)) for i in range(5)))
    assert one.stats.kv_kept == 0
    assert finish(one, request(1, prompt)) == [expected]
    assert one.stats.prefix_hits == 0


@pytest.mark.parametrize("name", ["none", "suffix", "head", "model", "head+suffix"])
def test_removal_frees_everything_at_once(source: Any, model: NativeDecoder, name: str) -> None:
    """Waiting, its prompt half run, decoding, finished, twice; and when all is over nothing is left."""
    controller: Controller = AutoLength()
    engine = Engine(model, drafter_for(name, source, model), controller)
    requests = [request(i, text(20 + 20 * i, 30 + i), limit=30) for i in range(6)]
    for each in requests:
        engine.add(each)
    engine.step()
    engine.step()
    assert any(each.num_uncomputed_tokens for each in requests), "a prompt is half run"
    for each in requests[::-1]:
        assert engine.leaks() == [], "while something runs nothing is lost"
        engine.remove(each)
        engine.remove(each)
        assert each.slot == NO_SLOT
    assert engine.idle
    assert engine.leaks() == []
    assert model.held == 0
    one = request(9, text(30, 40))
    assert finish(engine, one) == [alone(model, one)]


def test_a_leak_is_told(model: NativeDecoder) -> None:
    engine = Engine(model, NoDrafter(), FixedLength(0))
    model.open()
    assert engine.leaks() == ["cache slots: 1 still held"]


def test_after_a_failed_step_everything_goes_on(source: Any, model: NativeDecoder) -> None:
    broken = False

    def failing(draft: Draft, target: Target, chance: RandomSource) -> Verdict:
        if broken:
            raise RuntimeError("planted")
        return coupled(draft, target, chance)

    drafter, controller = drafter_for("head+suffix", source, model), FixedLength(4)
    executor = HostExecutor(model, drafter, controller, {**RULES, "coupled": failing})
    engine = Engine(model, drafter, controller, executor=executor)
    requests = [request(i, text(30, 60 + i), float(i % 2)) for i in range(3)]
    for each in requests:
        engine.add(each)
    for step in range(12):
        broken = step % 4 == 3
        try:
            engine.step()
        except RuntimeError:
            again(engine)
    broken = False
    assert finish(engine) == []
    assert [s.tokens[s.prompt_length :] for s in requests] == [alone(model, s) for s in requests]


def test_a_budget_below_one_context_is_refused(model: NativeDecoder) -> None:
    with pytest.raises(InvalidRequest, match="kv_tokens: 100 tokens cannot hold"):
        Engine(model, NoDrafter(), FixedLength(0), kv_tokens=100)
