"""How far a student's distribution is from the target's, with the gradient in closed form.

Vocabularies are wide: going through autograd would keep several [rows, vocab] tensors per step of an unroll. Here the
gradient at the logits is computed along with the loss and is all that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from outrider.train.fused import fused

Divergence = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(student's log-probabilities, target's log-probabilities, the target's own token) → (loss [rows], gradient at the
student's logits [rows, vocab]); all fp32, the token -1 where the student has no column for it."""


def cross_entropy(student: Tensor, target: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Of the token the target wrote."""
    known = token >= 0
    column = token.clamp(min=0)[:, None]
    loss = -student.gather(1, column)[:, 0] * known
    gradient = student.exp()
    gradient.scatter_add_(1, column, torch.full_like(column, -1, dtype=gradient.dtype))
    return loss, gradient * known[:, None]


def kullback_leibler(student: Tensor, target: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """KL(target ‖ student)."""
    p = target.exp()
    return (p * (target - student)).sum(-1), student.exp() - p


def total_variation(student: Tensor, target: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """1 - Σ min(p, q): the chance of a refusal under the rejection rule."""
    p, q = target.exp(), student.exp()
    slope = -(q < p).to(q.dtype)
    return 1 - torch.minimum(p, q).sum(-1), q * (slope - (q * slope).sum(-1, keepdim=True))


def _mixed(*parts: tuple[float, Divergence]) -> Divergence:
    def mixed(student: Tensor, target: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        results = [(weight, part(student, target, token)) for weight, part in parts]
        losses, gradients = zip(*((weight * loss, weight * grad) for weight, (loss, grad) in results), strict=True)
        return torch.stack(losses).sum(0), torch.stack(gradients).sum(0)

    return mixed


LOSSES: Mapping[str, Divergence] = {
    "ce": cross_entropy,
    "kl": kullback_leibler,
    "tv": total_variation,
    "kl+ce": _mixed((0.5, kullback_leibler), (0.5, cross_entropy)),
    "kl+tv": _mixed((0.5, kullback_leibler), (1.0, total_variation)),
}

ROWS = 4096
"""Rows whose logits exist at the same time."""


def diverge(
    states: Tensor, matrix: Tensor, target: Tensor, token: Tensor, weight: Tensor, divergence: Divergence
) -> tuple[Tensor, Tensor]:
    """Loss of student logits `states @ matrix.T`, summed with `weight` per row, and the student's choices [rows].

    states [rows, hidden], matrix [vocab, hidden], target [rows, vocab] logits, token and weight [rows].
    """
    loss, chosen = _Diverge.apply(states, matrix, target, token, weight, divergence)  # type: ignore[no-untyped-call]
    return loss, chosen


class _Diverge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, matrix: Tensor, target: Tensor, token: Tensor, weight: Tensor, divergence: Divergence
    ) -> tuple[Tensor, Tensor]:
        narrow = matrix.to(states.dtype)
        loss = torch.zeros((), device=states.device)
        d_states, d_matrix = torch.empty_like(states), torch.zeros_like(matrix, dtype=torch.float32)
        chosen = torch.empty(len(states), dtype=torch.long, device=states.device)
        for start in range(0, len(states), ROWS):
            part = slice(start, start + ROWS)
            logits = linear(states[part], narrow)
            losses, gradient, chosen[part] = _judged(logits, target[part], token[part], weight[part], divergence)
            loss += losses
            d_states[part] = gradient @ narrow
            d_matrix += gradient.T @ states[part]
        ctx.save_for_backward(d_states, d_matrix.to(matrix.dtype))
        ctx.mark_non_differentiable(chosen)
        return loss, chosen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        d_states, d_matrix = ctx.saved_tensors
        return d_states * grads[0], d_matrix * grads[0], None, None, None, None


@fused
def _judged(
    logits: Tensor, target: Tensor, token: Tensor, weight: Tensor, divergence: Divergence
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss, gradient at the logits in their own precision, and the student's choices."""
    losses, gradient = divergence(torch.log_softmax(logits.float(), -1), torch.log_softmax(target.float(), -1), token)
    return (losses * weight).sum(), (gradient * weight[:, None]).to(logits.dtype), logits.argmax(-1)
