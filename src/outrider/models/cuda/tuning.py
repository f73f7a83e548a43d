"""Tilings tried on the GPU at hand: once, at the first load, where the ones that come with Outrider were not measured.

They differ in speed alone: the order of summation belongs to the matrix, and no other is tried. What is timed are whole
passes, recorded as they will run, of which one product at a time is computed otherwise: so weights come from memory and
kernels overlap as they will. What comes out of each product is compared with what usually does, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
import triton
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.cuda.compiling import compile_kernels
from outrider.models.cuda.graphs import recorded
from outrider.models.cuda.products import Products
from outrider.models.cuda.tiling import Product, Tiling, alternatives
from outrider.version import __version__

ROWS = (16, 32, 64)
"""Of the passes that are timed: as many as the tiles that products of few rows are computed in have."""
ROUNDS = 5
LEAST = 0.004
"""What a pass must gain by another tiling: less may be chance."""
SECONDS = 20.0
"""After which what has not been tried is left as it is. Compilers may take as long as they need."""

Launches = Callable[[int], None]
"""Of so many rows."""
Seconds = Callable[[Callable[[], None]], Callable[[], float]]
"""Makes what launches into something that does, and says how long it took."""
Chosen = dict[tuple[Product, int], Tiling]


class Site(NamedTuple):
    """Where a product is computed."""

    product: Product
    inside: Launches
    """What runs it in all layers."""
    alone: Launches
    """It alone, in one."""
    written: Callable[[int], Sequence[Tensor]]
    """What that writes, by rows."""
    reset: Callable[[], None]
    """Have what it reads be some numbers, always the same."""


class Tuned(Protocol):
    products: Products

    def sites(self) -> Sequence[Site]: ...


class Stored:
    """What was found for one kind of GPU, in a file. What cannot be read is measured again, and what cannot be written
    next time."""

    def __init__(self, folder: Path, name: str, products: Products, sites: Sequence[Site]) -> None:
        """`name`: of the GPU."""
        facts = {
            "gpu": [name, asdict(products.gpu)],
            "versions": [__version__, triton.__version__, torch.__version__],
            "products": [site.product for site in sites],
            "dtype": str(products.residual.dtype),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        self._sites = sites
        self.path = folder / f"tilings-{digest.hexdigest()[:32]}.json"

    def load(self, products: Products) -> Chosen | None:
        """Only what would be tried is believed, as it would be written."""
        known = {
            json.dumps(_entry(site.product, cut)): ((site.product, rows), cut)
            for site, rows, cut in tried(products, self._sites)
        }
        try:
            read = json.loads(self.path.read_text())
            if not isinstance(read, list):
                raise ValueError("a list was written")
            return dict(known[json.dumps(entry)] for entry in read)
        except (OSError, ValueError, KeyError, RecursionError):
            return None

    def save(self, chosen: Chosen) -> None:
        entries = [_entry(product, cut) for (product, _), cut in chosen.items()]
        beside = self.path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a full or read-only disk
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_text(json.dumps(entries, indent=1))
                beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)


def _entry(product: Product, cut: Tiling) -> dict[str, object]:
    return {"product": list(product), "tiling": asdict(cut)}


def tried(products: Products, sites: Sequence[Site]) -> Iterator[tuple[Site, int, Tiling]]:
    """What may be faster than usual where nothing else was chosen yet."""
    for rows in ROWS:
        for site in sites:
            for cut in alternatives(usual(products, site.product, rows), site.product, products.gpu):
                yield site, rows, cut


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Not whether the numbers are equal: 0 is equal to -0, and what is no number to nothing."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(some, others, strict=True))


def usual(products: Products, product: Product, rows: int) -> Tiling:
    cut = products.cut(product, rows, gathered=True)
    assert isinstance(cut, Tiling)
    return cut


def fastest(usual: Tiling, others: Sequence[Tiling], seconds: Mapping[Tiling, Callable[[], float]]) -> Tiling:
    """By turns, so that a GPU that slows down does so for all; the usual one where none is clearly faster."""
    taken: dict[Tiling, list[float]] = {cut: [] for cut in (usual, *others)}
    for _ in range(ROUNDS):
        for cut, times in taken.items():
            times.append(seconds[cut]())
    medians = {cut: median(times) for cut, times in taken.items()}
    best = min(medians, key=medians.__getitem__)
    return best if medians[best] < (1 - LEAST) * medians[usual] else usual


class Tuning:
    def __init__(
        self,
        network: Tuned,
        note: Callable[[str], None],
        seconds: Seconds,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._products = network.products
        # Of products of one shape one is enough: what is chosen holds for all.
        self._sites = list({site.product: site for site in reversed(network.sites())}.values())[::-1]
        self._note = note
        self._seconds = seconds
        self._clock = clock

    def run(self) -> Iterator[None]:
        """Leaves what is faster than usual in the products' `chosen`; yields now and then."""
        yield from compile_kernels([_Launch(self, *launched) for launched in self._all()])
        began, chosen = self._clock(), self._products.chosen
        for rows in ROWS:
            for site in self._sites:
                if self._clock() - began > SECONDS:
                    return
                its, others = self._agreeing(site, rows)
                if others and (best := self._fastest(site, rows, its, others)) != its:
                    chosen[site.product, rows] = best
                yield

    def _all(self) -> Iterator[tuple[Site, int, Tiling | None]]:
        for rows in ROWS:
            yield from ((site, rows, None) for site in self._sites)
        yield from tried(self._products, self._sites)

    def _agreeing(self, site: Site, rows: int) -> tuple[Tiling, list[Tiling]]:
        """The usual tiling, and others that give its bits."""
        its, found = usual(self._products, site.product, rows), []
        expected = self._outcome(site, rows, its)
        first = self._outcome(site, ROWS[0], usual(self._products, site.product, ROWS[0]))
        if not same_bits([many[: ROWS[0]] for many in expected], first):
            raise ModelError(
                f"on this GPU a row's sums depend on whether a pass has {ROWS[0]} or {rows} rows, so that an answer "
                "would depend on who else asks; use --device cpu, and please report it"
            )
        for cut in alternatives(its, site.product, self._products.gpu):
            try:
                outcome = self._outcome(site, rows, cut)
            except Exception:  # too much of something for this GPU, as compilers find out
                continue
            if same_bits(outcome, expected):
                found.append(cut)
            else:
                self._note(f"{cut} gives other sums than {its} for {site.product} on this GPU: it is not used")
        return its, found

    def _outcome(self, site: Site, rows: int, cut: Tiling) -> list[Tensor]:
        site.reset()
        with self.with_cut(site, rows, cut):
            site.alone(rows)
        return [tensor.clone() for tensor in site.written(rows)]

    def _fastest(self, site: Site, rows: int, its: Tiling, others: Sequence[Tiling]) -> Tiling:
        timed = {}
        for cut in (its, *others):
            with self.with_cut(site, rows, cut):
                timed[cut] = self._seconds(lambda: site.inside(rows))
        return fastest(its, others, timed)

    @contextmanager
    def with_cut(self, site: Site, rows: int, cut: Tiling | None) -> Iterator[None]:
        """What is launched meanwhile computes this product so."""
        chosen, key = self._products.chosen, (site.product, rows)
        before = chosen.pop(key, None)
        if cut is not None:
            chosen[key] = cut
        try:
            yield
        finally:
            chosen.pop(key, None)
            if before is not None:
                chosen[key] = before


