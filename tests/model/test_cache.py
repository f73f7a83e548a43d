"""After any history of accepting, rejecting and rolling back, the next logits are those of a fresh prefill."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tiny_models import decoder_of, gpt2, logits_of, reference

from outrider.core.draft import ROOT
from outrider.core.model import LanguageModel, Rows
from outrider.errors import InvalidRequest
from outrider.kvcache.slots import Slots
from outrider.models.hf import HFModel


@pytest.fixture(scope="module", params=["torch", "torch-bitwise", "native", "hf"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, LanguageModel]:
    if request.param == "hf":
        model = gpt2()
        return model, HFModel(model, max_batch=3, max_context=128)
    model = reference("qwen3")
    return model, decoder_of(model, request.param, threads=2)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(pair: tuple[Any, LanguageModel], seed: int) -> None:
    """Several slots at once; each step verifies a random tree (or chain), keeps a random path, may roll back."""
    model, cache = pair
    rng = random.Random(seed)
    texts: dict[int, list[int]] = {cache.open(): [] for _ in range(3)}
    for _ in range(12):
        batch, kept = [], {}
        for slot in texts:
            size = rng.randint(1, 7)
            nodes = rng.choices(range(97), k=size)
            chain = not cache.supports_trees or rng.random() < 0.4
            parents = [i - 1 if chain else rng.randint(ROOT, i - 1) for i in range(size)]
            node = rng.randint(ROOT, size - 1)
            path: list[int] = []
            while node != ROOT:
                path.insert(0, node)
                node = parents[node]
            batch.append(Rows(slot, nodes, parents, logits=[]))
            kept[slot] = (path, [nodes[i] for i in path])
        cache.forward(batch)
        for slot, (path, tokens) in kept.items():
            cache.commit(slot, path)
            texts[slot] += tokens
            if rng.random() < 0.2:
                keep = rng.randint(0, len(texts[slot]))
                cache.rollback(slot, keep)
                del texts[slot][keep:]
            assert cache.length(slot) == len(texts[slot])
    for slot, text in texts.items():
        logits = cache.forward([Rows(slot, [5], [ROOT])])[0]
        torch.testing.assert_close(logits, logits_of(model, [*text, 5])[-1], atol=1e-4, rtol=0)
        cache.close(slot)


def test_a_reused_slot_starts_empty(pair: tuple[Any, LanguageModel]) -> None:
    model, cache = pair
    slot = cache.open()
    cache.forward([Rows.chain(slot, [1, 2, 3])])
    cache.commit(slot, [0, 1])
    cache.close(slot)
    slot = cache.open()
    logits = cache.forward([Rows.chain(slot, [9, 8])])
    torch.testing.assert_close(logits, logits_of(model, [9, 8]), atol=1e-4, rtol=0)
    cache.close(slot)


@pytest.mark.parametrize("seed", range(3))
def test_slots_hold_what_was_left_until_they_are_needed(pair: tuple[Any, LanguageModel], seed: int) -> None:
    """Slots are closed, opened with what they held, copied while open or closed, and run on; each goes its own way."""
    model, cache = pair
    if not cache.keeps_prefixes:
        assert isinstance(cache, HFModel)
        return
    rng = random.Random(seed)
    texts: dict[int, list[int]] = {}
    left: dict[int, tuple[list[int], int]] = {}  # with the epoch

    def run(slot: int, count: int) -> None:
        tokens = rng.choices(range(97), k=count)
        cache.forward([Rows.chain(slot, tokens, logits=[])])
        cache.commit(slot, range(count - 1))  # one is refused
        texts[slot] += tokens[:-1]

    def choose(group: Iterable[int]) -> int:
        return rng.choice(sorted(group))

    for _ in range(40):
        there = {slot for slot, (_, epoch) in left.items() if cache.epoch(slot) == epoch}
        deed = rng.randrange(5)
        if deed == 0 and len(texts) < 3:
            slot = cache.open()
            texts[slot] = []
        elif deed == 1 and there:
            slot = choose(there)
            held = left[slot][0]
            keep = rng.randint(0, len(held))
            cache.reopen(slot, keep)
            texts[slot] = held[:keep]
        elif deed == 2 and len(texts) < 3 and (texts or there):
            source = choose(texts.keys() | there)
            held = texts[source] if source in texts else left[source][0]
            keep = rng.randint(0, len(held))
            slot = cache.fork(source, keep)
            assert slot != source or len(texts) == 2
            texts[slot] = held[:keep]
        elif texts:
            slot = choose(texts)
            if deed == 3:
                cache.close(slot)
                left[slot] = (texts.pop(slot), cache.epoch(slot))
                continue
        else:
            continue
        assert cache.length(slot) == len(texts[slot])
        if len(texts[slot]) < 90:
            run(slot, rng.randint(1, 25))
    for slot, text in texts.items():
        logits = cache.forward([Rows(slot, [5], [ROOT])])[0]
        torch.testing.assert_close(logits, logits_of(model, [*text, 5])[-1], atol=1e-4, rtol=0)
        cache.close(slot)
    for slot, (text, epoch) in left.items():
        if cache.epoch(slot) == epoch:
            cache.reopen(slot, len(text))
            logits = cache.forward([Rows(slot, [5], [ROOT])])[0]
            torch.testing.assert_close(logits, logits_of(model, [*text, 5])[-1], atol=1e-4, rtol=0)
            cache.close(slot)
    assert cache.held == 0


def test_the_slot_unused_for_longest_is_taken_first() -> None:
    slots = Slots(3, 8)
    for slot in (slots.open(), slots.open(), slots.open()):
        slots.extend(Rows.chain(slot, [1, 2]))
        slots.commit(slot, [0, 1])
    for slot in (1, 0, 2):
        slots.close(slot)
    assert slots.fork(1, 2) == 0, "copied from: 1 was of use"
    assert slots.open() == 2
    assert slots.fork(1, 1) == 1, "none other is left"
    with pytest.raises(ValueError, match="cannot be opened again"):
        slots.reopen(1, 0)
    slots.close(1)
    with pytest.raises(ValueError, match="cannot be opened again"):
        slots.reopen(1, 2)
    with pytest.raises(ValueError, match="does not hold"):
        slots.fork(0, 3)


def test_overrun_is_refused() -> None:
    slots = Slots(1, 4)
    slot = slots.open()
    slots.extend(Rows.chain(slot, [1, 2, 3]))
    with pytest.raises(InvalidRequest, match="context of 4"):
        slots.extend(Rows.chain(slot, [4, 5]))


def test_no_slot_left_is_refused() -> None:
    slots = Slots(1, 4)
    slots.open()
    with pytest.raises(InvalidRequest, match="max_batch"):
        slots.open()


def test_only_paths_can_be_committed() -> None:
    slots = Slots(1, 8)
    slot = slots.open()
    slots.extend(Rows(slot, [1, 2, 3], [ROOT, ROOT, 0]))
    with pytest.raises(ValueError, match="not a path"):
        slots.commit(slot, [1, 2])


@pytest.mark.parametrize("seed", range(30))
def test_pending_rows_lie_where_their_parents_say(seed: int) -> None:
    """Chains, which are not written down row by row, and trees, behind each other; and a path of them is kept."""
    rng = random.Random(seed)
    slots = Slots(1, 200)
    slot = slots.open()
    length = 0
    for _ in range(6):
        paths: list[list[int]] = []
        parents: list[int] = []
        for piece in range(rng.randint(1, 3)):
            count = rng.randint(1, 9)
            rows = Rows.chain(slot, [7] * count)
            if piece or rng.random() < 0.4:
                above = [rng.randint(ROOT, len(parents) + i - 1) for i in range(count)]
                rows = Rows(slot, [7] * count, above)
            first = length + len(parents)
            for i, parent in enumerate(rows.parents):
                paths.append([*(paths[parent] if parent != ROOT else []), first + i])
            parents += rows.parents
            span = slots.extend(rows)
            own = paths[-count:]
            assert [list(path) for path in span.paths] == own == [list(span.paths[i]) for i in range(count)]
            assert [list(path) for path in span.paths[1:]] == own[1:]
            assert list(span.paths[-1]) == own[-1]
            assert (span.base, span.first, span.end) == (length, first, first + count)
        row, path = rng.randrange(len(parents)), list[int]()
        while row != ROOT:
            path, row = [row, *path], parents[row]
        moves = slots.commit(slot, range(len(path)) if path == [*range(len(path))] and rng.random() < 0.5 else path)
        assert moves == [(length + row, length + i) for i, row in enumerate(path) if row != i]
        length += len(path)
        assert slots.length(slot) == length
