"""Draft trees grown, verified and judged on the device: plain decoding's tokens, by the tree that was to be grown.

Run by Triton's interpreter where there is no GPU. What is told of trees there in plain Python: `draft_trees`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import device_requests
import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from device_requests import stepped
from draft_trees import finish, judged
from tiny_gpu import CONTEXT, DEVICE, DTYPE
from tiny_gpu_head import TARGET, VOCAB, loud_head, target_tensors

from outrider.control.controller import FixedLength
from outrider.core.step import Manner, StepShape, tree_of
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.none import NoDrafter
from outrider.engine.request import Request
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.graphs import bucket
from outrider.models.cuda.growth import BRANCH, TreeGrowth
from outrider.models.cuda.head import CudaHead
from outrider.models.cuda.lanes import Lanes
from outrider.models.cuda.network import NARROW_ROWS
from outrider.models.cuda.stepper import TREE_ROWS
from outrider.models.cuda.trees import Trees
from outrider.models.head.load import place_head
from outrider.sampling.noise import Key, gumbel_at, words
from outrider.sampling.params import SamplingParams

ON_GPU = DEVICE.type == "cuda"
PROMPTS = [[5, 6, 7], [3, 9], [10, 2, 10, 2]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24 if ON_GPU else 6),
    SamplingParams(temperature=0.9, top_p=0.95, min_p=0.01, seed=7, max_tokens=36 if ON_GPU else 7),
    SamplingParams(temperature=1.0, seed=2, max_tokens=30),
][: 3 if ON_GPU else 2]  # the interpreter is slow


@pytest.fixture(scope="module")
def target() -> CudaDecoder:
    return CudaDecoder.load(TARGET, target_tensors(), DTYPE, DEVICE, max_batch=3, max_context=CONTEXT)


@pytest.fixture(scope="module")
def head(target: CudaDecoder) -> CudaHead:
    placed = place_head(loud_head(), target)
    assert isinstance(placed, CudaHead)
    return placed


def requests() -> list[Request]:
    pairs = enumerate(zip(PROMPTS, PARAMS, strict=False))
    return [device_requests.made(i, prompt, params, VOCAB) for i, (prompt, params) in pairs]


@pytest.fixture(scope="module")
def plain(target: CudaDecoder) -> list[list[int]]:
    return finish(stepped(target, NoDrafter(), FixedLength(0), on_device=False), requests())


@pytest.mark.parametrize("nodes", [8, 16, 32] if ON_GPU else [6])
def test_trees_on_the_device_change_no_token(
    target: CudaDecoder, head: CudaHead, plain: list[list[int]], nodes: int
) -> None:
    """Greedy and drawn in one step, a late comer, all to their limits inside a tree."""
    drafter = HeadDrafter(head, VOCAB, HeadDrafterConfig(branching=8))
    engine = stepped(target, drafter, FixedLength(nodes), on_device=True)
    some = requests()
    assert finish(engine, some, late=1) == plain
    assert engine.leaks() == []
    assert judged(some) > 0, "no test"
    assert {len(step.draft) for one in some for step in one.trace} <= {0, nodes}


def test_how_many_lanes_have_room_for_trees(target: CudaDecoder, head: CudaHead) -> None:
    stepper = target.stepper(head)
    assert stepper is not None
    assert not _prepared(stepper, [tree_of(33)])
    for lanes, shape in _prepared(stepper, [StepShape(0, 0), tree_of(2), tree_of(8), tree_of(32)]):
        assert lanes * (shape.size + 1) <= NARROW_ROWS
        assert not shape.nodes or stepper.trees(lanes)
    assert stepper.trees(TREE_ROWS // 8)
    assert not stepper.trees(TREE_ROWS // 8 + 1)
    alone = target.stepper(None)
    assert alone is not None
    assert not alone.trees(1)


def _prepared(stepper: Any, shapes: list[StepShape]) -> list[tuple[int, StepShape]]:
    return [(lanes, shape) for lanes, fitting in stepper._sizes(shapes) for shape in fitting]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_best_of_many_columns(temperature: float) -> None:
    """Over several blocks, of which the last is not full; one score is no number."""
    columns, rows = 2500, 2
    ids = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:columns].sort().values
    logits = torch.randn(rows, columns + 300, generator=torch.Generator().manual_seed(1)) * 3
    logits[1, 7] = torch.nan
    keys = [Key(3, 0, row) for row in range(rows)]
    board = Lanes(bucket(rows), 8, 8, 64, 4000, DEVICE)
    board.noise.words[:rows] = words(keys).to(DEVICE)
    board.noise.numbers[:rows] = torch.tensor([temperature, 1.0, -torch.inf, 0], dtype=torch.float64, device=DEVICE)
    network: Any = SimpleNamespace(
        logits=logits.to(DEVICE), head=lambda count: None, tokens=4000, tables=_tables(rows * BRANCH)
    )
    growth = TreeGrowth(network, board, Trees(board), columns, ids)
    growth.begin(
        rows, torch.zeros(rows, dtype=torch.int32, device=DEVICE), Manner.DRAWN if temperature else Manner.GREEDY
    )
    score = logits[:, :columns].double().nan_to_num(-torch.inf)
    if temperature:
        score = score / temperature + gumbel_at(keys, ids)
    weights = torch.softmax(score, dim=-1)
    best = torch.topk(weights, BRANCH, dim=-1)
    assert growth._found[:rows].cpu().tolist() == ids[best.indices].tolist()
    assert np.allclose(growth._weights[:rows].cpu(), best.values, rtol=1e-4)


def _tables(rows: int) -> Any:
    from outrider.models.cuda.tables import Tables

    return Tables.over(torch.zeros(Tables.size(rows), dtype=torch.int32, device=DEVICE))
