"""What a training step does beside multiplying matrices: in plain PyTorch here, the reference and the CPU's; by
kernels of our own on a GPU, where done plainly it takes four fifths of the time, in reading and writing intermediate
results and in launching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from outrider.models.head.module import Elementwise, Mlp, Norm, PlainElementwise
from outrider.models.rotary import rotated


@dataclass(frozen=True, slots=True)
class Mix:
    """How much of each divergence between target p and student q makes the loss."""

    ce: float = 0.0
    """Cross-entropy of the token the target wrote; nothing where the student has no column for it."""
    kl: float = 0.0
    """KL(p ‖ q)."""
    tv: float = 0.0
    """1 - Σ min(p, q): the chance of a refusal under the rejection rule."""


class Arithmetic(Elementwise, Protocol):
    """Only `norm`, `gated` (by silu) and `rotated` have gradients of their own; the others are parts of operations that
    know theirs."""

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds `update` to x in place; the RMSNorm of the sum."""
        ...

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, rows, heads, dim] turned by its rows' positions, cos and sin [rows, dim / 2]."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *, back: bool = False) -> None:
        """The same into `out`, which may be x and of another precision; `back`: the other way round."""
        ...

    def join(
        self, q: Tensor, keys: Tensor, values: Tensor, part: Tensor, normaliser: Tensor, step: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Adds to an attention its rows' own keys, one per step: row r of this step has those of row r - step + i of
        every step i in 1 … step.

        q [B, rows, heads, dim], keys and values [steps, B, rows, kv, dim] (step i's at i - 1); of rows from `step` on:
        output so far, part [B, heads, rows - step, dim], and its log-normaliser [B, heads, rows - step]. → output
        [B, rows, heads, dim], zeros before row `step`, and log-normaliser.
        """
        ...

    def join_backward(
        self,
        grad: Tensor,
        q: Tensor,
        out: Tensor,
        keys: Tensor,
        values: Tensor,
        joint: Tensor,
        part: Tensor,
        d_keys: Tensor,
        d_values: Tensor,
        step: int,
        scale: float,
    ) -> Tensor:
        """The gradient at q, that through the other keys, part [B, heads, rows - step, dim], included; those at keys
        and values are added to d_keys and d_values (fp32)."""
        ...

    def fold(self, x: Tensor, into: Tensor) -> None:
        """Adds x [B, heads, m, dim] to the first m rows of `into` [B, rows, kv, dim], heads of a group together."""
        ...

    def normaliser(self, logits: Tensor) -> Tensor:
        """log Σ exp of every row, fp32."""
        ...

    def judge(
        self, logits: Tensor, target: Tensor, normaliser: Tensor, token: Tensor, weight: Tensor, mix: Mix
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses [rows], their gradient at the logits (which may be written over them), both times the rows' weight,
        and the student's choices [rows]. `normaliser`: of the target's logits."""
        ...


class PlainArithmetic(PlainElementwise):
    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.norm(x.add_(update), weight, eps)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotated(x, cos[:, None], sin[:, None])

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *, back: bool = False) -> None:
        out.copy_(rotated(x, cos[:, None], (-sin if back else sin)[:, None]))

    def join(
        self, q: Tensor, keys: Tensor, values: Tensor, part: Tensor, normaliser: Tensor, step: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        drafted = _grouped(q[:, step:], keys.shape[3])
        k, v = (_beside(x, step).float() for x in (keys, values))  # [step, B, n, kv, 1, dim]
        scores = (drafted.float() * k).sum(-1) * scale  # [step, B, n, kv, group]
        before = normaliser.transpose(1, 2).reshape(scores.shape[1:])
        joint = torch.logsumexp(torch.cat([before[None], scores]), 0)  # [B, n, kv, group]
        own = ((scores - joint).exp()[..., None] * v).sum(0)
        rest = _grouped(part.transpose(1, 2), keys.shape[3]).float() * (before - joint).exp()[..., None]
        out = (own + rest).flatten(2, 3).to(q.dtype)
        return pad(out, (0, 0, 0, 0, step, 0)), joint.flatten(2).transpose(1, 2).contiguous()

    def join_backward(
        self,
        grad: Tensor,
        q: Tensor,
        out: Tensor,
        keys: Tensor,
        values: Tensor,
        joint: Tensor,
        part: Tensor,
        d_keys: Tensor,
        d_values: Tensor,
        step: int,
        scale: float,
    ) -> Tensor:
        kv = keys.shape[3]
        wide, drafted, seen = (_grouped(x[:, step:], kv).float() for x in (grad, q, out))
        k, v = (_beside(x, step).float() for x in (keys, values))
        scores = (drafted * k).sum(-1) * scale
        weights = (scores - joint.transpose(1, 2).reshape(scores.shape[1:])).exp()[..., None]
        mean = (wide * seen).sum(-1, keepdim=True)
        d_scores = weights * ((wide * v).sum(-1, keepdim=True) - mean) * scale
        _beside(d_keys, step)[..., 0, :].add_((d_scores * drafted).sum(4))
        _beside(d_values, step)[..., 0, :].add_((weights * wide).sum(4))
        d_q = _grouped(part.transpose(1, 2), kv).float() + (d_scores * k).sum(0)
        return pad(d_q.flatten(2, 3).to(q.dtype), (0, 0, 0, 0, step, 0))

    def fold(self, x: Tensor, into: Tensor) -> None:
        into[:, : x.shape[2]] += _grouped(x.transpose(1, 2), into.shape[2]).float().sum(3)

    def normaliser(self, logits: Tensor) -> Tensor:
        return torch.logsumexp(logits.float(), -1)

    def judge(
        self, logits: Tensor, target: Tensor, normaliser: Tensor, token: Tensor, weight: Tensor, mix: Mix
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_q, log_p = torch.log_softmax(logits.float(), -1), target.float() - normaliser[:, None]
        q, p = log_q.exp(), log_p.exp()
        known, column = (token >= 0).float() * mix.ce, token.clamp(min=0)[:, None]
        loss = mix.kl * (p * (log_p - log_q)).sum(-1) - known * log_q.gather(1, column)[:, 0]
        gradient = mix.kl * (q - p) + known[:, None] * q
        gradient.scatter_add_(1, column, -known[:, None])
        if mix.tv:
            slope = -(q < p).float()
            loss += mix.tv * (1 - torch.minimum(p, q).sum(-1))
            gradient += mix.tv * q * (slope - (q * slope).sum(-1, keepdim=True))
        return loss * weight, (gradient * weight[:, None]).to(logits.dtype), logits.argmax(-1)


def arithmetic_for(device: torch.device) -> Arithmetic:
    if device.type != "cuda":
        return PlainArithmetic()
    from outrider.train.fast_arithmetic import FastArithmetic  # kernels are imported only where they run

    return FastArithmetic()


def use(module: nn.Module, arithmetic: Arithmetic) -> None:
    """Have the norms and MLPs of `module` done by `arithmetic`."""
    for part in module.modules():
        if isinstance(part, Norm | Mlp):
            part.elementwise = arithmetic


def _grouped(x: Tensor, kv: int) -> Tensor:
    """[B, n, heads, dim] → [B, n, kv, group, dim]"""
    return x.reshape(*x.shape[:2], kv, -1, x.shape[3])


def _beside(x: Tensor, step: int) -> Tensor:
    """Of x [steps, B, rows, kv, dim] what stands beside rows `step`, `step` + 1, …: a view [step, B, n, kv, 1, dim]."""
    _, batch, rows, *rest = x.shape
    to_step, to_text, to_row, *within = x.stride()
    # Step i begins at row i, so going to the next step also goes one row on.
    seen = x[:, :, 1:].as_strided((step, batch, rows - step, *rest), (to_step + to_row, to_text, to_row, *within))
    return seen.unsqueeze(4)
