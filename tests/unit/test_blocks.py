"""A cache in blocks: whatever is opened, forked, written, closed and given away, every slot holds its own text."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from outrider.core.model import Rows
from outrider.errors import InvalidRequest
from outrider.kvcache import blocks
from outrider.kvcache.blocks import AHEAD, SPARE, BlockSlots

SIZE = 4


class Cache:
    """What the cache itself is told by the books, and has written to it."""

    def __init__(self, slots: int, capacity: int, blocks: int) -> None:
        self.books = BlockSlots(slots, capacity, SIZE)
        self.books.provide(blocks)
        self.cells = [[-1] * SIZE for _ in range(blocks + 1)]
        self.table = [[SPARE] * 400 for _ in range(slots)]

    def apply(self) -> None:
        copies, entries = self.books.drain()
        for source, target in copies:
            self.cells[target] = self.cells[source][:]
        for (slot, place), block in entries.items():
            self.table[slot][place] = block

    def write(self, slot: int, tokens: list[int]) -> None:
        """Commit them at the end of what the slot holds."""
        length = self.books.length(slot)
        self.books.extend(Rows.chain(slot, tokens))
        self.apply()
        for index, token in enumerate(tokens, length):
            block = self.table[slot][index // SIZE]
            assert block != SPARE
            others = [s for s, row in enumerate(self.table) if s != slot and block in self.blocks(s)]
            assert not others, "a block that another slot holds is written"
            self.cells[block][index % SIZE] = token
        self.books.commit(slot, range(len(tokens)))

    def blocks(self, slot: int) -> list[int]:
        return list(self.books.blocks(slot))

    def read(self, slot: int, length: int) -> list[int]:
        return [self.cells[self.table[slot][i // SIZE]][i % SIZE] for i in range(length)]

    def check(self, texts: dict[int, list[int]]) -> None:
        for slot, text in texts.items():
            assert self.read(slot, len(text)) == text
        for slot, row in enumerate(self.table):
            held = self.blocks(slot)
            assert row[: len(held)] == held
            assert set(row[len(held) :]) == {SPARE}, "what a slot does not hold lies in nobody's block"
        every = Counter(block for slot in range(len(self.table)) for block in self.blocks(slot))
        assert SPARE not in every
        assert self.books.unused + len(every) == self.books.count, "no block is lost, and none is held and free"
        opened = [block for slot in texts for block in self.blocks(slot)]
        assert self.books.shared == len(opened) - len(set(opened))


@pytest.mark.parametrize("seed", range(12))
def test_every_slot_holds_its_own_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "AHEAD", 9)
    rng = random.Random(seed)
    cache = Cache(slots=6, capacity=60, blocks=rng.choice([20, 30, 40]))
    texts: dict[int, list[int]] = {}
    closed: dict[int, tuple[list[int], int]] = {}
    token = given_away = reopened = 0
    for _ in range(1500):
        what = rng.random()
        if what < 0.15 and len(texts) < 4:
            sources = [*texts, *closed]
            if sources and rng.random() < 0.8:
                source = rng.choice(sources)
                text = texts[source] if source in texts else closed[source][0]
                length = rng.randint(0, len(text))
                if source in closed and rng.random() < 0.5:
                    cache.books.reopen(source, length)
                    reopened += 1
                    slot = source
                else:
                    slot = cache.books.fork(source, length)
                texts[slot] = text[:length]
            else:
                slot = cache.books.open()
                texts[slot] = []
            closed.pop(slot, None)
            cache.apply()
        elif texts and what < 0.25:
            slot = rng.choice(list(texts))
            text = texts.pop(slot)
            cache.books.close(slot)
            closed[slot] = text, cache.books.epoch(slot)
            cache.apply()
        elif texts and what < 0.35:
            slot = rng.choice(list(texts))
            length = rng.randint(0, len(texts[slot]))
            cache.books.rollback(slot, length)
            del texts[slot][length:]
            cache.apply()
        elif texts:
            slot = rng.choice(list(texts))
            tokens = list(range(token, token + rng.randint(1, min(9, 61 - len(texts[slot])))))[: 60 - len(texts[slot])]
            token += len(tokens)
            if tokens and cache.books.holds([len(text) for text in texts.values()]):
                cache.write(slot, tokens)
                texts[slot] += tokens
        for slot, (text, epoch) in list(closed.items()):
            if cache.books.epoch(slot) != epoch:
                del closed[slot]
                given_away += 1
            else:
                assert cache.read(slot, len(text)) == text, "a closed slot keeps what it held until that is given away"
        cache.check(texts)
    assert given_away
    assert reopened


def test_whole_blocks_are_shared_and_only_the_rest_is_copied() -> None:
    cache = Cache(slots=5, capacity=40, blocks=20)
    first = cache.books.open()
    cache.write(first, list(range(10)))
    others = [cache.books.fork(first, 10) for _ in range(3)]
    copies = cache.books._changes.copies[:]
    cache.apply()
    assert [cache.blocks(slot)[:2] for slot in others] == [cache.blocks(first)[:2]] * 3
    assert len({cache.blocks(slot)[2] for slot in (first, *others)}) == 4
    assert [source for source, _ in copies] == [cache.blocks(first)[2]] * 3
    assert cache.books.shared == 6
    for slot in (first, *others):
        cache.write(slot, [slot + 100])
    cache.check({slot: [*range(10), slot + 100] for slot in (first, *others)})


def test_what_was_left_is_given_away_from_the_oldest_on() -> None:
    cache = Cache(slots=4, capacity=400, blocks=6)
    left = []
    for i in range(3):
        slot = cache.books.open()
        cache.write(slot, [i] * 8)
        left.append(slot)
    epochs = [cache.books.epoch(slot) for slot in left]
    for slot in left:
        cache.books.close(slot)
    slot = cache.books.fork(left[0], 8)  # that was of use: the next is the oldest now
    cache.write(slot, [9])
    assert [cache.books.epoch(s) == epoch for s, epoch in zip(left, epochs, strict=True)] == [True, False, True]
    cache.write(slot, [9] * 4)
    cache.check({slot: [0] * 8 + [9] * 5})


def test_a_slot_is_refused_what_nobody_can_give() -> None:
    cache = Cache(slots=2, capacity=40, blocks=3)
    slot, other = cache.books.open(), cache.books.open()
    cache.write(slot, [1] * 8)
    with pytest.raises(InvalidRequest, match="all 3 blocks of the cache are in use"):
        cache.books.extend(Rows.chain(other, [2] * 8))
    cache.apply()
    cache.check({slot: [1] * 8, other: []})
    cache.books.close(other)
    with pytest.raises(InvalidRequest, match="all 3 blocks"):
        cache.write(slot, [1] * 8)
    cache.apply()
    cache.check({slot: [1] * 8})


def test_what_is_shared_counts_once() -> None:
    books = BlockSlots(8, 1000, 128)
    books.provide(2 * -(-(900 + AHEAD) // 128))
    assert books.holds([900, 900])
    assert not books.holds([900, 900, 900])
    first = books.open()
    books.extend(Rows.chain(first, [0] * 900))
    books.commit(first, range(900))
    books.fork(first, 900)
    assert books.shared == 7
    assert books.holds([900, 900, 700])
    assert not books.holds([900, 900, 900])


def test_a_cache_that_knows_nothing_any_more_is_told_again() -> None:
    """Also what it had not been told before; of closed slots nothing is left."""
    cache = Cache(3, 40, 16)
    one, two = cache.books.open(), cache.books.open()
    cache.write(one, list(range(10)))
    cache.write(two, list(range(7)))
    cache.books.close(two)
    epoch = cache.books.epoch(two)
    three = cache.books.fork(one, 6)
    cache.books.reserve(one, 20)
    cache.table = [[SPARE] * 400 for _ in range(3)]
    cache.books.forget()
    cache.apply()
    assert (cache.blocks(two), cache.books.epoch(two)) == ([], epoch + 1)
    with pytest.raises(ValueError, match="cannot be opened"):
        cache.books.reopen(two, 1)
    for slot, row in enumerate(cache.table):
        held = cache.blocks(slot)
        assert row[: len(held)] == held
        assert set(row[len(held) :]) == {SPARE}
    for slot in (one, three):
        cache.books.close(slot)
    text = {slot: [slot] * 12 for slot in (cache.books.open(), cache.books.open(), cache.books.open())}
    for slot, tokens in text.items():
        cache.write(slot, tokens)
    cache.check(text)
