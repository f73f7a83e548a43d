"""The cache in blocks under the real kernels: bits do not depend on where blocks lie, who has them, nor on scratch."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from tiny_gpu import DEVICE, DRAFT, DTYPE

from outrider.bench.shapes import random_weights
from outrider.core.draft import ROOT
from outrider.core.model import Rows
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.graphs import Graphs
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.torch_decoder import TorchDecoder

TEXT = random.Random(1).choices(range(80), k=BLOCK + 12)


def fed(model: CudaDecoder, slot: int, tokens: list[int]) -> None:
    for start in range(0, len(tokens), 50):
        some = tokens[start : start + 50]
        model.forward([Rows.chain(slot, some, logits=())])
        model.commit(slot, range(len(some)))


def tree(slot: int) -> Rows:
    """Behind the text; its last branch is committed then."""
    return Rows(slot, [3, 4, 5, 6, 7, 8], [ROOT, 0, 0, 1, 2, 4])


def tensors(dtype: torch.dtype) -> list[tuple[str, torch.Tensor]]:
    """Large enough for layers to matter."""
    weights = random_weights(DRAFT, DEVICE, DTYPE, seed=1)
    return [(name, (tensor * 8 if tensor.dim() > 1 else tensor).to(dtype)) for name, tensor in weights]


class Known(NamedTuple):
    """A slot that holds the text, what a tree behind it says, and then one more token behind a branch of that."""

    model: CudaDecoder
    slot: int
    tree: torch.Tensor
    token: torch.Tensor


@pytest.fixture(scope="module")
def known() -> Known:
    model = CudaDecoder.load(DRAFT, tensors(DTYPE), DTYPE, DEVICE, max_batch=6, max_context=300)
    slot = model.open()
    fed(model, slot, TEXT)
    found = model.forward([tree(slot)])
    model.commit(slot, [0, 2, 4, 5])
    token = model.forward([Rows.chain(slot, [9])])
    model.rollback(slot, len(TEXT))
    return Known(model, slot, found, token)


def test_logits_across_blocks_are_those_of_the_pytorch_decoder(known: Known) -> None:
    """Every row was written to its own place, in the first block and in the second."""

    def pytorch(dtype: torch.dtype) -> torch.Tensor:
        model = TorchDecoder.load(DRAFT, tensors(dtype), dtype, DEVICE, max_batch=1, max_context=300, bitwise=False)
        slot = model.open()
        model.forward([Rows.chain(slot, TEXT, logits=())])
        model.commit(slot, range(len(TEXT)))
        return model.forward([tree(slot)]).float()

    exact = pytorch(torch.float32)
    rounding = (pytorch(DTYPE) - exact).abs().max()
    assert (known.tree - exact).abs().max() < 2 * rounding + 1e-4 * exact.abs().max()


def test_a_fork_shares_whole_blocks_and_has_the_same_bits(known: Known) -> None:
    """Both go on by themselves, and what one writes the other does not see; moved rows are those of their own slot."""
    model = known.model
    fork = model.fork(known.slot, len(TEXT))
    assert model.blocks(fork)[0] == model.blocks(known.slot)[0]
    assert model.blocks(fork)[1] != model.blocks(known.slot)[1]
    fed(model, known.slot, [1, 2, 3])
    again = model.fork(fork, len(TEXT))
    for slot in (fork, again):
        assert torch.equal(model.forward([tree(slot)]), known.tree)
        model.commit(slot, [0, 2, 4, 5])
        assert torch.equal(model.forward([Rows.chain(slot, [9])]), known.token)
        model.close(slot)
    model.rollback(known.slot, len(TEXT))


def test_what_is_left_behind_is_written_over_only_in_a_copy(known: Known) -> None:
    """A slot that is cut back into a block which another shares."""
    model = known.model
    slot = model.fork(known.slot, len(TEXT))
    model.rollback(slot, BLOCK - 3)
    fed(model, slot, [7] * 9)
    assert model.blocks(slot)[0] != model.blocks(known.slot)[0]
    assert torch.equal(model.forward([tree(known.slot)]), known.tree)
    model.rollback(known.slot, len(TEXT))
    model.close(slot)


@pytest.mark.parametrize("cells", [0, 2])
def test_bits_do_not_depend_on_scratch(cells: int, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none, or for the first of the rows only."""
    model = known.model
    monkeypatch.setattr(model.network._attention, "_cells", cells)
    monkeypatch.setattr(model, "graphs", Graphs(DEVICE))
    other = model.fork(known.slot, len(TEXT))
    both = model.forward([tree(known.slot), tree(other)])
    assert torch.equal(both[:6], known.tree)
    assert torch.equal(both[6:], known.tree)
    model.rollback(known.slot, len(TEXT))
    model.close(other)
