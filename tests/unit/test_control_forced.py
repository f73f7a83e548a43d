"""What a grammar forces beside a drafter that is paid: both are used where they help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from control_world import PARAMS, PASS, Drafts, Running, World
from numpy.typing import NDArray

from outrider.control.auto import AutoLength
from outrider.control.chains import Chains
from outrider.control.controller import Controller, FixedLength
from outrider.control.forced import NAME
from outrider.control.ledger import Ledger
from outrider.control.silence import Silence
from outrider.core.draft import Budget, Draft
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import Forced, RequestView
from outrider.core.step import PLAIN, StepShape

RUN, FREE = 24, 4
FORCED, SAID = 5, 7


class Turns:
    """A grammar that forces RUN tokens, then leaves FREE to choose, again and again."""

    def __init__(self) -> None:
        self.at = 0

    def advance(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        return np.arange(10) == FORCED if self.left(path) else np.ones(10, np.bool_)

    def left(self, path: Sequence[int] = ()) -> int:
        """Tokens that are still forced."""
        return max(0, RUN - (self.at + len(path)) % (RUN + FREE))

    def forced(self, path: Sequence[int] = ()) -> Forced:
        count = self.left(path)
        return Forced((FORCED,) * count, count)

    def likely(self, mask: NDArray[np.bool_]) -> Sequence[int]:
        return ()

    def legal(self, draft: Draft) -> list[int]:
        paths = [[draft.tokens[i] for i in draft.path(node)] for node in range(len(draft))]
        may = [all(self._may(path[:i], path[i]) for i in range(len(path))) for path in paths]
        return [node for node in range(len(draft)) if may[node]]

    def _may(self, path: Sequence[int], token: int) -> bool:
        mask = self.allowed(path)
        return mask is not None and bool(mask[token])

    def limit(self, path: Sequence[int]) -> str | None:
        return None


@pytest.mark.parametrize("nodes", [8, 16])
def test_what_is_forced_comes_in_one_pass_and_guesses_go_on_where_it_ends(nodes: int) -> None:
    """A head that is always right about what is free: it is asked for that in the very next step, not for what is
    forced, and what it proposes goes on with what is forced after it. Rows cost hardly anything."""
    world = World(rows=lambda rows: 1 + 0.002 * rows, per_level=0.02)
    controller, walk = world.auto(nodes), Turns()
    running, steps = Running(0, walk=walk), 0
    asked, carried = {True: [0, 0], False: [0, 0]}, 0
    while walk.at < 40 * (RUN + FREE):
        drafter, is_forced = Drafts(world, steps, 1), walk.left() > 0
        (draft,) = controller.draft(drafter, [running], True, [1000])
        path: list[int] = []
        while True:  # as the target writes: what is forced, or what the head says
            token = FORCED if walk.left([draft.tokens[i] for i in path]) else SAID
            after = [node for node in draft.children(path[-1] if path else -1) if draft.tokens[node] == token]
            if not after:
                break
            path.append(after[0])
        tokens = (*[draft.tokens[i] for i in path], token)
        seconds = PASS * world.rows(1 + len(draft))
        verified = VerifiedDraft(running, draft, tuple(path), tokens)
        controller.observe([verified], 1 + len(draft), PASS * world.per_level * drafter.levels, seconds)
        walk.advance(tokens)
        if walk.at > 10 * (RUN + FREE):  # it has had time to learn
            asked[is_forced][0] += drafter.levels > 0
            asked[is_forced][1] += 1
            carried += SAID in tokens and FORCED in tokens[tokens.index(SAID) : -1]
        steps += 1
    assert steps < 2.6 * 40
    assert carried > 25
    assert asked[False][0] > 0.8 * asked[False][1] > 0
    assert asked[True][0] < 0.3 * asked[True][1]


@pytest.mark.parametrize(
    ("rows", "requests", "room", "drafted"), [(32, 1, 99, RUN), (16, 1, 99, 15), (32, 1, 9, 9), (32, 8, 99, 24)]
)
def test_forced_drafts_are_as_long_as_rows_and_room_allow(rows: int, requests: int, room: int, drafted: int) -> None:
    world = World(rows=lambda rows: 1 + 0.002 * rows)
    controller, drafter = world.auto(rows=rows), Drafts(world, 0, requests)
    running = [Running(i, walk=Turns()) for i in range(requests)]
    plain = [VerifiedDraft(each, Draft(), (), (SAID,)) for each in running]
    assert not any(controller.draft(drafter, running, True, [room] * requests))  # what it costs is seen first
    controller.observe(plain, requests, 0.0, PASS)
    assert sum(map(len, controller.draft(drafter, running, True, [room] * requests))) == drafted


class Guesses(Drafter):
    """That something is said at once, which is forbidden, or after what is forced, which is not."""

    name = "guesses"

    def __init__(self, looks_up: bool) -> None:
        self.looks_up = looks_up

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        guess = Draft([SAID, FORCED, SAID, SAID], [-1, -1, 0, 1], [0.9, 0.8, 0.7, 0.6], self.name)
        return [guess if budget.nodes else Draft() for budget in budgets]

    look_up = propose


@pytest.mark.parametrize("looks_up", [False, True])
def test_a_fixed_length_drops_what_a_grammar_forbids_too(looks_up: bool) -> None:
    """Forbidden nodes would take the places of others."""
    walk = Turns()
    walk.advance([FORCED] * (RUN - 1))
    (draft,) = FixedLength(2).draft(Guesses(looks_up), [Running(0, walk=walk)], True, [99])
    assert list(draft.tokens) == [FORCED, SAID]
    assert list(draft.parents) == [-1, 0]


class Grammar(Turns):
    def start(self) -> Grammar:
        return self


@pytest.mark.parametrize("control", ["auto", "fixed"])
@pytest.mark.parametrize("others", [0, 3, 15])
def test_a_device_is_offered_what_is_forced(control: str, others: int) -> None:
    """However many run, and without a lookup; nobody else is offered anything. Rows cost hardly anything."""
    walk = Grammar()
    guided = Running(0, walk=walk, params=replace(PARAMS, grammar=walk))
    running = [guided, *(Running(1 + i) for i in range(others))]
    controller: Controller = AutoLength() if control == "auto" else FixedLength(8)
    seconds = {StepShape(0, length): 1 + 0.001 * length for length in (0, 4, 8, 16)}
    steps, drafted = 0, 0
    while walk.at < 20 * (RUN + FREE):
        shape, offers = controller.plan(running, seconds, 16)
        assert set(offers) <= {0}
        path = list(offers[0].tokens[: shape.verified]) if offers else []
        assert path == [FORCED] * min(walk.left(), len(path)), "all of it is right"
        assert not offers or offers[0].start == len(guided.tokens)
        tokens = (*path, FORCED if walk.left(path) else SAID)
        claims = [0.8 ** (i + 1) for i in range(len(path))]
        draft = Draft(path, range(-1, len(path) - 1), claims, NAME) if path else Draft()
        verified = [VerifiedDraft(guided, draft, tuple(range(len(path))), tokens)]
        verified += [VerifiedDraft(each, Draft(), (), (SAID,)) for each in running[1:]]
        controller.observe(verified, 1, 0.0, seconds[shape])
        walk.advance(tokens)
        guided.tokens += tokens
        steps, drafted = steps + 1, drafted + len(path)
    assert drafted > 0.6 * walk.at
    assert steps < 0.4 * walk.at


def test_what_is_said_under_a_grammar_teaches_nothing_of_what_a_device_drafts() -> None:
    """None of which is verified there: those that come later are hoped for as before."""
    chains = Chains(4, Silence())
    states, ledgers = [chains.newcomer(guided=True), chains.newcomer()], [Ledger(), Ledger()]
    before = chains.newcomer().levels.total(2)
    for _ in range(40):
        shape = chains.plan(states, ledgers, {PLAIN: 1.0, StepShape(2, 2): 1.1}, 2, {}).shape
        issued = chains.over()
        assert issued is not None
        right = list(range(shape.verified))
        whole = Draft([SAID] * len(right), [i - 1 for i in right], [0.8] * len(right), "head")
        gained = [
            VerifiedDraft(Running(0), Draft(), (), (SAID,)),
            VerifiedDraft(Running(1), whole if right else Draft(), tuple(right), (SAID,) * (1 + len(right))),
        ]
        chains.observe(issued, states, ledgers, gained)
    assert chains.newcomer().levels.total(2) > before
    assert states[1].levels.total(2) > before
