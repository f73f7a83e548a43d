"""Draft trees on the device, over networks without arithmetic: what is kept of them, ends, and the controller."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from any_order import decoder, drafters, expected, made
from device_requests import device_of
from draft_trees import finish, judged
from simulated import only_interpreted, simulate

from outrider.control.auto import AutoLength
from outrider.control.controller import FixedLength
from outrider.core.step import PLAIN, Manner, StepShape, tree_of
from outrider.engine.engine import Engine
from outrider.models.cuda import stepper as stepper_module
from outrider.models.cuda.kernels import trees as kernels
from outrider.models.cuda.trees import Trees
from outrider.sampling.params import SamplingParams

pytestmark = only_interpreted


def test_a_walk_that_minds_no_parents_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: any node that is the target's token counts as accepted, whatever it follows."""

    @triton.jit  # type: ignore[untyped-decorator]
    def anywhere(drafts: Any, parents: Any, i: Any, node: Any, token: Any) -> Any:
        return tl.max(tl.where((drafts == token) & (i > node), i, -1), axis=0)

    simulate(monkeypatch)
    target = decoder()
    monkeypatch.setattr(kernels, "_child", anywhere)
    engine = Engine(target, drafters("trees", target), FixedLength(16))
    with pytest.raises(ValueError, match="not in list"):  # what was accepted is no path of the tree
        finish(engine, [made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=40))])


def test_rows_that_are_not_moved_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the accepted rows stay where they were run."""
    simulate(monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=16)
    found = []
    for move in (Trees.keep, lambda self, network, lanes: None):
        monkeypatch.setattr(Trees, "keep", move)
        target = decoder()
        one = made(0, [1, 2, 3], params)
        finish(Engine(target, drafters("trees", target), FixedLength(8)), [one])
        found.append(one.tokens == expected(target, one))
    assert found == [True, False]


def test_features_of_other_rows_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: those of the first rows are kept, accepted or not. No token changes, but drafts are worse."""
    simulate(monkeypatch)
    keep, found = Trees.keep_features, []

    def first_rows(self: Trees, features: torch.Tensor, ring: torch.Tensor, lanes: int, shape: StepShape) -> None:
        moves = self._moves[:, kernels.ROWS.value :]
        moves[:] = torch.arange(moves.shape[1])
        keep(self, features, ring, lanes, shape)

    for kept in (keep, first_rows):
        monkeypatch.setattr(Trees, "keep_features", kept)
        target = decoder()
        one = made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=30))
        finish(Engine(target, drafters("trees", target), FixedLength(8)), [one])
        assert one.tokens == expected(target, one)
        found.append(one.accepted / one.steps)
    assert found[0] > 1.1 * found[1]


def test_where_scores_are_processed_chains_are_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for logprobs joins and leaves: beside it nobody has a tree."""
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("trees", target), FixedLength(8))
    launched: list[tuple[Manner, int]] = []
    stepper = device_of(engine)._stepper
    launch = stepper.launch

    def noted(lanes: int, shape: StepShape, manner: Manner, *more: Any) -> None:
        launched.append((manner, shape.nodes))
        launch(lanes, shape, manner, *more)

    monkeypatch.setattr(stepper, "launch", noted)
    long = made(0, [1, 2, 3], SamplingParams(temperature=0.7, seed=1, max_tokens=24))
    told = made(1, [4, 5], SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    finish(engine, [long, told], late=1)
    assert [one.tokens for one in (long, told)] == [expected(target, one) for one in (long, told)]
    assert set(launched) == {(Manner.DRAWN, 8), (Manner.FULL, 0)}


def test_requests_end_inside_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their limit, by a stop token, and where the context ends."""
    simulate(monkeypatch)
    target = decoder()
    some = [
        made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=9)),
        made(1, [4, 2], SamplingParams(temperature=1.0, seed=5, max_tokens=20, stop_token_ids=[3])),
        made(2, [7] * 86, SamplingParams(temperature=0, max_tokens=60)),
    ]
    engine = Engine(target, drafters("trees", target), FixedLength(16))
    finish(engine, some)
    assert [one.tokens for one in some] == [expected(target, one) for one in some]
    assert any(step.token is None for one in some for step in one.trace), "no test"
    assert engine.leaks() == []


def test_trees_are_recorded_and_measured_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the controller may ask for, in every manner that there are trees of."""
    simulate(monkeypatch)
    monkeypatch.setattr(stepper_module, "_MEASURED", 1)
    target = decoder()
    device = device_of(Engine(target, drafters("trees", target), AutoLength(trees=[8])))
    stepper: Any = device._stepper
    keys = {key for key, _ in stepper._all_launches(device._shapes) if "tree" in str(key[0]) or key[0] == "grow"}
    levels = tree_of(8).drafted
    for lanes in (1, 2, 4, 8):
        for manner in (Manner.GREEDY, Manner.DRAWN):
            assert {("grow", lanes, levels, 8, manner), ("verify a tree", lanes, levels, 8, manner)} <= keys
            assert ("absorb for a tree", lanes, levels + 1, manner) in keys
    assert not any(key[-1] is Manner.FULL for key in keys)
    monkeypatch.setattr(stepper._board, "most", 1)
    for _ in stepper.measure([PLAIN, tree_of(3)]):
        pass
    assert stepper.seconds(1)[tree_of(3)] > 0


def test_the_controller_asks_for_trees_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    target = decoder()
    engine = Engine(target, drafters("trees", target), AutoLength(trees=[8]))
    device = device_of(engine)
    cheap = {shape: 1.0 + 0.01 * shape.drafted for shape in device._shapes}
    monkeypatch.setattr(device._clock, "seconds", lambda lanes: cheap)
    one = made(0, [1, 2, 3], SamplingParams(temperature=0, max_tokens=30))
    finish(engine, [one])
    assert one.tokens == expected(target, one)
    assert judged([one]) > 0, "no tree"
