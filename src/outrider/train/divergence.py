"""How far a student's distribution is from the target's, with the gradient in closed form.

Vocabularies are wide: going through autograd would keep several [rows, vocab] tensors per step of an unroll. Here the
gradient at the logits is computed along with the loss and is all that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from outrider.train.arithmetic import Arithmetic, Mix

LOSSES: Mapping[str, Mix] = {
    "ce": Mix(ce=1.0),
    "kl": Mix(kl=1.0),
    "tv": Mix(tv=1.0),
    "kl+ce": Mix(kl=0.5, ce=0.5),
    "kl+tv": Mix(kl=0.5, tv=1.0),
}

_BYTES = 1 << 28
"""Of student logits that exist at the same time, about."""


@dataclass(frozen=True, slots=True)
class TargetDistribution:
    """What the target says of each row; made once, compared with every step of an unroll."""

    logits: Tensor
    """[rows, vocab]"""
    normaliser: Tensor
    """fp32 [rows]: of the logits."""
    token: Tensor
    """[rows]: the column of its own token, -1 where the student has none for it."""

    @staticmethod
    def of(logits: Tensor, token: Tensor, arithmetic: Arithmetic) -> TargetDistribution:
        return TargetDistribution(logits, arithmetic.normaliser(logits), token)


def diverge(
    states: Tensor, matrix: Tensor, target: TargetDistribution, weight: Tensor, mix: Mix, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """Loss of student logits `states @ matrix.T`, summed with `weight` per row, and the student's choices [rows].

    states [rows, hidden], matrix [vocab, hidden], weight fp32 [rows].
    """
    trained = torch.is_grad_enabled()
    loss, chosen = _Diverge.apply(states, matrix, target, weight, mix, arithmetic, trained)  # type: ignore[no-untyped-call]
    return loss, chosen


class _Diverge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        matrix: Tensor,
        target: TargetDistribution,
        weight: Tensor,
        mix: Mix,
        arithmetic: Arithmetic,
        trained: bool,
    ) -> tuple[Tensor, Tensor]:
        narrow = matrix.to(states.dtype)
        d_states = torch.empty_like(states) if trained else None
        d_matrix = torch.zeros_like(matrix, dtype=torch.float32) if trained else None
        losses = torch.empty(len(states), device=states.device)
        chosen = torch.empty(len(states), dtype=torch.long, device=states.device)
        for part in _parts(len(states), len(matrix) * states.element_size()):
            losses[part], gradient, chosen[part] = arithmetic.judge(
                linear(states[part], narrow),
                target.logits[part],
                target.normaliser[part],
                target.token[part],
                weight[part],
                mix,
            )
            if d_states is not None and d_matrix is not None:
                torch.mm(gradient, narrow, out=d_states[part])
                d_matrix += gradient.T @ states[part]
        ctx.save_for_backward(d_states, d_matrix)
        ctx.mark_non_differentiable(chosen)
        return losses.sum(), chosen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        d_states, d_matrix = ctx.saved_tensors
        return d_states * grads[0], d_matrix * grads[0], None, None, None, None, None


def _parts(rows: int, width: int) -> list[slice]:
    """Rows of `width` bytes, as many together as may be: equal parts but for the last, of whole sixteens, as kernels
    are compiled for."""
    count = max(1, -(-rows * width // _BYTES))
    size = -(-rows // (16 * count)) * 16
    return [slice(start, start + size) for start in range(0, rows, size)] if rows else []
