"""Muon: a matrix moves by its momentum with all singular values made alike, so that rare directions learn as fast as
common ones. AdamW for everything that is not a matrix between states (norms, vocabulary rows).

PyTorch has a Muon too; ours works on all matrices of a shape at once (a step here is short, and the host has to launch
it), and leaves everything as it is where a batch was bad, without the host waiting to know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.95
_DECAY = 0.01
_LIKE_ADAM = 0.2
"""Size of a step, root mean square, in learning rates: about that of AdamW, so that one learning rate serves both."""
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al.: five rounds bring every singular value to between 0.7 and 1.2, except the smallest."""
_ROUNDS = 5


class Muon:
    def __init__(self, matrices: Sequence[Tensor]) -> None:
        """They are changed in place, and have no gradients of their own."""
        self._matrices = list(matrices)
        self._momenta = [torch.zeros_like(m) for m in matrices]
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, matrix in enumerate(self._matrices):
            alike[tuple(sorted(matrix.shape))].append(i)
        self._alike = list(alike.values())

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float, good: Tensor) -> None:
        """`good` [] is 1, or 0: then nothing changes."""
        clean = [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in gradients]
        share = (1 - _MOMENTUM) * good
        for momentum, gradient in zip(self._momenta, clean, strict=True):
            momentum.lerp_(gradient, share)
        looked_ahead = torch._foreach_lerp(clean, self._momenta, _MOMENTUM)
        torch._foreach_mul_(self._matrices, 1 - rate * _DECAY * good)
        for indices in self._alike:
            stacked = torch.stack([_lying(looked_ahead[i]) for i in indices])
            moves = orthogonal(stacked) * (rate * _LIKE_ADAM * stacked.shape[2] ** 0.5 * good)
            for i, move in zip(indices, moves, strict=True):
                _lying(self._matrices[i]).sub_(move)

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momenta, state["momenta"], strict=True):
            mine.copy_(saved)


def _lying(matrix: Tensor) -> Tensor:
    """A view that is at least as wide as high."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def orthogonal(matrices: Tensor) -> Tensor:
    """[n, rows, columns] with rows <= columns → as many, singular values near 1. They need not be exact, so a GPU takes
    bf16; on a CPU, which may have no instructions for that, they stay in fp32, as all of training does there."""
    a, b, c = _QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
