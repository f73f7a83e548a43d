"""Tilings tried on a GPU that nobody has measured: only speed is chosen, never bits. By Triton's interpreter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tiny_gpu import TARGET, gpu_decoder

from outrider.bench.shapes import SHAPES
from outrider.core.model import Rows
from outrider.core.step import Recording
from outrider.errors import ModelError
from outrider.models.cuda import tuning
from outrider.models.cuda.compiling import compile_kernels
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.device import GPU
from outrider.models.cuda.graphs import Graphs
from outrider.models.cuda.products import Products
from outrider.models.cuda.tiling import Product, Tiling, alternatives, tiling
from outrider.models.cuda.tuning import LEAST, ROWS, Stored, Tuning, fastest

CARDS = {
    "RTX 3060": GPU(101_376, 28, (8, 6)),
    "RTX 4090": GPU(101_376, 128, (8, 9)),
    "A100": GPU(166_912, 108, (8, 0)),
    "RTX 5090": GPU(101_376, 170, (12, 0)),
}
H200 = GPU(232_448, 132, (9, 0))


def products(shape: str, size: int) -> list[Product]:
    a = SHAPES[shape]
    return [
        Product(a.q_width + 2 * a.kv_width, a.hidden, False, size),
        Product(a.hidden, a.q_width, False, size),
        Product(a.mlp, a.hidden, True, size),
        Product(a.hidden, a.mlp, False, size),
        Product(a.vocab_size, a.hidden, False, size),
    ]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("shape", ["8b", "1b", "135m"])
@pytest.mark.parametrize("card", CARDS)
def test_what_is_tried_keeps_the_order_of_summation_and_fits(card: str, shape: str, size: int) -> None:
    gpu = CARDS[card]
    for product in products(shape, size):
        for rows in ROWS:
            columns, depth, gated, _ = product
            usual = tiling(columns, depth, rows, gpu, gated=gated, split=product.split, size=size)
            others = alternatives(usual, product, gpu)
            assert len(others) <= 6
            assert usual not in others
            for cut in others:
                assert (cut.split, cut.rows) == (product.split, rows)
                assert depth // product.split % (cut.block_k * cut.unrolled) == 0
                assert cut.shared(size, gated) <= gpu.shared
                assert size > 1 or cut.block_k == usual.block_k


CUTS = [Tiling(16, 64, 64, 1, stages) for stages in range(2, 7)]


def clock(costs: list[float], noise: float, seed: int) -> dict[Tiling, Callable[[], float]]:
    """Of a GPU that gets slower and now and then does something else."""
    random_ = random.Random(seed)
    warm = 1.0

    def seconds(cost: float) -> float:
        nonlocal warm
        warm *= 1.002
        return cost * warm * (1 + random_.uniform(-noise, noise)) * (5 if random_.random() < 0.02 else 1)

    return {cut: lambda cost=cost: seconds(cost) for cut, cost in zip(CUTS, costs, strict=True)}  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_is_found_by_a_clock_that_drifts(seed: int) -> None:
    assert fastest(CUTS[0], CUTS[1:], clock([1.0, 1.02, 0.97, 0.94, 1.3], 0.003, seed)) == CUTS[3]
    assert fastest(CUTS[0], CUTS[1:], clock([1.0, 1.02, 1.05, 1.04, 1.3], 0.003, seed)) == CUTS[0]


def test_what_may_be_chance_is_not_chosen() -> None:
    assert fastest(CUTS[0], CUTS[1:2], {CUTS[0]: lambda: 1.0, CUTS[1]: lambda: 1 - LEAST / 2}) == CUTS[0]
    assert fastest(CUTS[0], CUTS[1:2], {CUTS[0]: lambda: 1.0, CUTS[1]: lambda: 1 - 2 * LEAST}) == CUTS[1]


def logits(decoder: CudaDecoder) -> torch.Tensor:
    slot = decoder.open()
    found = decoder.forward([Rows.chain(slot, [5, 7, 11, 13])])
    decoder.close(slot)
    return found


class Simulated:
    """Seconds of passes: fewer stages take less; what is launched is launched all the same."""

    def __init__(self, decoder: CudaDecoder) -> None:
        self._chosen = decoder.network.products.chosen

    def __call__(self, launches: Callable[[], None]) -> Callable[[], float]:
        launches()
        cost = 1.0 + sum(cut.stages for cut in self._chosen.values()) / 100 - 0.5 * bool(self._chosen)
        return lambda: cost


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> CudaDecoder:
    if torch.cuda.is_available():
        pytest.skip("by the interpreter")
    monkeypatch.setattr(tuning, "ROWS", (16,))
    monkeypatch.setattr(tuning, "SECONDS", float("inf"))  # no test depends on the speed of a machine
    made = gpu_decoder(TARGET)
    made._pad()
    return made


def tuned(decoder: CudaDecoder, notes: list[str]) -> dict[tuple[Product, int], Tiling]:
    for _ in Tuning(decoder.network, notes.append, Simulated(decoder)).run():
        pass
    return decoder.network.products.chosen


def few(usual: Tiling, product: Product, gpu: GPU) -> list[Tiling]:
    return [replace(usual, stages=usual.stages + 1), replace(usual, stages=usual.stages - 1)]


def test_a_model_is_tuned_once_and_says_the_same(
    decoder: CudaDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "alternatives", few)
    before, notes = logits(decoder), list[str]()
    found = dict(tuned(decoder, notes))
    assert not notes
    assert len(found) == len(decoder.network.sites())
    products = decoder.network.products
    for (product, rows), cut in found.items():
        products.chosen.clear()
        assert cut == few(tuning.usual(products, product, rows), product, products.gpu)[1]
    products.chosen.update(found)
    assert torch.equal(logits(decoder), before)
    stored = Stored(tmp_path, "a GPU", products, decoder.network.sites())
    products.chosen.clear()
    assert stored.load(products) is None
    stored.save(found)
    assert stored.load(products) == found
    assert Stored(tmp_path, "another GPU", products, decoder.network.sites()).load(products) is None


HOSTILE = ["1e999", "NaN", "0", "-1", "16.0", "true", "null", '"16"', "[]", "{}", "4096", "96"]
"""Instead of any number in it. Some are the same to Python, and nothing a kernel could be launched with."""


@pytest.mark.parametrize("field", ["columns", "depth", "gated", "size", "rows", "block_k", "split", "stages", "warps"])
def test_whatever_stands_in_a_file_a_model_loads(
    decoder: CudaDecoder, tmp_path: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was saved, or as if nothing had been."""
    monkeypatch.setattr(tuning, "alternatives", few)
    products, sites = decoder.network.products, decoder.network.sites()
    product = sites[0].product
    cut = few(tuning.usual(products, product, 16), product, products.gpu)[0]
    stored = Stored(tmp_path, "a GPU", products, sites)
    stored.save({(product, 16): cut})
    (entry,) = json.loads(stored.path.read_text())
    if field in Product._fields:
        value, entry["product"][Product._fields.index(field)] = getattr(product, field), "@"
    else:
        value, entry["tiling"][field] = getattr(cut, field), "@"
    for hostile in HOSTILE:
        stored.path.write_text(json.dumps([entry]).replace('"@"', hostile))
        same = hostile == json.dumps(value)
        assert stored.load(products) == ({(product, 16): cut} if same else None), hostile