class _Launch(NamedTuple):
    """A `Recording` that is only launched."""

    tuning: Tuning
    site: Site
    rows: int
    cut: Tiling | None
    """None: all that runs with the product, as usual."""

    def launch(self) -> None:
        with torch.inference_mode(), self.tuning.with_cut(self.site, self.rows, self.cut):
            (self.site.inside if self.cut is None else self.site.alone)(self.rows)

    def record(self) -> None: ...


def replayed(device: torch.device, launches: Callable[[], None]) -> Callable[[], float]:
    """As `Seconds`, on a GPU."""
    graph, (begin, end) = recorded(launches), (torch.Event(device, enable_timing=True) for _ in range(2))

    def seconds() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    seconds()
    return seconds


@torch.inference_mode()
def tune(network: Tuned, stored: Stored, seconds: Seconds, note: Callable[[str], None]) -> Iterator[None]:
    """Have the network compute as fast as it can on this GPU: as was found before, or is now; yields now and then."""
    found = stored.load(network.products)
    if found is not None:
        network.products.chosen.update(found)
        return
    yield  # it begins
    try:
        yield from Tuning(network, note, seconds).run()
    except ModelError:
        raise
    except Exception as error:  # a model that is only slower is not kept from being loaded
        network.products.chosen.clear()
        note(f"other tilings could not be tried on this GPU, the usual ones are used ({type(error).__name__}: {error})")
        return
    stored.save(network.products.chosen)
