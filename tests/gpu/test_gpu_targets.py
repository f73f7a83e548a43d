"""Passes and choices compiled for GPUs that are not at hand: every kernel fits into their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

CARDS = {
    "A100": (80, 166_912), "RTX 3060": (86, 101_376), "RTX 4090": (89, 101_376), "H200": (90, 232_448),
    "RTX 5090": (120, 101_376),
}  # fmt: skip
SHAPES = ("8b", "135m", "heads of 256")


def compiled(capability: int, *what: str) -> list[dict[str, Any]]:
    program = Path(__file__).parents[1] / "support" / "compiled_for.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(program), str(capability), *what],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def check(card: str, shape: str, dtype: str, rows: str) -> None:
    capability, shared = CARDS[card]
    kernels = compiled(capability, str(shared), shape, dtype, rows)
    names = [kernel["kernel"] for kernel in kernels]
    assert names.count("linear_kernel") >= 4
    assert {"embed_kernel", "rotate_kernel", "attend_kernel"} <= set(names)
    for kernel in kernels:
        assert kernel["shared"] <= shared, kernel
    # The depth is added up in one order, by the same instruction, whatever the tile and the number of rows.
    products = {tuple(kernel["steps"]) for kernel in kernels if kernel["kernel"] in ("linear_kernel", "wide_kernel")}
    assert len(products) == 1


def test_one_token_of_fp8_on_a_consumer_card() -> None:
    check("RTX 3060", "8b", "fp8", "1")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("card", [card for card in CARDS if card != "H200"])
def test_passes_of_every_size_fit(card: str, shape: str, dtype: str) -> None:
    check(card, shape, dtype, "1,24,64,512,2048")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("card", [card for card in CARDS if card != "H200"])
def test_tilings_that_are_tried_fit(card: str, dtype: str) -> None:
    """And add up the depth by the same instruction."""
    capability, shared = CARDS[card]
    kernels = compiled(capability, "tilings", str(shared), dtype)
    assert len(kernels) >= 6
    assert {kernel["kernel"] for kernel in kernels} == {"linear_kernel"}
    assert len({tuple(kernel["steps"]) for kernel in kernels}) == 1
    for kernel in kernels:
        assert kernel["shared"] <= shared, kernel


@pytest.mark.slow
def test_choices_of_every_manner_fit() -> None:
    kernels = compiled(CARDS["RTX 3060"][0], "choices")
    names = {kernel["kernel"] for kernel in kernels}
    assert {"peaks_kernel", "pick_kernel", "top_k_kernel", "perturb_kernel", "pick_left_kernel"} <= names
    assert {"mass_kernel", "next_kernel", "check_kernel", "weigh_kernel", "report_kernel", "unmask_kernel"} <= names
    for kernel in kernels:
        assert kernel["shared"] <= CARDS["RTX 3060"][1], kernel


@pytest.mark.slow
def test_products_and_prompts_by_the_roles_of_warps() -> None:
    capability, shared = CARDS["H200"]
    kernels = compiled(capability, str(shared), "8b", "bf16", "1,64,80,320,2048")
    names = {kernel["kernel"] for kernel in kernels}
    assert {"stream_hopper_kernel", "parts_hopper_kernel"} <= names
    assert {"wide_hopper_kernel", "prompt_hopper_kernel", "attend_chains_kernel", "chain_hopper_kernel"} <= names
    assert not names & {"wide_kernel", "prompt_kernel"}
    in_fp8 = compiled(capability, str(shared), "8b", "fp8", "1,64")
    assert "eighth_hopper_kernel" in {kernel["kernel"] for kernel in in_fp8}
    for kernel in kernels + in_fp8:
        assert kernel["shared"] <= shared, kernel


@pytest.mark.slow
@pytest.mark.parametrize("card", ["RTX 3060", "H200"])
def test_chains_fit(card: str) -> None:
    capability, shared = CARDS[card]
    kernels = compiled(capability, "chains")
    names = {kernel["kernel"] for kernel in kernels}
    assert names == {"align_kernel", "place_kernel", "absorb_kernel", "accept_kernel", "count_kernel", "skip_kernel"}
    for kernel in kernels:
        assert kernel["shared"] <= shared, kernel


@pytest.mark.slow
@pytest.mark.parametrize("card", ["RTX 3060", "H200"])
def test_judged_drafts_fit(card: str) -> None:
    capability, shared = CARDS[card]
    kernels = compiled(capability, "judged")
    names = {kernel["kernel"] for kernel in kernels}
    assert names == {"deal_kernel", "row_kernel", "edge_kernel", "total_kernel", "rest_kernel", "draw_kernel"}
    for kernel in kernels:
        assert kernel["shared"] <= shared, kernel


@pytest.mark.slow
def test_trees_fit() -> None:
    kernels = compiled(CARDS["RTX 3060"][0], "trees")
    names = {kernel["kernel"] for kernel in kernels}
    assert {"sift_kernel", "rank_kernel", "measure_kernel", "trim_kernel", "grow_kernel", "keep_kernel"} <= names
    assert {"place_tree_kernel", "accept_tree_kernel", "move_kernel", "wait_tree_kernel"} <= names
    for kernel in kernels:
        assert kernel["shared"] <= CARDS["RTX 3060"][1], kernel
