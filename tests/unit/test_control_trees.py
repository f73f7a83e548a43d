"""Trees drafted on a device: chosen where they pay, by what they and chains bring."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from control_world import Ran, Running

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.levels import Levels
from outrider.control.steps import guessed, shapes
from outrider.control.trees import TreeGains
from outrider.core.draft import ROOT, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.step import PLAIN, StepShape, tree_of

CHAINS = [StepShape(n, n) for n in AutoLength.lengths]
TREE = tree_of(16)


@dataclass(frozen=True)
class Text:
    """A head's first guess is right so often; a tree misses this share of the other times."""

    right: float
    share: Mapping[int, float]
    """By nodes; of a chain, 1."""

    def outcome(self, request: Running, shape: StepShape, draw: random.Random) -> VerifiedDraft:
        """Two nodes after each of those that are accepted: what a chain has, and another."""
        tokens, parents, path = list[int](), list[int](), list[int]()
        for _ in range(shape.drafted):
            above = path[-1] if path else ROOT
            first, luck = len(tokens), draw.random()
            tokens += [5, 6] if shape.nodes else [5]
            parents += [above, above] if shape.nodes else [above]
            if luck < self.right:
                path.append(first)
            elif luck < 1 - (1 - self.right) * self.share.get(shape.nodes, 1.0):
                path.append(first + 1)
            else:
                break
        draft = Draft(tokens, parents, [0.5] * len(tokens), "head") if tokens else Draft()
        return VerifiedDraft(request, draft, tuple(path), (5,) * (len(path) + 1))


def on_device(controller: Controller, seconds: Mapping[StepShape, float], text: Text, steps: int) -> Ran:
    """Each step is asked for before the one before is observed."""
    draw, ran = random.Random(1), Ran()
    requests = [Running(i) for i in range(2)]
    under_way: list[StepShape] = []
    for _ in range(steps):
        under_way.append(controller.plan(requests, seconds, 32).shape)
        if len(under_way) < 2:
            continue
        shape = under_way.pop(0)
        verified = [text.outcome(request, shape, draw) for request in requests]
        controller.observe(verified, len(requests) * (shape.size + 1), 0.0, seconds[shape])
        ran.note(seconds[shape], [len(each.tokens) for each in verified], [shape.size] * len(requests))
    return ran


class Only(FixedLength):
    """Steps of one shape."""

    def __init__(self, shape: StepShape) -> None:
        super().__init__(shape.size)
        self.trees = (shape.nodes,) if shape.nodes else ()


@pytest.mark.parametrize("right", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("share", [0.6, 0.8, 1.0])
@pytest.mark.parametrize("row", [0.005, 0.05])
def test_the_shape_is_the_fastest_of_chains_and_trees(right: float, share: float, row: float) -> None:
    """Within 4% of the best fixed one, plain decoding among them, whatever is believed of trees at first."""
    seconds = {shape: 1 + 0.08 * shape.drafted + row * shape.size for shape in (*CHAINS, tree_of(8), TREE)}
    text = Text(right, {8: (1 + share) / 2, 16: share})
    rates = []
    for shape in seconds:
        alone = {PLAIN: seconds[PLAIN], shape: seconds[shape]}
        rates.append(on_device(Only(shape), alone, text, 500).rate)
    assert on_device(AutoLength(trees=(8, 16)), seconds, text, 900).since(300) > 0.96 * max(rates)


def test_what_a_tree_adds_is_learned_by_its_size() -> None:
    gains, draw, text = TreeGains(), random.Random(3), Text(0.6, {16: 0.5, 8: 0.9})
    levels = Levels([0.6**k for k in range(1, 9)], 0.6, 1 / 128, 64)
    (before,) = gains.gains([levels.expected(TREE.drafted)], TREE)
    for _ in range(400):
        for shape in (TREE, tree_of(8)):
            outcome = text.outcome(Running(0), shape, draw)
            gains.teach(levels, shape, outcome)
            gains.observe(levels, shape, outcome)
    assert gains.share(16) == pytest.approx(0.5, abs=0.08)
    assert gains.share(8) == pytest.approx(0.9, abs=0.08)
    (after,) = gains.gains([levels.expected(TREE.drafted)], TREE)
    assert after > 1.2 * before
    assert levels.expected(2)[0] == pytest.approx(0.6, abs=0.1), "chains are known from trees"
    assert levels.expected(2)[1] == pytest.approx(0.36, abs=0.1)


def test_where_a_tree_ends_a_chain_is_not_taken_for_wrong() -> None:
    """All of a short branch was accepted, and nothing drafted after it."""
    levels = Levels([0.5, 0.25, 0.125, 0.0625], 0.5, 1 / 8, 8)
    draft = Draft([5, 6], [ROOT, 0], [0.5, 0.25], "head")
    TreeGains.teach(levels, tree_of(4), VerifiedDraft(Running(0), draft, (0, 1), (5, 6, 7)))
    first, second, third, _ = levels.expected(4)
    assert first > 0.5
    assert third / second == pytest.approx(0.5, abs=0.01)
    cut = VerifiedDraft(Running(0), draft, (0,), (5,))  # the request ended there
    TreeGains.teach(levels, tree_of(4), cut)
    assert levels.expected(4)[1] / levels.expected(4)[0] == pytest.approx(second / first, abs=0.02)


def test_trees_keep_to_what_a_request_allows() -> None:
    seconds = guessed(shapes(AutoLength.lengths, (), (8, 16)))
    some = [Running(0), Running(1, speculation=Speculation(max_nodes=9))]
    assert AutoLength(trees=(8, 16)).plan(some, seconds, 32).shape.size <= 9
    assert FixedLength(16).plan(some, seconds, 32).shape == tree_of(9)
    assert FixedLength(16).plan(some, seconds, 4).shape == tree_of(4)
    assert FixedLength(16, tree=False).plan(some[:1], seconds, 32).shape == StepShape(16, 16)
    assert FixedLength(16).plan(some[:1], guessed(shapes((0, 16), ())), 32).shape == StepShape(16, 16), "chains alone"
