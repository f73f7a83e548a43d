"""A head that is not asked for drafts reads nothing, and what it missed is a gap in its cache: the text stays the same,
drafts go on from what is left, and nobody else is given rows that lie behind a gap."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tiny_engine import again, alone, drafter_for, finish, request, text
from toy import request as view

from outrider import LLM, SamplingParams
from outrider.control.controller import FixedLength
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import Rows
from outrider.core.request import RequestView
from outrider.core.step import StepShape
from outrider.drafters import head as head_module
from outrider.drafters.head import HeadDrafter
from outrider.engine import scheduler
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.slot_manager import LEAST
from outrider.models.native.decoder import NativeDecoder

WAITING = 8


class Pausing(FixedLength):
    """Drafts nothing for request `only` (None: for all) while it has generated `start` to `stop` tokens."""

    def __init__(self, nodes: int, start: int, stop: int, only: int | None = None) -> None:
        super().__init__(nodes)
        self._pause, self._only = range(start, stop), only

    def draft(
        self,
        drafter: Drafter,
        requests: Sequence[RequestView],
        tree: bool,
        room: Sequence[int],
        seconds: Mapping[StepShape, float] | None = None,
    ) -> list[Draft]:
        left = [0 if self.rests(each) else most for each, most in zip(requests, room, strict=True)]
        return super().draft(drafter, requests, tree, left, seconds)

    def rests(self, each: RequestView) -> bool:
        return self._only in (None, each.id) and len(each.tokens) - each.prompt_length in self._pause


class Moody(Pausing):
    """Now and then for a while."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, 0, 0)

    def rests(self, each: RequestView) -> bool:
        return (len(each.tokens) + 5 * each.id) // 11 % 2 == 0


