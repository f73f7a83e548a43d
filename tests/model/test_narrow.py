"""Matrices in few bits: what is packed is found again, and rounding takes account of what goes through a matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_head import config_of, random_head
from tiny_models import architecture
from torch import Tensor

from outrider.errors import DrafterError
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.packed import Packed
from outrider.models.head.torch_head import as_module
from outrider.train.quantize import narrow, narrowed, watching


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [8, 9, 64, 577])
def test_codes_are_found_again(bits: int, columns: int) -> None:
    torch.manual_seed(bits)
    codes = torch.randint(0, 2**bits, (5, columns))
    scales, spread, centre = torch.rand(5) + 0.1, torch.rand(columns) + 0.1, torch.randn(columns)
    packed = Packed.of(codes, bits, scales, spread, centre)
    assert packed.codes.shape == (5, -(-columns * bits // 8))
    wanted = centre + spread * scales[:, None] * (codes - (2**bits - 1) / 2)
    torch.testing.assert_close(packed.weight(), wanted)


def inputs_that_go_together(count: int, width: int) -> Tensor:
    return torch.randn(count, width // 4) @ torch.randn(width // 4, width) + 0.1 * torch.randn(count, width)


def test_rounding_by_inputs_loses_less_than_rounding_each_weight() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64), inputs_that_go_together(2000, 64)
    seen = x.T @ x

    def lost(gram: Tensor) -> float:
        return float(((narrow(weight, gram, 4).weight() - weight) @ x.T).square().mean())

    assert lost(seen) < 0.35 * lost(torch.eye(64))
    assert float((narrow(weight, torch.eye(64), 8).weight() - weight).abs().max()) < 0.03


def test_what_rows_share_and_wide_columns_cost_nothing() -> None:
    torch.manual_seed(0)
    plain = torch.randn(200, 32)
    stretched = plain * torch.logspace(-2, 2, 32) + 50 * torch.randn(32)
    eye = torch.eye(32)
    error = (narrow(stretched, eye, 5).weight() - stretched) / torch.logspace(-2, 2, 32)
    assert error.square().mean() < 1.3 * (narrow(plain, eye, 5).weight() - plain).square().mean()


def test_inputs_of_every_matrix_are_seen() -> None:
    head = random_head(config_of(architecture(), draft_vocab=40, layers=2))
    module = as_module(head)
    with watching(module) as grams:
        states = module.fuse(torch.randn(3, head.config.feature_width))
        module.norm(module(torch.randn(3, head.config.hidden), states, lambda layer, q, k, v: q.flatten(-2)))
    matrices = {name.removesuffix(".weight"): tensor for name, tensor in head.tensors.items() if tensor.dim() == 2}
    assert {name: gram.shape for name, gram in grams.of.items()} == {
        name: (tensor.shape[1],) * 2 for name, tensor in matrices.items()
    }
    assert not module.fc._forward_pre_hooks


def test_a_compact_head_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    head = random_head(config_of(architecture(), draft_vocab=40, layers=1))
    head.write(tmp_path, narrowed(head.tensors, {}))
    HeadCheckpoint.read(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if name != "fc.spread"}, tmp_path / "model.safetensors")
    with pytest.raises(DrafterError, match=r"lacks a part of a matrix .*fc\.spread"):
        HeadCheckpoint.read(tmp_path)
    save_file({**tensors, "fc.scales": tensors["fc.scales"][1:].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(DrafterError, match="do not fit"):
        HeadCheckpoint.read(tmp_path)
