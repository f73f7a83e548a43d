"""Many rows on the GPU, in wide tiles: the bits of few. By Triton's interpreter where there is no GPU.

What is multiplied there are small whole numbers, whose sums are exact in any order: so whatever differs is a number
that was left out, or taken twice, or from the wrong place. That sums of other numbers keep one order shows on a GPU
(benchmarks/gpu_wide.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tiny_gpu import TARGET
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.bench.shapes import random_weights
from outrider.core.draft import ROOT
from outrider.core.model import Rows
from outrider.models.architecture import Rope
from outrider.models.cuda import network, passes, products
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.kernels import attention as attention_kernels
from outrider.models.cuda.kernels import (
    chain_hopper,
    parts_hopper,
    prompt,
    prompt_hopper,
    stream_hopper,
    wide,
    wide_hopper,
)
from outrider.models.cuda.kernels.attention import BLOCK, TILE, attend_kernel
from outrider.models.cuda.kernels.chain_attention import attend_chains_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, GATED, STORE, linear_kernel
from outrider.models.cuda.launches import swizzled
from outrider.models.cuda.passes import Described

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def whole(*shape: int, dtype: torch.dtype = DTYPE, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-3, 4, shape, generator=generator) / 4).to(DEVICE, dtype)


def product(kind: str, rows: int, how: str) -> list[Tensor]:
    """160 columns of depth 384 in two parts (gated: one); `how`: narrow, or a wide tile by pointers or copied."""
    columns, depth, room = 160, 384, 128
    split = 1 if kind == "gated" else 2
    x, w = whole(room, depth), whole(columns * (2 if kind == "gated" else 1), depth, seed=1)
    bias, gain = whole(w.shape[0], dtype=torch.float32, seed=2), whole(columns, dtype=torch.float32, seed=3)
    residual = whole(room, columns, seed=4)
    squares = whole(room, 6, dtype=torch.float32, seed=5).square()
    y = torch.zeros(room, columns, device=DEVICE)
    squares_out = torch.zeros(room, 6, device=DEVICE)
    ends = (None if kind == "add" else squares, y, residual, gain, squares_out)
    common: dict[str, Any] = {
        "N": columns, "K": depth, "EPILOGUE": {"store": STORE, "add": ADD, "gated": GATED}[kind], "GELU": False,
        "TILES": 6, "LEVELS": 3, "SPLIT": split, "MULTIPLIER": 1.0 if kind == "gated" else 0.5, **UNFUSED,
    }  # fmt: skip
    scratch = torch.zeros(3 * 3 * 2 * 64 * 128, device=DEVICE), torch.zeros(64, dtype=torch.int32, device=DEVICE)
    if how == "narrow":
        linear_kernel[(-(-rows // 16), 3, split)](
            x, w, None, bias, None, *ends, *scratch, rows, 1e-5,
            M=16, BLOCK_N=64, BLOCK_K=64, PREFETCH=0, DEPENDENT=False, **common,
        )  # fmt: skip
    elif how == "apart":
        wide_hopper.wide_hopper_kernel[(2,)](
            swizzled(x, 128, 64), swizzled(w, 128, 64), bias, *ends,
            torch.zeros(2 * 128 * 128, device=DEVICE) if split == 2 else None, None, rows, 1e-5,
            M=128, BLOCK_N=128, STEP=64, STAGES=3, GROUP=1, num_warps=4, maxnreg=wide_hopper.REGISTERS,
            **{**common, "EPILOGUE": common["EPILOGUE"].value},
        )  # fmt: skip
    elif how in ("stream", "two streams"):
        groups = 1 if how == "stream" else 2
        stream_hopper.stream_hopper_kernel[(2,)](
            swizzled(x, 128, 64), swizzled(w, 64, 64), bias, *ends, *scratch, rows, 1e-5,
            M=128, GROUPS=groups, STEP=64, STAGES=3, num_warps=4, maxnreg=stream_hopper.REGISTERS[groups],
            **{**common, "EPILOGUE": common["EPILOGUE"].value},
        )  # fmt: skip
    elif how in ("parts of two", "parts of three"):
        groups = 2 if how == "parts of two" else 3
        parts_hopper.parts_hopper_kernel[(2,)](
            swizzled(x, parts_hopper.BOX, 64), swizzled(w, 64, 64), bias, *ends, *scratch, rows, 1e-5,
            GROUPS=groups, BOX=parts_hopper.BOX, BLOCK_N=64, STEP=64, STAGES=3, num_warps=4,
            maxnreg=parts_hopper.REGISTERS[groups], **{**common, "EPILOGUE": common["EPILOGUE"].value},
        )  # fmt: skip
    else:
        copied = "copied" in how
        sources: Any = (x, w)
        if copied:
            sources = TensorDescriptor.from_tensor(x, [64, 64]), TensorDescriptor.from_tensor(w, [128, 64])
        wide.wide_kernel[(-(-rows // 64) * 2,)](
            *sources, None, bias, *ends, rows, 1e-5,
            M=64, BLOCK_N=128, BLOCK_K=64, PAIRED="paired" in how, GROUP=1, COPIED=copied, **common,
        )  # fmt: skip
    return [y, residual, squares_out]


BY_ROLES = ["apart", "stream", "two streams", "parts of two", "parts of three"]
WAYS = ["pointers", "paired", "copied", "copied paired", *BY_ROLES]
COPIES = DEVICE.type == "cpu" or torch.cuda.get_device_capability() >= (9, 0)
APART = DEVICE.type == "cuda" and torch.cuda.get_device_capability()[0] == 9


def differing(kind: str, rows: int, how: str) -> bool:
    return not all(map(torch.equal, product(kind, rows, how), product(kind, rows, "narrow")))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["store", "add", "gated"])
def test_wide_products_have_the_bits_of_narrow_ones(kind: str, how: str) -> None:
    """Bias, norm, residual, gate; rows and columns that do not fill the last tile."""
    if kind == "gated" and "paired" in how:
        pytest.skip("gated products are not split")
    if ("copied" in how and not COPIES) or (how in BY_ROLES and not APART):
        pytest.skip("not on this GPU, or not by the interpreter")
    assert not differing(kind, 100, how)


def in_blocks(cache: Tensor, lie: list[list[int]]) -> Tensor:
    """[slots, heads, capacity, dim] as [blocks, heads, BLOCK, dim]."""
    slots, heads, capacity, dim = cache.shape
    pool = torch.empty(slots * capacity // BLOCK, heads, BLOCK, dim, dtype=cache.dtype, device=cache.device)
    for slot, blocks in enumerate(lie):
        for place, block in enumerate(blocks):
            pool[block] = cache[slot, :, place * BLOCK : (place + 1) * BLOCK]
    return pool


def attention(
    begin: int,
    count: int,
    window: int,
    rows: int,
    dim: int = 16,
    chains: tuple[int, int, int, int] | None = None,
    apart: tuple[int, int, int, int, int] | None = None,
    into: torch.dtype = DTYPE,
    average: int = 0,
    missing: int = 0,
) -> Tensor:
    """`rows` of a tile, 0: one row at a time by the kernel for few; 128: by groups of warps. `chains`: of so many rows,
    by so many programs for each, so many blocks by one alone, so many cells of scratch. `apart`: the same by groups of
    warps, then how often a program looks for the others. `into`: stored as that. `average`: the blocks that chains are
    said to have. `missing`: so many rows of each chain, its last, only fill it up."""
    heads, kv_heads, capacity = 4, 2, 512
    qkv = whole(count, (heads + 2 * kv_heads) * dim)
    blocks = capacity // BLOCK
    lie = [[0, 1, 2, 4], [6, 3, 7, 5]]  # the blocks of two slots
    keys, values = (in_blocks(whole(2, kv_heads, capacity, dim, seed=seed), lie) for seed in (1, 2))
    out = torch.zeros(count, heads * dim, dtype=into, device=DEVICE)
    numbers: dict[str, Any] = {"dtype": torch.int32, "device": DEVICE}
    positions = torch.arange(begin, begin + count, **numbers)
    slots, scale = torch.ones(count, **numbers), 0.25 / math.log(2)
    where = torch.tensor(lie, **numbers)
    if of := chains or apart:
        number = count // of[0]
        fills = torch.arange(count, device=DEVICE) % of[0] >= of[0] - missing
        positions[fills], slots[fills] = 0, 0
        cells_of = torch.cat([torch.arange(number, **numbers) * blocks, torch.tensor([average * number], **numbers)])
    shape: dict[str, Any] = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "BLOCK": BLOCK, **UNFUSED}
    if rows == 128 or apart or missing:
        for block in range(blocks):  # what nobody has written yet may be anything
            values[lie[1][block], :, max(0, begin + count - missing - block * BLOCK) :] = math.nan
    if chains:
        per, spread, few, left = chains
        tile = max(TILE, per * 2)
        cells = kv_heads * left * tile
        attend_chains_kernel[(number, kv_heads, spread)](
            qkv, keys, values, out, where, slots, positions, cells_of,
            torch.zeros(cells * dim, device=DEVICE), torch.zeros(cells * 2, device=DEVICE),
            torch.zeros(number * kv_heads, **numbers), blocks, left, window, scale,
            PER=per, TILE=tile, FEW=few, DEPENDENT=False, **shape,
        )  # fmt: skip
        return out
    if apart:
        per, spread, few, left, patience = apart
        tile = max(TILE, per * 2)
        cells = kv_heads * left * tile
        cache = (swizzled(each.view(-1, dim), BLOCK, dim) for each in (keys, values))
        chain_hopper.chain_hopper_kernel[(number, kv_heads, spread)](
            qkv, *cache, out, where, slots, positions, cells_of,
            torch.zeros(cells * dim, device=DEVICE), torch.zeros(cells * 2, device=DEVICE),
            torch.zeros(number * kv_heads, **numbers), blocks, left, window, scale, few,
            PER=per, TILE=tile, M=chain_hopper.ROWS, STAGES=3, PATIENCE=patience, EVEN=average > 0, num_warps=4,
            maxnreg=chain_hopper.REGISTERS, **shape,
        )  # fmt: skip
        return out
    if rows:
        cuts = [[at, min(rows, count - at)] for at in range(0, count, rows)]
        table = torch.tensor([*cuts, [0, 0]], **numbers)
        if rows == 128:
            cache = (swizzled(each.view(-1, dim), BLOCK, dim) for each in (keys, values))
            prompt_hopper.prompt_hopper_kernel[(heads, len(table))](
                swizzled(qkv, 128, dim), *cache, out, where, slots, positions, table, blocks, window, scale,
                M=128, STAGES=2, num_warps=4, maxnreg=wide_hopper.REGISTERS, **shape,
            )  # fmt: skip
            return out
        prompt.prompt_kernel[(heads, len(table))](
            qkv, keys, values, out, where, slots, positions, table, blocks, window, scale, M=rows, **shape
        )
        return out
    cells = count * kv_heads * blocks * TILE
    attend_kernel[(count, kv_heads, 1)](
        qkv, keys, values, out, where, slots, positions, positions + 1, torch.zeros(count, 64, **numbers),
        torch.arange(count, **numbers) * blocks, torch.zeros(cells * dim, device=DEVICE),
        torch.zeros(cells * 2, device=DEVICE), torch.zeros(count * kv_heads, **numbers), count, blocks,
        count * blocks, window, scale,
        PATH=64, TOGETHER=1, TILE=TILE, DEPENDENT=False, **shape,
    )  # fmt: skip
    return out


CASES = [(0, 40, 0), (250, 40, 0), (300, 36, 150), (383, 36, 100)]


@pytest.mark.parametrize(("begin", "count", "window"), CASES)
def test_attention_of_a_tile_has_the_bits_of_its_rows(begin: int, count: int, window: int) -> None:
    """From the first position on; across the edge of a block; with a window that ends in one."""
    expected = attention(begin, count, window, 0)
    for rows in (16, 32):
        assert torch.equal(attention(begin, count, window, rows), expected)


@pytest.mark.parametrize("per", [1, 4])
@pytest.mark.parametrize(("begin", "window"), [(begin, window) for begin, _, window in CASES])
def test_attention_of_chains_has_the_bits_of_rows(begin: int, window: int, per: int) -> None:
    """By one program, by several, and where some find no scratch left: it is for half of the chains."""
    count = 12
    into = torch.float32 if DEVICE.type == "cpu" else DTYPE  # tiles are alike here, so that every bit shows
    expected, half = attention(begin, count, window, 0, into=into), count // per * 4 // 2
    for spread, few, left in ((1, 8, 0), (3, 8, 200), (3, 1, 200), (3, 1, half)):
        found = attention(begin, count, window, 0, chains=(per, spread, few, left), into=into)
        assert torch.equal(found, expected), (spread, few, left)
    found = attention(begin, count, window, 0, chains=(per, 3, 1, 200), into=into, average=2)
    assert torch.equal(found, expected)


def kept_rows(found: Tensor, per: int, missing: int) -> Tensor:
    """Of chains of `per` rows all but the last `missing`."""
    return found.view(-1, per, found.shape[1])[:, : per - missing]


@pytest.mark.parametrize(("begin", "window"), [(0, 0), (125, 0), (126, 0), (300, 150)])
def test_a_chain_may_end_in_rows_that_only_fill_it_up(begin: int, window: int) -> None:
    """They lie elsewhere, and nobody else looks at what follows the others: before and behind the edge of a block."""
    expected = attention(begin, 4, window, 0)
    for spread in (1, 3):
        found = attention(begin, 4, window, 0, chains=(4, spread, 1, 200), missing=2)
        assert torch.equal(kept_rows(found, 4, 2), kept_rows(expected, 4, 2)), spread


@pytest.mark.skipif(not APART, reason="compute capability 9.0 alone")
@pytest.mark.parametrize(("begin", "window"), [(0, 0), (125, 0), (126, 0), (300, 150)])
def test_by_a_group_of_warps_a_chain_may_end_in_rows_that_only_fill_it_up(begin: int, window: int) -> None:
    """Behind the others there may be anything, also what is no number."""
    expected = attention(begin, 4, window, 0, 128)
    for spread in (1, 3):
        found = attention(begin, 4, window, 0, 128, apart=(4, spread, 1, 200, 100), missing=2)
        assert torch.equal(kept_rows(found, 4, 2), kept_rows(expected, 4, 2)), spread


@pytest.mark.skipif(not APART, reason="compute capability 9.0 alone")
@pytest.mark.parametrize(("begin", "count", "window"), [*CASES, (0, 300, 0), (100, 200, 0), (130, 250, 170)])
def test_attention_by_groups_of_warps_has_the_bits_of_rows(begin: int, count: int, window: int) -> None:
    """Also of tiles that are not full, or whose second half is empty."""
    assert torch.equal(attention(begin, count, window, 128, 128), attention(begin, count, window, 0, 128))


@pytest.mark.skipif(not APART, reason="compute capability 9.0 alone")
@pytest.mark.parametrize("per", [1, 4])
@pytest.mark.parametrize(("begin", "count", "window"), CASES)
def test_attention_of_few_chains_by_a_group_of_warps_has_the_bits_of_rows(
    begin: int, count: int, window: int, per: int
) -> None:
    """By one program, by several that have more than one block each, by as many as blocks, by one of several since
    blocks are few, or no more than others have; where nobody waits for the others, and where some find no scratch
    left."""
    expected = attention(begin, count, window, 0, 128)
    ways = [(1, 1, 0, 0), (2, 1, 200, 100), (3, 1, 200, 100), (4, 1, 200, 100), (3, 1, 200, 0), (3, 1, 20, 100)]
    for spread, few, left, patience in [*ways, (3, 2, 200, 100), (3, 8, 200, 100)]:
        found = attention(begin, count, window, 0, 128, apart=(per, spread, few, left, patience))
        assert torch.equal(found, expected), (spread, few, left, patience)
    found = attention(begin, count, window, 0, 128, apart=(per, 3, 1, 200, 100), average=2)
    assert torch.equal(found, expected)


def test_a_block_merged_out_of_order_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases above tell a fault: the later block counts as the earlier one."""
    merge = attention_kernels.merge

    def turned(part: Any, total: Any, peak: Any, its_part: Any, its_total: Any, its_peak: Any, **_: Any) -> Any:
        return merge(its_part, its_total, its_peak, part, total, peak)

    expected = attention(250, 40, 0, 0)
    if DEVICE.type == "cpu":  # a GPU compiles what is written
        monkeypatch.setattr(prompt, "merge", turned)
        assert not torch.equal(attention(250, 40, 0, 32), expected)


