"""How products and prompts of many rows are cut into tiles: by arithmetic alone, on no device."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton")

from outrider.models.cuda.device import GPU
from outrider.models.cuda.kernels.attention import BLOCK
from outrider.models.cuda.tiling import (
    FINISHING,
    Product,
    depth_split,
    eighth_tiling,
    hopper_tiling,
    parts_tiling,
    prompt_tiling,
    stream_tiling,
    wide_tiling,
)

H200 = GPU(shared=232_448, multiprocessors=132, capability=(9, 0))


def test_products_by_groups_of_warps_are_for_one_kind_of_gpu() -> None:
    """And for depths that whole steps make up, in two parts at most; in narrower tiles where few wide ones would leave
    multiprocessors idle."""
    cut = hopper_tiling(4096, 14336, 2048, H200, gated=False, split=2)
    narrower = hopper_tiling(4096, 14336, 512, H200, gated=False, split=2)
    assert cut is not None
    assert narrower is not None
    assert (cut.block_n, narrower.block_n) == (256, 128)
    for gated in (False, True):
        for rows in (256, 2048):
            cut = hopper_tiling(6144, 4096, rows, H200, gated=gated, split=1)
            assert cut is not None
            assert cut.stages >= 3
            assert cut.stages * (cut.rows + (2 if gated else 1) * cut.block_n) * 2 * 64 + FINISHING <= H200.shared
    assert hopper_tiling(960, 576, 2048, H200, gated=False, split=3) is None
    assert hopper_tiling(64, 96, 2048, H200, gated=False, split=1) is None
    for capability in ((8, 0), (12, 0), None):
        assert hopper_tiling(4096, 4096, 2048, replace(H200, capability=capability), gated=False, split=2) is None


LARGE = [
    Product(6144, 4096, False, 2), Product(4096, 4096, False, 2), Product(14336, 4096, True, 2),
    Product(4096, 14336, False, 2),
]  # fmt: skip


def test_decoding_rows_by_groups_of_warps_are_for_large_matrices_on_one_kind_of_gpu() -> None:
    """Weights fetched ahead are no more than a part of the depth has, and fit; short ones stay with the compiler's."""
    for product in LARGE:
        weights = 2 * 64 * 64 * (2 if product.gated else 1)
        for rows in (17, 32, 64):
            stream = stream_tiling(product, rows, H200)
            assert stream is not None
            assert rows <= stream.rows
            assert stream.stages * (stream.groups * weights + 128 * stream.rows) <= H200.shared - 4096
            assert stream.stages * 64 <= product.depth // product.split
            assert parts_tiling(product, rows, H200) is None
        for rows in (65, 80, 128, 320, 512):
            parts = parts_tiling(product, rows, H200)
            assert parts is not None
            assert parts.stages * (parts.block_n // 64 * weights + 128 * 64 * parts.groups) <= H200.shared - 4096
            assert stream_tiling(product, rows, H200) is None
        assert parts_tiling(product, 513, H200) is None
        groups = [parts_tiling(product, rows, H200) for rows in (128, 192, 256, 320, 384, 512)]
        assert [parts and parts.groups for parts in groups] == [2, 3, 2, 3, 3, 2]
        for other in ((8, 6), (12, 0), None):
            gpu = replace(H200, capability=other)
            assert stream_tiling(product, 32, gpu) is None
            assert parts_tiling(product, 128, gpu) is None
        assert stream_tiling(product._replace(size=1), 32, H200) is None
        assert parts_tiling(product._replace(size=1), 128, H200) is None
    for small in (Product(960, 576, False, 2), Product(1536, 576, True, 2), Product(576, 1536, False, 2)):
        assert stream_tiling(small, 32, H200) is None
        assert parts_tiling(small, 128, H200) is None


def test_weights_of_8_bits_by_groups_of_warps_where_that_is_faster() -> None:
    """Of which at most two units come to a multiprocessor, and gate and up of many rows; all stages fit."""
    qkv, o, gate_up, down = (product._replace(size=1) for product in LARGE)
    for rows in (1, 16, 17, 32, 33, 64):
        taken = [product for product in (qkv, o, gate_up, down) if eighth_tiling(product, rows, H200)]
        assert taken == ([o, down] if rows <= 16 else [] if rows <= 32 else [o, gate_up, down])
        for product in taken:
            cut = eighth_tiling(product, rows, H200)
            assert cut is not None
            assert rows <= cut.rows
            assert 2 * cut.stages * 128 * (2 * cut.rows + 64 * (1 + product.gated)) <= H200.shared - 20_480
            assert product.depth % (128 * product.split) == 0
    assert eighth_tiling(down, 65, H200) is None
    assert eighth_tiling(LARGE[3], 1, H200) is None
    for other in ((8, 9), (12, 0), None):
        assert eighth_tiling(down, 1, replace(H200, capability=other)) is None
    for small in (Product(576, 1536, False, 1), Product(100, 4096, False, 1), Product(4096, 4096 + 64, False, 1)):
        assert eighth_tiling(small, 1, H200) is None


@pytest.mark.parametrize("shared", [101_376, 166_912, 232_448])
def test_wide_tiles_fit_the_device(shared: int) -> None:
    """Consumer cards, A100, H200: and the depth is split as for few rows."""
    for columns, depth in ((6144, 4096), (4096, 14336), (960, 576), (576, 1536), (64, 96)):
        for gated in (False, True):
            split = 1 if gated else depth_split(columns, depth)
            cut = wide_tiling(depth, shared, gated=gated, split=split)
            assert depth % (split * cut.block_k) == 0
            assert cut.block_k >= 16
            tiles = 3 if gated else 4 if cut.paired else 2
            assert cut.stages * tiles * 2 * 128 * cut.block_k <= shared
    for dim in (16, 32, 64, 128):
        of_prompts = prompt_tiling(dim, shared)
        assert of_prompts is not None
        assert of_prompts.stages * 4 * BLOCK * dim + 2 * of_prompts.rows * dim <= shared
    assert prompt_tiling(256, 101_376) is None
