"""Compiles what a pass, a choice of tokens, a chain or a tree launches for a GPU that is not there: what kernels need.

    python compiled_for.py CAPABILITY SHARED SHAPE DTYPE ROWS[,ROWS…]
    python compiled_for.py CAPABILITY choices|judged|chains|trees
    python compiled_for.py CAPABILITY tilings SHARED DTYPE

In a process of its own, since Triton decides when it is imported whether it compiles or interprets. Tensors are on no
device: only their types count. One JSON line for each kernel.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from outrider.bench.shapes import SHAPES
from outrider.core.step import Manner, tree_of
from outrider.models.architecture import Architecture, Rope
from outrider.models.cuda import network
from outrider.models.cuda.backend import HEAD_IN_FP8
from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.device import GPU
from outrider.models.cuda.growth import TreeGrowth
from outrider.models.cuda.judge import Drawn, Judge
from outrider.models.cuda.lanes import DRAFT_SLOT, MAX_LENGTH, TARGET_SLOT, Lanes
from outrider.models.cuda.network import Network
from outrider.models.cuda.offers import Offers
from outrider.models.cuda.reports import Reports
from outrider.models.cuda.said import Said
from outrider.models.cuda.stepper import DeviceStepper
from outrider.models.cuda.tables import Tables
from outrider.models.cuda.tiling import alternatives
from outrider.models.cuda.trees import Trees
from outrider.models.cuda.tuning import usual
from outrider.models.precision import FP8, PRECISIONS
from outrider.models.weights import DecoderWeights, LayerWeights

NOWHERE = torch.device("meta")


class Absent(CudaDriver):  # type: ignore[misc]
    """Of a GPU that only has a name."""

    def __init__(self, capability: int) -> None:
        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0


def weights(a: Architecture, matrices: torch.dtype, head: torch.dtype) -> DecoderWeights[LayerWeights]:
    def matrix(rows: int, columns: int, form: torch.dtype = matrices) -> tuple[torch.Tensor, torch.Tensor | None]:
        scales = torch.empty(rows, device=NOWHERE) if form.itemsize == 1 else None
        return torch.empty(rows, columns, dtype=form, device=NOWHERE), scales

    norm = torch.empty(a.hidden, device=NOWHERE)
    qkv, o = matrix(a.q_width + 2 * a.kv_width, a.hidden), matrix(a.hidden, a.q_width)
    gate_up, down = matrix(2 * a.mlp, a.hidden), matrix(a.hidden, a.mlp)
    layer = LayerWeights(
        qkv[0], o[0], gate_up[0], down[0], norm, norm,
        qkv_scales=qkv[1], o_scales=o[1], gate_up_scales=gate_up[1], down_scales=down[1],
    )  # fmt: skip
    embedding, _ = matrix(a.vocab_size, a.hidden, torch.bfloat16)
    multiplied, scales = matrix(a.vocab_size, a.hidden, head)
    return DecoderWeights(embedding, multiplied, norm, [layer], head_scales=scales)


def compiled(launches: Callable[[], None]) -> None:
    missing: dict[str, Any] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        missing[compile["specialization_data"]] = fn.jit_function
        return True

    knobs.runtime.jit_cache_hook = note
    launches()
    knobs.runtime.jit_cache_hook = None
    for what, kernel in missing.items():
        made = kernel.preload(what)
        told = {
            "kernel": made.metadata.name,
            "shared": made.metadata.shared,
            "steps": sorted(set(re.findall(r"kWidth = \d+", made.asm["ttgir"]))),
        }
        print(json.dumps(told), flush=True)


def main(capability: int, shared: int, shape: str, dtype: str, rows: list[int]) -> None:
    driver.set_active(Absent(capability))
    gpu = GPU(shared, 100, divmod(capability, 10))
    network.GPU = replace_of(gpu)  # type: ignore[attr-defined]
    a = SHAPES["8b" if shape == "heads of 256" else shape]
    a = replace(a, layers=a.layers[:1])
    if shape == "heads of 256":
        a = replace(a, head_dim=256, heads=16, kv_heads=4, ropes=(Rope(10_000.0, 256),))
    precision = PRECISIONS[dtype]
    head = HEAD_IN_FP8 if precision is FP8 else precision.weights
    made = Network(a, weights(a, precision.weights, head), 5, 1024, 4096)
    made.cache.make(16)

    def launches() -> None:
        for count in rows:
            if count <= network.NARROW_ROWS:
                made.body(count, together=count > 1)
                for chain in (1, 4):
                    if count % chain == 0:
                        made.body(count, together=chain > 2, chain=chain)
                made.head(min(count, network.HEAD_ROWS))
                if count > 64:
                    made.head_in_order(count)
            elif made.tile_rows:
                made.body(count, together=True, tiled=True)

    compiled(launches)


def tilings(gpu: GPU, dtype: str) -> None:
    """What is tried for two of an 8B model's products, one of them gated."""
    network.GPU = replace_of(gpu)  # type: ignore[attr-defined]
    a, precision = replace(SHAPES["8b"], layers=SHAPES["8b"].layers[:1]), PRECISIONS[dtype]
    made = Network(a, weights(a, precision.weights, precision.weights), 5, 1024, 64)

    def launches() -> None:
        for site in made.sites()[1:3]:
            for rows in (16, 64):
                for cut in alternatives(usual(made.products, site.product, rows), site.product, gpu):
                    made.products.chosen[site.product, rows] = cut
                    site.alone(rows)

    compiled(launches)