WIDE_TARGET = replace(TARGET, head_dim=64, ropes=(Rope(10_000.0, 64),), attention_scale=0.125)
"""Whose heads wide tiles are made for."""


def decoder() -> CudaDecoder:
    weights = random_weights(WIDE_TARGET, DEVICE, DTYPE, seed=1)
    tensors = ((name, tensor * 8 if tensor.dim() > 1 else tensor) for name, tensor in weights)
    return CudaDecoder.load(WIDE_TARGET, tensors, DTYPE, DEVICE, max_batch=3, max_context=256)


def said(model: CudaDecoder) -> Tensor:
    """A prompt and a part of another in one pass; then the rest of that beside one more token, and a tree."""
    chosen = random.Random(3)
    first, second = (chosen.choices(range(80), k=count) for count in (24, 30))
    one, two = model.open(), model.open()
    found = [model.forward([Rows.chain(one, first, logits=[23]), Rows.chain(two, second[:14], logits=())])]
    model.commit(one, range(24))
    model.commit(two, range(14))
    found.append(model.forward([Rows.chain(one, [5]), Rows.chain(two, second[14:], logits=[15])]))
    model.commit(one, range(1))
    model.commit(two, range(16))
    many = Rows(one, list(range(20)), [ROOT, *(i // 2 for i in range(19))])
    found.append(model.forward([many, Rows.chain(two, [9])]))
    return torch.cat(found)


def test_passes_in_tiles_say_what_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts together, a prompt beside a token, and a tree, which is not for tiles. Sizes in proportion."""
    ran: list[tuple[int, bool]] = []
    body = network.Network.body

    def noted(self: Any, rows: int, together: bool, tiled: bool = False, chain: int = 0) -> None:
        ran.append((rows, tiled))
        body(self, rows, together, tiled, chain)

    monkeypatch.setattr(network.Network, "body", noted)
    expected = said(decoder())
    assert not any(tiled for _, tiled in ran)
    ran.clear()
    for module in (products, passes):
        monkeypatch.setattr(module, "FEW_ROWS", 12)
    monkeypatch.setattr(passes, "TILED", (32, 64))
    found = said(decoder())
    assert list(dict.fromkeys(ran)) == [(64, True), (32, True), (32, False)]  # each also once to be recorded
    if DEVICE.type == "cuda":
        assert torch.equal(found, expected)
    else:  # the interpreter's products differ in their last bits with their shapes
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
        assert found.argmax(1).tolist() == expected.argmax(1).tolist()


def described(runs: Sequence[tuple[int, int, int]]) -> Described:
    """Runs of rows: slot, first position, how many."""
    columns = np.concatenate(
        [
            np.stack([np.zeros(n), np.full(n, slot), *[np.arange(at, at + n)] * 2, np.arange(at, at + n) + 1])
            for slot, at, n in runs
        ],
        axis=1,
    ).astype(np.int32)
    return Described(columns, np.zeros(columns.shape[1], dtype=np.bool_), {})


def test_tiles_hold_neighbours_of_one_slot_and_every_row_once() -> None:
    rows = described([(0, 5, 70), (1, 75, 1), (2, 0, 64), (2, 90, 3)])
    assert rows.in_order
    assert rows.tiles(64).tolist() == [[0, 64], [64, 6], [70, 1], [71, 64], [135, 3]]
    rows.columns[4, 3] = 1
    assert not rows.in_order