def counted(drafter: HeadDrafter) -> list[int]:
    """Rows of every pass the head makes from features, from now on."""
    head, rows = drafter.head, list[int]()

    def counting(given: Any) -> Any:
        def run(batch: Sequence[Rows], *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("features") is not None:
                rows.append(sum(len(each.tokens) for each in batch))
            return given(batch, *args, **kwargs)

        return run

    head.forward = counting(head.forward)  # type: ignore[method-assign]
    head.rank = counting(head.rank)  # type: ignore[method-assign]
    head.draft = counting(head.draft)  # type: ignore[method-assign]
    return rows


@pytest.mark.parametrize("gained", [1, 3, 20])
@pytest.mark.parametrize("steps", [1, 2, 15])
def test_drafts_after_a_gap_are_those_of_a_head_that_read_the_rest(
    source: Any, model: NativeDecoder, steps: int, gained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: all before the gap, then the last tokens, each with the features of the one before it. Others draft
    meanwhile, so that steps may gain several tokens."""
    monkeypatch.setattr(head_module, "WAITING", WAITING)
    words = text(30 + min(steps * gained, 100), 1)
    steps = (len(words) - 30) // gained
    followed, rest = (drafter_for("head", source, model) for _ in range(2))
    assert isinstance(followed, HeadDrafter)
    assert isinstance(rest, HeadDrafter)
    slot = model.open()
    model.forward([Rows.chain(slot, words, logits=())])
    features = model.features.clone()
    params = request(0, words).params

    one = view(words[:30], params)
    followed.open(one)
    followed.read([one], [Rows.chain(slot, words[:29], logits=())], features[:29], soon=True)
    passes = counted(followed)
    for at in range(30, 30 + steps * gained, gained):
        drafted, told = words[at : at + gained - 1], words[at : at + gained]
        followed.read(
            [one], [Rows.chain(slot, [words[at - 1], *drafted])], features[at - 1 : at - 1 + gained], soon=True
        )
        one.push(told)
        draft = Draft(drafted, range(-1, gained - 2), [0.5] * (gained - 1))
        followed.observe([VerifiedDraft(one, draft, tuple(range(gained - 1)), tuple(told))])
    assert passes == []
    (draft,) = followed.propose([one], [Budget(5, 5)])
    waiting = min(WAITING, 1 + steps * gained)  # the prompt's last token, too
    assert passes == [waiting]

    count = len(one.tokens)
    other = view([*words[:29], *words[count - waiting : count]], params)
    rest.open(other)
    read = torch.cat([features[:28], features[count - waiting - 1 : count - 1]])
    rest.read([other], [Rows.chain(slot, other.tokens[:-1], logits=())], read, soon=True)
    (expected,) = rest.propose([other], [Budget(5, 5)])
    assert draft.source == "head"
    assert list(draft.tokens) == list(expected.tokens)
    assert list(draft.confidence) == list(expected.confidence)


def test_following_runs_no_pass_and_keeps_few_tokens(source: Any, model: NativeDecoder) -> None:
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    engine = Engine(model, drafter, FixedLength(0))
    pair = [request(i, text(9 + i, i), 1.0, 100) for i in range(2)]
    for each in pair:
        engine.add(each)
    engine.step()
    engine.step()
    passes = counted(drafter)
    while not engine.idle:
        engine.step()
        assert all(len(held.tokens) <= head_module.WAITING for held in drafter._held.values())
    assert passes == []
    assert [each.tokens[each.prompt_length :] for each in pair] == [alone(model, each) for each in pair]


@pytest.mark.parametrize("name", ["head", "head+suffix"])
@pytest.mark.parametrize("how", ["left", "running"])
def test_no_row_behind_a_gap_is_reused(
    source: Any, model: NativeDecoder, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap stays one, and the target runs nothing again for it."""
    monkeypatch.setattr(head_module, "WAITING", WAITING)
    controller = Pausing(4, 12, 50, only=0)
    drafter = drafter_for(name, source, model, keeps=False)
    engine = Engine(model, drafter, controller)
    first = request(0, text(30, 4), 1.0, 80)
    engine.add(first)
    while first.generated < 70:
        engine.step()
    if how == "left":
        engine.remove(first)
    asked, fresh = (request(1, [*first.tokens[:95], *text(9, 5)], 1.0, 12) for _ in range(2))
    engine.add(asked)
    engine.step()
    head = drafter if isinstance(drafter, HeadDrafter) else drafter.head  # type: ignore[attr-defined]
    assert head._held[1].whole == rows_before_the_pause(first, 12)
    while not asked.finish_reason:
        engine.step()
    engine.remove(first)
    assert engine.leaks() == []
    finish(Engine(model, drafter_for(name, source, model, keeps=False), controller), fresh)
    assert engine.stats.prefix_tokens == 95  # nor the last that both have, whose row would lie behind the gap
    assert engine.stats.prefix_hits == 1
    assert asked.tokens == fresh.tokens
    assert any("head" in step.draft.source for step in asked.trace)


def rows_before_the_pause(one: Request, start: int) -> int:
    """What the head had read when it drafted last: all tokens there were, but for the first."""
    length, rows = one.prompt_length, 0
    for step in one.trace:
        if length - one.prompt_length >= start:
            return rows
        rows = length - 1
        length += len(step.path) + 1
    raise AssertionError("there was no pause")


@pytest.mark.parametrize("name", ["head", "head+suffix"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_traffic_with_gaps(
    source: Any, model: NativeDecoder, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that come at any time, are sent back, and begin with what others said, each with gaps of its own."""
    monkeypatch.setattr(head_module, "WAITING", 3)
    monkeypatch.setattr(scheduler, "LOOKAHEAD", 6)
    engine = Engine(model, drafter_for(name, source, model), Moody(5), kv_tokens=190)
    rng = random.Random(12)
    requests: list[Request] = []
    for step in range(10_000):
        if len(requests) < 16 and rng.random() < 0.5:
            begin = rng.choice([text(25, 1), *(s.tokens for s in requests if s.finish_reason)])
            prompt = [*begin[: 4 * LEAST], *text(rng.randint(1, 15), 50 + step)][:70]
            requests.append(request(len(requests), prompt, temperature, rng.choice([20, 50, 80])))
            engine.add(requests[-1])
        engine.step()
        if step == 40:
            again(engine)
        if len(requests) == 16 and engine.idle:
            break
    assert engine.stats.prefix_hits > 2, "no test"
    assert engine.stats.preemptions > 0, "no test"
    assert engine.leaks() == []
    assert sum(s.accepted for s in requests) > 2
    for one in requests:
        assert one.tokens[one.prompt_length :] == alone(model, one), f"request {one.id}"


@pytest.mark.slow
def test_a_long_pause_costs_few_accepted_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped head, with all that was said meanwhile and with the end of it alone."""
    llm = LLM(drafter="head", device="cpu", max_batch=4, max_context=512)
    asked = ["Why is the sky blue?", "Tell me a story about a fox."]
    prompts = [llm.encode_chat([{"role": "user", "content": question}]) for question in asked]
    params = SamplingParams(max_tokens=88, temperature=0, ignore_eos=True)
    pausing = llm.with_drafter(llm.drafter, Pausing(4, 4, 56))
    plain = [each.token_ids for each in llm.generate(prompts, params, speculate=False)]
    accepted = []
    for waiting in (1000, head_module.WAITING):
        monkeypatch.setattr(head_module, "WAITING", waiting)
        done = pausing.generate(prompts, params)
        assert [each.token_ids for each in done] == plain
        accepted.append(sum(each.accepted for each in done) / sum(each.drafted for each in done))
    assert accepted[0] > 0.2, "no test"
    assert accepted[1] > 0.8 * accepted[0]


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("words", [5, 60])
def test_a_prompt_may_be_left_unread(
    source: Any, model: NativeDecoder, words: int, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no drafts are expected only its first tokens are read, and its end waits; where none will be for long not
    even what follows it. Drafts asked for all the same come, and the text is the same."""
    monkeypatch.setattr(head_module, "WAITING", WAITING)
    monkeypatch.setattr(head_module, "FIRST", 3)
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    rows, controller = counted(drafter), Pausing(4, 0, 6)
    monkeypatch.setattr(controller, "pays", lambda prompts, running: [False] * len(prompts))
    controller.away = away
    engine, asked = Engine(model, drafter, controller), request(0, text(words, 2), limit=25)
    engine.add(asked)
    while asked.generated < 6:
        engine.step()
    assert rows == [3]
    controller.away = False
    finish(engine)
    assert max(rows) <= WAITING + 1
    assert asked.drafted > 0
    assert asked.tokens[words:] == alone(model, request(0, text(words, 2), limit=25))


def test_prompts_that_begin_as_an_unread_one_have_no_gap(
    source: Any, model: NativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a system prompt: were its rows missing, drafts would be worse for all that reuse it, for good."""
    monkeypatch.setattr(head_module, "WAITING", WAITING)
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    controller = FixedLength(4)
    engine, common = Engine(model, drafter, controller), text(20, 2)
    for number, pays in enumerate((False, True)):
        monkeypatch.setattr(controller, "pays", lambda prompts, running, pays=pays: [pays] * len(prompts))
        asked = request(number, [*common, *text(60, 3 + number)], limit=12)
        engine.add(asked)
        while asked.generated < 3:
            engine.step()
        held = drafter._held[number]
        assert (held.whole is None) == pays
    assert asked.reused == len(common)
    finish(engine)


def test_what_is_read_first_may_come_in_pieces(
    source: Any, model: NativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts share the rows of a step: the first piece of one may be of a few tokens."""
    monkeypatch.setattr(head_module, "WAITING", WAITING)
    monkeypatch.setattr(head_module, "FIRST", 12)
    monkeypatch.setattr(model, "chunk", 5)
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    rows, controller = counted(drafter), FixedLength(4)
    monkeypatch.setattr(controller, "pays", lambda prompts, running: [False] * len(prompts))
    engine, asked = Engine(model, drafter, controller), request(0, text(60, 2), limit=12)
    engine.add(asked)
    while not asked.generated:
        engine.step()
    assert sum(rows) == 12
    assert drafter._held[0].whole == 12
    finish(engine)
    assert asked.tokens[60:] == alone(model, request(0, text(60, 2), limit=12))


@pytest.mark.parametrize("left", [True, False])
def test_a_conversation_that_goes_on_has_no_gaps(source: Any, model: NativeDecoder, left: bool) -> None:
    """Every turn begins with all that was said before. Were only the last token of each missing, the next would begin
    with the first turn alone. `left`: turns have ended when the next one begins."""
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    engine, said = Engine(model, drafter, FixedLength(4)), text(30, 7)
    for turn in range(3):
        asked = request(turn, said, limit=12)
        engine.add(asked)
        while asked.generated < 9:
            engine.step()
        held = drafter._held[turn]
        assert (held.whole, held.dropped) == (None, 0), f"turn {turn}"
        assert asked.reused == (len(said) - 11 - 2 if turn else 0), "all but what the last draft was to begin with"
        while left and not asked.finish_reason:
            engine.step()
        said = [*asked.tokens, *text(11, turn)]
    finish(engine)


def test_a_prompt_that_was_cancelled_and_asked_again_leaves_no_gap(
    source: Any, model: NativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its first pieces left is gone on with; of the last of them the head has read as much as of the others."""
    monkeypatch.setattr(model, "chunk", 24)
    drafter = drafter_for("head", source, model)
    assert isinstance(drafter, HeadDrafter)
    engine, words = Engine(model, drafter, FixedLength(4)), text(100, 3)
    engine.add(cancelled := request(0, words, limit=12))
    engine.step()
    engine.step()
    assert 0 < cancelled.num_uncomputed_tokens < 90, "no test"
    engine.remove(cancelled)
    said = words
    for turn in (1, 2):
        asked = request(turn, said, limit=12)
        engine.add(asked)
        while asked.generated < 9:
            engine.step()
        assert asked.reused, "nothing was gone on with"
        held = drafter._held[turn]
        assert (held.whole, held.dropped) == (None, 0), f"turn {turn}"
        said = [*asked.tokens, *text(11, turn)]
    finish(engine)