def choices() -> None:
    """Among all tokens as their logits come, and among a head's, processed; and their reports."""
    rows, vocab = 2, 4000
    logits = torch.empty(rows, vocab, device=NOWHERE)
    chosen = torch.empty(rows, dtype=torch.int32, device=NOWHERE)
    drafts = torch.empty(rows, MAX_LENGTH, dtype=torch.int32, device=NOWHERE)
    said, noise = Said(rows, vocab, drafts), Noise.room(rows, NOWHERE)
    ids = torch.empty(vocab, dtype=torch.int32, device=NOWHERE)
    Chooser(rows, vocab, NOWHERE).choose(logits, rows, noise, chosen)
    Chooser(rows, vocab, NOWHERE, ids).choose(logits, rows, noise, chosen, said)
    Chooser(rows, vocab, NOWHERE).choose(logits, rows, None, chosen)
    Chooser(rows, vocab, NOWHERE).choose(logits, rows, noise, chosen, said)
    Reports(rows, vocab, NOWHERE).fill(logits, rows, said.marks, chosen)


def chains() -> None:
    """Placed, held against what the host has sent, judged and counted; what waits for a drafter is left out."""
    lanes, length, a = 2, 3, SHAPES["8b"]
    a = replace(a, layers=a.layers[:1])
    board = Lanes(lanes, lanes, lanes, 256, a.vocab_size, NOWHERE)
    target = Network(a, weights(a, torch.bfloat16, torch.bfloat16), lanes + 1, 256, 64)
    Offers(board).align(lanes, length)
    board.place(target, TARGET_SLOT, lanes, 0, length + 1, wanted=length + 1)
    board.place(target, DRAFT_SLOT, lanes, -1, 2, wanted=1)
    board.place_waiting(target, lanes, 4)
    board.count(lanes)
    board.skip(lanes, 1)
    chosen = torch.empty(8, dtype=torch.int32, device=NOWHERE)
    stepper: Any = SimpleNamespace(_board=board, _chosen=chosen, _judge=SimpleNamespace(accepted=chosen))
    for manner in (Manner.FULL, Manner.JUDGED):
        DeviceStepper._accept(stepper, lanes, length, manner)


def judged() -> None:
    """Drafts of a head and of a draft model drawn, and judged beside given ones."""
    lanes, vocab = 2, 4000
    board = Lanes(lanes, lanes, lanes, 256, vocab, NOWHERE)
    logits = torch.empty(lanes, vocab, device=NOWHERE)
    chosen = torch.empty(lanes * 4, dtype=torch.int32, device=NOWHERE)
    chooser, ids = Chooser(lanes, vocab, NOWHERE), torch.empty(3000, dtype=torch.int64, device=NOWHERE)
    for own, columns in ((ids, 3000), (None, vocab)):
        drawn = Drawn(lanes * 4, columns, own, vocab, NOWHERE)
        Judge(Chooser(lanes, columns, NOWHERE, own), board, lanes, drawn).draw(
            logits, lanes, board.noise, board.said, 0, board.drafts
        )
        judge = Judge(chooser, board, lanes, drawn)
        judge.deal(lanes, 3)
        judge.judge(logits, lanes, board.noise, board.said, chosen, 0)
    Judge(chooser, board, lanes).judge(logits, lanes, board.noise, board.said, chosen, 0)


def trees() -> None:
    """Grown, run and judged, greedy and drawn."""
    lanes, shape, a = 2, tree_of(16), SHAPES["8b"]
    board = Lanes(lanes, lanes, lanes, 256, a.vocab_size, NOWHERE)
    last = torch.empty(lanes, dtype=torch.int32, device=NOWHERE)
    head: Any = SimpleNamespace(
        logits=torch.empty(lanes * 8, 4000, device=NOWHERE),
        head=lambda count: None,
        run=lambda *args: None,
        states=None,
        tokens=4000,
        tables=Tables.over(torch.empty(Tables.size(64), dtype=torch.int32, device=NOWHERE)),
    )
    found, ids = Trees(board), torch.empty(4000, dtype=torch.int32, device=NOWHERE)
    growth = TreeGrowth(head, board, found, 4000, ids)
    for manner in (Manner.GREEDY, Manner.DRAWN):
        growth.begin(lanes, last, manner)
        growth.grow(lanes, shape, last, manner)
    a = replace(a, layers=a.layers[:1])
    target = Network(a, weights(a, torch.bfloat16, torch.bfloat16), lanes + 1, 256, 64)
    target.cache.make(4)
    found.place(target, lanes, shape)
    found.accept(torch.empty(lanes * 17, dtype=torch.int32, device=NOWHERE), lanes, shape)
    found.keep(target, lanes)
    features = torch.empty(64, 1024, dtype=torch.bfloat16, device=NOWHERE)
    found.keep_features(features, torch.empty(lanes, 65, 1024, dtype=torch.bfloat16, device=NOWHERE), lanes, shape)


def replace_of(gpu: GPU) -> type[GPU]:
    class Given(GPU):
        @staticmethod
        def of(device: torch.device) -> GPU:
            return gpu

    return Given


if __name__ == "__main__":
    parts = {"choices": choices, "judged": judged, "chains": chains, "trees": trees}
    if sys.argv[2] in parts:
        driver.set_active(Absent(int(sys.argv[1])))
        network.GPU = replace_of(GPU(101_376, 100, divmod(int(sys.argv[1]), 10)))  # type: ignore[attr-defined]
        compiled(parts[sys.argv[2]])
    elif sys.argv[2] == "tilings":
        driver.set_active(Absent(int(sys.argv[1])))
        tilings(GPU(int(sys.argv[3]), 100, divmod(int(sys.argv[1]), 10)), sys.argv[4])
    else:
        _, capability, shared, shape, dtype, rows = sys.argv
        main(int(capability), int(shared), shape, dtype, [int(count) for count in rows.split(",")])
