"""What is looked up for a device's steps: followed, scored, offered where it is better. Machines are made up here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pretended import Chance, Device, Texts, machine

from outrider.control.acceptance import Acceptance
from outrider.control.auto import AutoLength
from outrider.control.offers import OFFERED, Found, Offers
from outrider.core.draft import Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter


def found(*tokens: int, start: int = 3) -> Found:
    chances = [0.5 ** (k + 1) for k in range(len(tokens))]
    return Found(Draft(tokens, range(-1, len(tokens) - 1), chances, "suffix"), chances, start)


def test_what_came_is_followed() -> None:
    one = found(7, 8, 9, 10)
    assert one.gain(0, 2) == pytest.approx(0.75)
    assert one.gain(1, 2) == pytest.approx(0.375)
    assert (one.holds(1), one.holds(3), one.holds(4)) == (0.5, 0.125, 0.0)
    assert one.follow([0, 0, 0, 7, 8]) == ([0.5, 0.5], 2)
    assert one.offer == (5, (9, 10), "suffix")
    assert one.gain(0, 8) == pytest.approx(0.75), "of those left, given what came"
    assert one.follow([0, 0, 0, 7, 8, 9, 11, 12]) == ([0.5, 0.5], 1)
    assert one.left == 0


def test_an_offer_that_has_come_whole_is_used_up() -> None:
    one = found(7, 8)
    assert one.follow([0, 0, 0, 7, 8, 1, 2, 3]) == ([0.5, 0.5], 2)
    assert one.left == 0


@pytest.mark.parametrize("claims", [(0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (1e-320, 0.0, 0.9), (float("nan"), 0.5, 0.0)])
def test_what_claims_nothing_is_followed_too(claims: tuple[float, ...]) -> None:
    lookup: Any = SimpleNamespace(continuation=lambda request, count: Draft((7, 8, 9), (-1, 0, 1), claims, "own"))
    offers, (one,) = Offers(Acceptance()), requests(1)
    for token in (7, 8, 9, 7, 1):
        for found in offers.step(lookup, [one], [{}], [3]).values():
            assert 0 <= found.gain(0, 3) <= 3
        one.tokens.append(token)
    assert 0 <= offers._acceptance.rates()["own"] <= 1


def requests(count: int) -> list[Any]:
    return [SimpleNamespace(id=i, tokens=[0], speculation=Speculation(), walk=None) for i in range(count)]


@pytest.mark.parametrize("count", [1, 4, 16])
def test_few_are_looked_up_in_a_step_and_all_in_turn(count: int) -> None:
    lookup = Texts(lambda request, position: 1.0 if request % 2 else 0.0)
    offers, running = Offers(Acceptance()), requests(count)
    seen: set[int] = set()
    for _ in range(count // 4 + 1):
        before = len(lookup.asked)
        there = offers.step(lookup, running, [{}] * count, [8] * count)
        assert len(lookup.asked) - before <= 4
        seen.update(lookup.asked)
        assert all(place % 2 for place in there), "where nothing was found nothing is offered"
    assert seen == set(range(count))
    for one in running:
        offers.forget(one)
    assert not offers._found
    assert not offers._asked


def test_what_is_found_is_scored_without_being_verified() -> None:
    for right, rate in ((1.0, 0.95), (0.3, 0.6)):
        acceptance = Acceptance()
        lookup, offers, running = Texts(lambda *_, right=right: right), Offers(acceptance), requests(1)
        for position in range(1, 200):
            offers.step(lookup, running, [{}], [8])
            running[0].tokens.append(lookup.truth(0, position))
        known = acceptance.rates()["suffix"]
        assert (known > rate) if right == 1 else (known < rate)


# Who drafts


def device(right: Chance, drafted: Chance, level: float = 0.1, drafts: bool = True, count: int = 4) -> Device:
    made = Device(AutoLength(), Texts(right), drafted, machine(level, 0.01, drafts), count)
    made.run(600)
    return made


def always(chance: float) -> Chance:
    return lambda *_: chance


def test_repeated_text_is_copied_though_the_head_is_useless() -> None:
    """Long chains, and the head is tried only where nobody has an offer."""
    both, alone = device(always(0.97), always(0.0)), device(always(0.97), always(0.0), drafts=False)
    assert alone.rate(100) > 6
    assert both.rate(100) > 0.95 * alone.rate(100)
    assert sum(plan.shape.drafted > 0 for plan in both.plans[100:]) < 25


def test_lookup_that_is_always_wrong_costs_nothing() -> None:
    """Neither a good head's drafts nor plain steps."""
    head, beside = device(always(0.0), always(0.8)), device(always(0.05), always(0.8))
    assert beside.rate(50) > 0.97 * head.rate(50)
    assert device(always(0.05), always(0.0), drafts=False).rate() > 0.97
    assert device(always(0.3), always(0.0), drafts=False).rate() > 0.97


