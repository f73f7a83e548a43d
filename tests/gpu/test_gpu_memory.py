"""How a GPU's memory is divided among caches, as if it were there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

pytest.importorskip("triton")

from outrider.errors import InvalidRequest
from outrider.models.cuda import memory
from outrider.models.cuda.cache import SLACK, blocks_of
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.memory import CacheMemory, bytes_left, divide

GIB = 2**30


@dataclass
class Model:
    """What is asked of one: its size, and the bytes of a block."""

    max_context: int
    block_bytes: int
    memory: CacheMemory | None
    max_batch: int = 8
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))
    blocks: int = 0

    def provide(self, blocks: int, max_context: int) -> None:
        self.blocks, self.max_context = blocks, max_context


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 GiB, of which 20 are in use: 2 since before the model came."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * GIB, 100 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def limit(context: int | None = None) -> CacheMemory:
    return CacheMemory(0.9, context, 2 * GIB)


def test_a_fraction_of_the_card_less_what_the_model_takes() -> None:
    assert bytes_left(80 * GIB, 100 * GIB, [limit()], late=False) == 72 * GIB
    half = CacheMemory(0.5, None, 2 * GIB)
    assert bytes_left(80 * GIB, 100 * GIB, [half, limit()], late=False) == 32 * GIB
    assert bytes_left(10 * GIB, 100 * GIB, [CacheMemory(0.9, None, 70 * GIB)], late=False) == 5 * GIB
    assert bytes_left(6 * GIB, 100 * GIB, [limit()], late=True) == 3 * GIB


def test_all_get_as_many_blocks_and_contexts_are_cut_to_what_fits(card: None) -> None:
    target, draft = Model(10_000_000, 7 * 2**20, limit()), Model(10_000_000, 2**20, limit())
    divide([target, draft], late=False)
    assert target.blocks == draft.blocks == 72 * GIB // (8 * 2**20)
    assert target.max_context == draft.max_context == target.blocks * BLOCK - SLACK
    assert target.blocks * BLOCK >= target.max_context + SLACK


def test_none_gets_more_than_it_can_fill_and_the_others_get_the_rest(card: None) -> None:
    target, head = Model(10_000_000, 7 * 2**20, limit()), Model(1000, 2**20, limit())
    divide([target, head], late=False)
    assert head.blocks == 8 * blocks_of(1000)
    assert head.max_context == 1000
    assert target.blocks == (72 * GIB - head.blocks * 2**20) // (7 * 2**20)


def test_what_is_not_measured_gets_all_that_its_slots_could_fill() -> None:
    model = Model(1000, 2**20, None)
    divide([model], late=False)
    assert (model.blocks, model.max_context) == (8 * blocks_of(1000), 1000)


def test_a_context_that_was_asked_for_fits_or_is_refused(card: None) -> None:
    model = Model(200_000, 7 * 2**20, limit(200_000))
    divide([model], late=False)
    assert model.max_context == 200_000
    with pytest.raises(
        InvalidRequest, match=r"a context of 2000000 tokens does not fit the 72.0 GiB .*raise gpu_memory"
    ):
        divide([Model(2_000_000, 7 * 2**20, limit(2_000_000))], late=False)
    with pytest.raises(InvalidRequest, match=f"a context of {memory.LEAST} tokens does not fit"):
        divide([Model(2_000_000, 40 * GIB, limit())], late=False)
