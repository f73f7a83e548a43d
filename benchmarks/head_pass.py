"""What drafting with a head costs on the CPU: one head pass, and a whole draft, against one pass of the target.

    python benchmarks/head_pass.py [--head DIR] [--vocab 8192 12288 16384] [--rounds 40] [--out FILE]

Everything is measured where it is used: a target pass of as many rows as the draft has, then the draft, and again; so
the target's weights have swept the caches before each draft. The first head pass (which also fuses the target's
features) and the later ones are told apart, of one row and of as many as a tree's level has. Heads and drafts take
turns, a round each, so that a machine that slows down does so for all of them. Without `--head`, random heads shaped
like the target's layers; their speed is that of any other. Leave the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from time import perf_counter

import torch
from cpu_pass import load
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider import SamplingParams
from outrider.core.draft import ROOT, Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.model import Rows
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.engine.request import Request
from outrider.engine.text import TextStream
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.load import place_head
from outrider.models.head.weights import tensor_shapes
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.head import NativeHead
from outrider.provenance import provenance
from outrider.sampling.history import History

CONTEXT = 300
PASSES = 5
LEVEL = 8
DRAFTS = {"chain of 5": (1, 5, 5), "tree of 16": (4, 16, 5), "tree of 32": (4, 32, 5)}
"""Branching, nodes, depth."""


def random_head(target: NativeDecoder, vocab: int, layers: int) -> HeadCheckpoint:
    config = HeadConfig.beside(target.architecture, vocab, layers)
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) * 0.05 for name, shape in tensor_shapes(config).items() if name != "d2t"}
    return HeadCheckpoint(config, {**tensors, "d2t": torch.zeros(vocab, dtype=torch.long)}, {})


class Passes:
    """Head passes alone: from the target's features of two rows, then from the head's own states."""

    def __init__(self, target: NativeDecoder, head: NativeHead) -> None:
        self.target, self.head = target, head
        self.slot, self.head_slot = target.open(), head.open()
        for start in range(0, CONTEXT, 100):
            target.forward([Rows.chain(self.slot, range(1000 + start, 1100 + start), logits=())])
            target.commit(self.slot, range(100))
            head.forward([Rows.chain(self.head_slot, range(100), logits=())], features=target.features)
            head.commit(self.head_slot, range(100))

    def measure(self, times: dict[str, list[float]]) -> None:
        for name, count in (("target pass, 1 row", 1), ("target pass, 6 rows", 1 + PASSES)):
            start = perf_counter()
            self.target.forward([Rows.chain(self.slot, range(500, 500 + count))])
            times[name].append(perf_counter() - start)
            self.target.commit(self.slot, [])
        features = self.target.features[:2]
        for i in range(PASSES):
            start = perf_counter()
            if i == 0:
                rows = Rows.chain(self.head_slot, [5, 6], [1])
                _, states = self.head.rank([rows], [None], 4, features=features)
                states = states[1:]
            else:
                rows = Rows(self.head_slot, [6 + i], [i])
                _, states = self.head.rank([rows], [None], 4, states=states)
            times["first head pass" if i == 0 else "later head passes"].append(perf_counter() - start)
        level = Rows(self.head_slot, range(500, 500 + LEVEL), [0] * LEVEL)
        states = states.expand(LEVEL, -1).contiguous()
        start = perf_counter()
        self.head.rank([level], [None] * LEVEL, 4, states=states)
        times[f"head pass of {LEVEL} rows"].append(perf_counter() - start)
        self.head.commit(self.head_slot, [])


class Drafting:
    """Whole drafts through `HeadDrafter`, all refused."""

    def __init__(self, target: NativeDecoder, head: NativeHead, temperature: float, draft: str) -> None:
        branching, nodes, depth = DRAFTS[draft]
        self.name = f"{draft}, T={temperature:g}"
        self.budget = Budget(nodes, depth)
        self.target = target
        self.drafter = HeadDrafter(head, target.vocab_size, HeadDrafterConfig(branching))
        params = SamplingParams(temperature=temperature, seed=1).resolve({}, (), target.vocab_size)
        prompt, stream = list(range(1000, 1000 + CONTEXT)), TextStream(lambda token: b"", (), False)
        self.request = Request(0, prompt, len(prompt), params, params.max_tokens, stream, History(prompt))
        self.drafter.open(self.request)
        self.slot = target.open()
        prompt = prompt[:-1]
        for start in range(0, len(prompt), 128):
            self._run(Rows.chain(self.slot, prompt[start : start + 128], logits=()))
            target.commit(self.slot, range(len(prompt[start : start + 128])))
        self._verify(Draft())

    def measure(self, times: dict[str, list[float]]) -> None:
        start = perf_counter()
        (draft,) = self.drafter.propose([self.request], [self.budget])
        times[self.name].append(perf_counter() - start)
        assert len(draft) == self.budget.nodes
        start = perf_counter()
        self._verify(draft)
        times[f"{self.name}: verifying"].append(perf_counter() - start)

    def _verify(self, draft: Draft) -> None:
        tokens = [self.request.tokens[-1], *draft.tokens]
        self._run(Rows(self.slot, tokens, [ROOT, *(parent + 1 for parent in draft.parents)]))
        self.target.commit(self.slot, [0])
        self.request.tokens.append(1000 + len(self.request.tokens) % 5000)
        self.drafter.observe([VerifiedDraft(self.request, draft, (), (self.request.tokens[-1],))])

    def _run(self, rows: Rows) -> None:
        self.target.forward([rows])
        self.drafter.read([self.request], [rows], self.target.features, soon=True)


class Measured:
    """All that is measured of one head, and its times."""

    def __init__(self, target: NativeDecoder, checkpoint: HeadCheckpoint) -> None:
        head = place_head(checkpoint, target)
        assert isinstance(head, NativeHead)
        self.times: dict[str, list[float]] = defaultdict(list)
        self.arms: list[Passes | Drafting] = [Passes(target, head)]
        self.arms += [Drafting(target, head, temperature, draft) for draft in DRAFTS for temperature in (0.0, 1.0)]

    def round(self) -> None:
        for arm in self.arms:
            arm.measure(self.times)

    def medians(self) -> dict[str, float]:
        """In seconds, and shares of a target pass of one row. The first two rounds warm up."""
        found = {name: statistics.median(times[2:]) for name, times in self.times.items()}
        for name in [name for name in found if "head pass" in name]:
            found[f"{name} / target pass, 1 row"] = found[name] / found["target pass, 1 row"]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 12288, 16384])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    origin = provenance() | {"threads": torch.get_num_threads()}
    heads_wanted = 1 if options.head else len(options.vocab) * len(options.layers)
    target = load(options.dtype, max_batch=heads_wanted * (1 + 2 * len(DRAFTS)))
    origin |= {"kernels": target.kernels, "dtype": options.dtype, "context": CONTEXT}
    if options.head:
        heads = {str(options.head): HeadCheckpoint.read(options.head)}
    else:
        heads = {
            f"{layers} layer{'s' * (layers > 1)}, {vocab}": random_head(target, vocab, layers)
            for layers in options.layers
            for vocab in options.vocab
        }
    measured = {name: Measured(target, head) for name, head in heads.items()}
    for _ in track(range(options.rounds + 2), "Measuring"):
        for head in measured.values():
            head.round()
    results = {name: head.medians() for name, head in measured.items()}
    table = Table("ms", *results)
    for key in next(iter(results.values())):
        share = "/" in key
        cells = (f"{100 * r[key]:.1f}%" if share else f"{1e3 * r[key]:.3f}" for r in results.values())
        table.add_row(key, *cells)
    Console(width=160).print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        rounded = {
            name: {k: round(v if "/" in k else 1e3 * v, 4) for k, v in found.items()} for name, found in results.items()
        }
        options.out.write_text(json.dumps({"provenance": origin, "median_ms": rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
