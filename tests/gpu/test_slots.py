"""Random trees behind pending chains, partial commits and rollback: every row sees its own path, and no more."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("triton")

from any_order import decoder
from simulated import hashed, only_interpreted, simulate
from tiny_gpu_head import VOCAB

from outrider.core.draft import ROOT
from outrider.core.model import Rows

pytestmark = only_interpreted


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
def test_rows_see_their_own_path(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    rng = random.Random(seed)
    model = decoder()
    network: Any = model.network
    texts: dict[int, list[int]] = {}
    pending: dict[int, list[tuple[int, int]]] = {}
    for _ in range(400):
        if len(texts) < 4 and rng.random() < 0.2:
            if texts and rng.random() < 0.5:
                source = rng.choice(list(texts))
                length = rng.randint(0, len(texts[source]))
                slot = model.fork(source, length)
                texts[slot], pending[slot] = texts[source][:length], []
            else:
                slot = model.open()
                texts[slot], pending[slot] = [], []
        elif texts and rng.random() < 0.05:
            slot = rng.choice(list(texts))
            model.close(slot)
            del texts[slot], pending[slot]
        if not texts:
            continue
        batch: list[Rows] = []
        for slot in rng.sample(list(texts), rng.randint(1, len(texts))):
            room = 90 - len(texts[slot]) - len(pending[slot])
            if room < 1 or any(rows.slot == slot for rows in batch):
                continue
            count = rng.randint(1, min(room, 8))
            parents, known = [], len(pending[slot])
            chain = rng.random() < 0.5
            for i in range(count):
                last = known + i - 1
                parents.append(last if chain and last >= 0 else rng.randint(ROOT, last))
            tokens = [rng.randrange(VOCAB) for _ in range(count)]
            if parents == list(range(-1, count - 1)) and rng.random() < 0.5:
                batch.append(Rows.chain(slot, tokens))
            else:
                batch.append(Rows(slot, tokens, parents))
            pending[slot] += zip(tokens, parents, strict=True)
        if not batch:
            continue
        model.forward(batch)
        expected = []
        for rows in batch:
            mine = pending[rows.slot]
            for row in range(len(mine) - len(rows.tokens), len(mine)):
                expected.append(hashed(texts[rows.slot] + [mine[i][0] for i in _path(mine, row)]))
        assert network.hashes[: len(expected)] == expected
        for slot in texts:
            if rng.random() < 0.4:
                mine = pending[slot]
                path = _path(mine, rng.randrange(len(mine))) if mine and rng.random() < 0.8 else []
                path = path[: rng.randint(0, len(path))]
                model.commit(slot, path)
                texts[slot] += [mine[i][0] for i in path]
                pending[slot] = []
            elif rng.random() < 0.1:
                length = rng.randint(0, len(texts[slot]))
                model.rollback(slot, length)
                del texts[slot][length:]
                pending[slot] = []


def _path(pending: list[tuple[int, int]], row: int) -> list[int]:
    path: list[int] = []
    while row != ROOT:
        path.append(row)
        row = pending[row][1]
    return path[::-1]