@pytest.mark.parametrize(
    "damage", ["", "{}", "[1]", "[" * 100_000, '[{"product": [1, 2], "tiling": {"rows": 16}}]', "cut", "order"]
)
def test_a_damaged_file_is_measured_again(
    decoder: CudaDecoder, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "alternatives", few)
    products, sites = decoder.network.products, decoder.network.sites()
    chosen = {
        (site.product, 16): few(tuning.usual(products, site.product, 16), site.product, products.gpu)[0]
        for site in sites
    }
    stored = Stored(tmp_path, "a GPU", products, sites)
    stored.save(chosen)
    assert stored.load(products) == chosen
    text = stored.path.read_text()
    if damage == "cut":
        damage = text[:-9]
    elif damage == "order":
        damage = text.replace('"split": 1', '"split": 2')
    assert damage != text
    stored.path.write_text(damage)
    assert stored.load(products) is None


def spoil(monkeypatch: pytest.MonkeyPatch, which: Callable[[Tiling], bool]) -> None:
    """Products in those tilings come to one more."""
    narrow = Products._narrow

    def spoiled(self: Products, cut: Tiling, *given: Any) -> None:
        narrow(self, cut, *given)
        if which(cut):
            _, _, _, _, _, (y, *_), rows, _ = given
            y[:rows] += 1

    monkeypatch.setattr(Products, "_narrow", spoiled)


