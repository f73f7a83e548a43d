"""Sequences come, go, are aborted, sent back and added again in any order: the same tokens, and whole drafts."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from any_order import any_order
from simulated import only_interpreted

pytestmark = only_interpreted


@pytest.mark.parametrize(
    "kind", [pytest.param("none", marks=pytest.mark.slow), "ngram", "own", "model", "head", "router"]
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_any_order(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    any_order(seed, kind, 40, monkeypatch)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3))])
def test_trees_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another size at every step, beside chains where scores are processed."""
    assert any_order(seed, "trees", 20, monkeypatch) > 3