def test_each_request_has_the_drafter_that_is_better_for_it() -> None:
    """One of four copies, the others have a head: in the same steps."""
    mixed = device(lambda request, _: 0.97 if request == 0 else 0.1, always(0.7))
    late = mixed.plans[100:]
    assert sum(list(plan.offers) == [0] and plan.shape.drafted > 0 for plan in late) > 0.8 * len(late)
    chat = device(always(0.0), always(0.7))
    assert mixed.rate(100) > 1.2 * chat.rate(100)
    others = sum(len(one.tokens) for one in mixed.requests[1:]) / 3
    assert len(mixed.requests[0].tokens) > 1.5 * others


def test_a_verdict_on_one_does_not_silence_the_other() -> None:
    """The text begins to repeat late, and later stops to; the head becomes good only then."""
    repeats: Callable[[int, int], float] = lambda _, at: 0.97 if 300 < at < 2000 else 0.05  # noqa: E731
    head: Callable[[int, int], float] = lambda _, at: 0.85 if at >= 2000 else 0.0  # noqa: E731
    one = Device(AutoLength(), Texts(repeats), head, machine(0.1, 0.01), 1)
    one.run(1200)
    places = [0]
    for _, gained in one.spent:
        places.append(places[-1] + gained)

    def rate(start: int, stop: int) -> float:
        taken = [step for step, at in zip(one.spent, places, strict=False) if start <= at < stop]
        return sum(gained for _, gained in taken) / sum(seconds for seconds, _ in taken)

    assert rate(0, 300) > 0.95
    assert rate(400, 2000) > 6
    assert rate(2400, places[-1]) > 1.8


def test_nothing_is_looked_up_where_a_step_has_room_for_few() -> None:
    texts = Texts(always(0.97))
    few = {shape: seconds for shape, seconds in machine(0.1, 0.01).items() if shape.verified <= 3}
    Device(AutoLength(), texts, always(0.5), few, 32).run(20)
    assert not texts.asked


# What finds them


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter(), PredictionDrafter()], ids=lambda d: d.name)
def test_continuations_are_long_single_paths(drafter: Any) -> None:
    text = [(7 * i) % 101 for i in range(80)]
    one: Any = SimpleNamespace(
        id=1,
        tokens=text + text[:6],
        prompt_length=80,
        cache_salt=None,
        speculation=Speculation(prediction=tuple(text)),
    )
    drafter.open(one)
    draft = drafter.continuation(one, OFFERED)
    assert list(draft.tokens) == text[6 : 6 + len(draft)]
    assert len(draft) >= 20
    assert list(draft.parents) == list(range(-1, len(draft) - 1))
    assert all(a >= b > 0 for a, b in zip(draft.confidence, draft.confidence[1:], strict=False))
    assert draft.source == drafter.name
    assert len(drafter.continuation(one, 2)) == 2
    one.tokens.append(9_999)
    drafter.observe([VerifiedDraft(one, Draft(), (), (9_999,))])
    assert not drafter.continuation(one, OFFERED).tokens
    drafter.close(one)


def test_a_suffix_goes_on_from_the_end_of_the_text_and_from_what_others_said() -> None:
    drafter = SuffixDrafter()
    first: Any = SimpleNamespace(id=1, tokens=[1, 2, 3] * 4, prompt_length=3, cache_salt=None)
    drafter.open(first)
    assert list(drafter.continuation(first, 8).tokens) == [1, 2, 3, 1, 2, 3, 1, 2]
    drafter.close(first)
    other: Any = SimpleNamespace(id=2, tokens=[9, 1, 2], prompt_length=3, cache_salt=None)
    drafter.open(other)
    assert list(drafter.continuation(other, 5).tokens) == [3, 1, 2, 3, 1]
    drafter.close(other)