def test_other_bits_are_refused_loudly(decoder: CudaDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes to something else, and would be the fastest."""

    def wrong(usual: Tiling, product: Product, gpu: GPU) -> list[Tiling]:
        return [replace(usual, stages=1)]

    monkeypatch.setattr(tuning, "alternatives", wrong)
    spoil(monkeypatch, lambda cut: cut.stages == 1)
    before, notes = logits(decoder), list[str]()
    assert not tuned(decoder, notes)
    assert len(notes) == len(decoder.network.sites())
    assert all("not used" in note for note in notes)
    assert torch.equal(logits(decoder), before)


def test_a_model_with_a_weight_that_is_no_number_is_tuned_too(
    decoder: CudaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is none in one tiling is none in any: the GPU is not to blame."""
    monkeypatch.setattr(tuning, "ROWS", (16, 32))
    monkeypatch.setattr(tuning, "alternatives", few)
    decoder.network._weights.layers[0].qkv[3, 5] = torch.nan
    notes = list[str]()
    assert len(tuned(decoder, notes)) == 2 * len(decoder.network.sites())
    assert not notes


def test_bits_are_compared() -> None:
    zeros, nans = torch.zeros(2, 3, dtype=torch.float16), torch.full((2, 3), torch.nan)
    assert tuning.same_bits([zeros, nans], [zeros.clone(), nans.clone()])
    assert not tuning.same_bits([zeros], [-zeros])
    assert not tuning.same_bits([nans], [torch.ones(2, 3)])


def test_two_products_of_one_shape_are_tuned_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found for the first is usual for nobody: what is saved is found again."""
    if torch.cuda.is_available():
        pytest.skip("by the interpreter")
    monkeypatch.setattr(tuning, "ROWS", (16,))
    monkeypatch.setattr(tuning, "SECONDS", float("inf"))
    monkeypatch.setattr(tuning, "alternatives", few)
    decoder = gpu_decoder(replace(TARGET, mlp=TARGET.heads * TARGET.head_dim))
    decoder._pad()
    network, notes = decoder.network, list[str]()
    sites = network.sites()
    assert len({site.product for site in sites}) < len(sites)
    stored = Stored(tmp_path, "a GPU", network.products, sites)
    list(tuning.tune(network, stored, Simulated(decoder), notes.append))
    found = dict(network.products.chosen)
    network.products.chosen.clear()
    assert not notes
    assert stored.load(network.products) == found


def test_time_is_up_for_what_is_tried_and_not_for_compilers(
    decoder: CudaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would try again later what there was no time for."""
    monkeypatch.setattr(tuning, "alternatives", few)
    monkeypatch.setattr(tuning, "SECONDS", 20.0)
    now = 0.0

    def slowly(recordings: Iterable[Recording]) -> Iterator[None]:
        nonlocal now
        now += 60
        return compile_kernels(recordings)

    def clock() -> float:
        nonlocal now
        now += 7
        return now

    monkeypatch.setattr(tuning, "compile_kernels", slowly)
    for _ in Tuning(decoder.network, list[str]().append, Simulated(decoder), clock).run():
        pass
    tried = [site.product for site in decoder.network.sites()][:2]
    assert [product for product, _ in decoder.network.products.chosen] == tried


def test_a_gpu_on_which_nothing_can_be_tried_runs_as_usual(
    decoder: CudaDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "alternatives", few)
    stored, notes = Stored(tmp_path, "a GPU", decoder.network.products, decoder.network.sites()), list[str]()

    def broken(launches: Callable[[], None]) -> Callable[[], float]:
        raise RuntimeError("no graphs here")

    assert len(list(tuning.tune(decoder.network, stored, broken, notes.append))) >= 1
    assert len(notes) == 1
    assert "no graphs here" in notes[0]
    assert not decoder.network.products.chosen
    assert not stored.path.exists()


def test_a_row_whose_bits_depend_on_the_others_is_an_error(
    decoder: CudaDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of 32 rows that comes to more than one of 16, which no other tiling can mend."""
    monkeypatch.setattr(tuning, "ROWS", (16, 32))
    monkeypatch.setattr(tuning, "alternatives", few)
    spoil(monkeypatch, lambda cut: cut.rows == 32)
    stored = Stored(tmp_path, "a GPU", decoder.network.products, decoder.network.sites())
    with pytest.raises(ModelError, match="would depend on who else asks"):
        list(tuning.tune(decoder.network, stored, Simulated(decoder), list[str]().append))


def test_nothing_is_tried_where_it_was_measured_or_nobody_asks(tmp_path: Path, decoder: CudaDecoder) -> None:
    notes = list[str]()
    assert list(decoder.tune(notes.append)) == []
    decoder._tilings = tmp_path
    decoder.network.products.gpu = H200
    assert list(decoder.tune(notes.append)) == []
    assert not notes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_tuning_on_a_gpu_as_if_it_were_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, recorded and timed: nothing is refused, nothing changes, and the next load finds it done."""
    monkeypatch.setattr(tuning, "ROWS", (16,))
    decoder, notes = gpu_decoder(TARGET), list[str]()
    products = decoder.network.products
    products.gpu = replace(products.gpu, capability=(8, 9))
    before = logits(decoder)
    decoder._tilings = tmp_path
    assert len(list(decoder.tune(notes.append))) > 1
    assert not notes
    found = dict(products.chosen)
    decoder.graphs = Graphs(decoder.device)
    assert torch.equal(logits(decoder), before)
    products.chosen.clear()
    assert list(decoder.tune(notes.append)) == []
    assert products.chosen == found
