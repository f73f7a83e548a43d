"""Muon: all directions of a matrix move alike, and a bad batch moves nothing."""

from __future__ import annotations

import torch

from outrider.train.muon import Muon, orthogonal


def test_singular_values_become_alike() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 24, 40)).float())
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_high_and_wide_matrices_move_by_their_gradients_directions() -> None:
    torch.manual_seed(0)
    matrices = [torch.zeros(24, 40), torch.zeros(40, 24), torch.zeros(8, 8)]
    gradients = [torch.randn_like(m) for m in matrices]
    Muon(matrices).step(gradients, 0.1, torch.ones(()))
    for matrix, gradient in zip(matrices, gradients, strict=True):
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        assert torch.cosine_similarity(-matrix.flatten(), (u @ v).flatten(), dim=0) > 0.95
        assert 0.01 < matrix.square().mean().sqrt() < 0.03  # the learning rate times a fifth


def test_a_bad_batch_moves_nothing() -> None:
    torch.manual_seed(0)
    matrix, twin = torch.randn(16, 16), torch.zeros(16, 16)
    twin.copy_(matrix)
    muon, other = Muon([matrix]), Muon([twin])
    good = torch.ones(())
    for gradient in (torch.randn(16, 16), torch.full((16, 16), torch.nan), torch.randn(16, 16)):
        bad = not gradient.isfinite().all()
        before = matrix.clone()
        muon.step([gradient], 0.1, good * (not bad))
        if bad:
            assert torch.equal(matrix, before)
        else:
            other.step([gradient], 0.1, good)
    assert torch.equal(matrix, twin)  # the momentum did not see it either


def test_state_goes_on_where_it_was() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(8, 12) for _ in range(4)]
    whole, first = torch.zeros(8, 12), torch.zeros(8, 12)
    muon, begun = Muon([whole]), Muon([first])
    good = torch.ones(())
    for gradient in gradients:
        muon.step([gradient], 0.1, good)
    for gradient in gradients[:2]:
        begun.step([gradient], 0.1, good)
    resumed = Muon([first])
    resumed.load_state_dict({"momenta": [m.clone() for m in begun.state_dict()["momenta"]]})
    for gradient in gradients[2:]:
        resumed.step([gradient], 0.1, good)
    assert torch.equal(whole, first)
