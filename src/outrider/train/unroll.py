"""Attention of drafts unrolled over whole texts, as they will be made when decoding.

In step j of the unroll every row r stands j drafts beyond the last state the target has run: its keys are those of step
0 (true states) up to position r - j, and then the keys of the drafts in between, one per step: step i's at position
r - j + i, its own (i = j) last. So all positions of a text are trained as if a draft had begun j rows before them.

The keys of step 0 are a causal square and go to the fused kernel; those of the other steps are one per row and are
added outside. The two parts of the softmax are joined through its normaliser, forwards and backwards: given the joint
output and normaliser, the fused kernel's own backward gives the right gradients for its part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.models import rotary
from outrider.train.fused import fused

rotated = fused(rotary.rotated)


class UnrolledAttention:
    """The `Attend` of one unroll: call the module once per step with `step` set to 0, 1, 2, …"""

    def __init__(self, layers: int, rotation: tuple[Tensor, Tensor], scale: float) -> None:
        """rotation: cos and sin [length, dim/2] of the text's positions."""
        self.step = 0
        self._rotation = rotation[0][:, None], rotation[1][:, None]
        self._scale = scale
        self._kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(layers)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, heads, dim], k and v [B, T, kv_heads, dim] → [B, T, heads * dim]; rows before `step` give zeros."""
        q, k = rotated(q, *self._rotation), rotated(k, *self._rotation)
        self._kept[layer].append((k, v))
        j, length = self.step, q.shape[1]
        keys, values = self._kept[layer][0]
        # Row r of this step beside the rows of the others that it sees.
        beside = [tuple(x[:, i : length - j + i] for x in kept) for i, kept in enumerate(self._kept[layer])][1:]
        own_keys = torch.stack([k for k, _ in beside]) if beside else None
        own_values = torch.stack([v for _, v in beside]) if beside else None
        square = q[:, j:], keys[:, : length - j], values[:, : length - j]
        out: Tensor = _Joined.apply(*square, own_keys, own_values, self._scale)  # type: ignore[no-untyped-call]
        return pad(out, (0, 0, 0, 0, j, 0)).flatten(2)


class _Joined(torch.autograd.Function):
    """Causal attention to k, v [B, n, kv, dim] joined with one more key per step and row, [steps, B, n, kv, dim]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_keys: Tensor | None, own_values: Tensor | None, scale: float
    ) -> Tensor:
        out, normaliser, rest = _fused(*_square(q, k, v), scale=scale)
        if own_keys is not None and own_values is not None:
            out, normaliser = _join(q, own_keys, own_values, out, normaliser, scale)
        ctx.save_for_backward(q, k, v, own_keys, own_values, out, normaliser)
        ctx.rest, ctx.scale = rest, scale
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, own_keys, own_values, out, normaliser = ctx.saved_tensors
        batch, length, kv, dim = k.shape
        group = q.shape[2] // kv
        grad = grads[0].transpose(1, 2)  # [B, heads, n, dim]
        parts = _fused_backward(grad, *_square(q, k, v), out=out, normaliser=normaliser, rest=ctx.rest, scale=ctx.scale)
        dq, dk, dv = (x.transpose(1, 2) for x in parts)
        dk, dv = (x.reshape(batch, length, kv, group, dim).sum(3) for x in (dk, dv))
        if own_keys is None:
            return dq, dk, dv, None, None, None
        dq, d_keys, d_values = _join_backward(grads[0], q, own_keys, own_values, out, normaliser, dq, ctx.scale)
        return dq, dk, dv, d_keys, d_values, None


@fused
def _join(
    q: Tensor, keys: Tensor, values: Tensor, out: Tensor, normaliser: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Add one key per step to an attention's output [B, heads, n, dim] and log-normaliser [B, heads, n].

    q [B, n, heads, dim], keys and values [steps, B, n, kv, dim].
    """
    scores = _own_scores(q, keys, scale)  # [steps, B, n, kv, group]
    steps, batch, length = scores.shape[:3]
    by_head = scores.reshape(steps, batch, length, -1).permute(0, 1, 3, 2)
    highest = torch.maximum(normaliser, by_head.amax(0))
    joint = highest + ((normaliser - highest).exp() + (by_head - highest).exp().sum(0)).log()
    weights = (scores - joint.transpose(1, 2).reshape(batch, length, *scores.shape[3:])).exp()
    own = (weights[..., None] * values.float()[:, :, :, :, None]).sum(0)  # [B, n, kv, group, dim]
    own = own.reshape(q.shape).transpose(1, 2)
    return (out.float() * (normaliser - joint).exp()[..., None] + own).to(out.dtype), joint


@fused
def _join_backward(
    grad: Tensor, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, joint: Tensor, dq: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients at q (those of the other part, `dq`, included), keys and values. grad [B, n, heads, dim]."""
    _, batch, length, kv, dim = keys.shape
    grouped = (batch, length, kv, -1, dim)
    scores = _own_scores(q, keys, scale)
    weights = (scores - joint.transpose(1, 2).reshape(batch, length, *scores.shape[3:])).exp()
    wide = grad.float()
    mean = (wide * out.transpose(1, 2).float()).sum(-1).reshape(batch, length, kv, -1)
    wide = wide.reshape(grouped)
    along = (wide * values.float()[:, :, :, :, None]).sum(-1)  # [steps, B, n, kv, group]
    d_scores = (weights * (along - mean) * scale)[..., None]
    own_dq = (d_scores * keys.float()[:, :, :, :, None]).sum(0).reshape(q.shape)
    d_keys = (d_scores * q.float().reshape(grouped)).sum(4)
    d_values = (weights[..., None] * wide).sum(4)
    return (dq.float() + own_dq).to(q.dtype), d_keys.to(keys.dtype), d_values.to(values.dtype)


def _own_scores(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """[steps, B, n, kv, group] fp32: each row with its own key of every step."""
    batch, length, kv, dim = keys.shape[1:]
    return (q.float().reshape(batch, length, kv, -1, dim) * keys.float()[:, :, :, :, None]).sum(-1) * scale


def _square(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the kernel takes them: [B, heads, n, dim], keys and values repeated for every head of their group."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    return q.transpose(1, 2), k, v


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention of [B, heads, n, dim]: output, log-normaliser [B, heads, n] fp32, what backward needs."""
    if q.device.type == "cpu":
        out, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
        return out, normaliser, ()
    out, normaliser, *rest = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scale)
    return out, normaliser, tuple(rest[:6])


def _fused_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, normaliser: Tensor, rest: tuple[Any, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = cpu(grad, q, k, v, out, normaliser, 0.0, True, scale=scale)
    else:
        cum_q, cum_k, max_q, max_k, seed, offset = rest
        cuda = torch.ops.aten._scaled_dot_product_flash_attention_backward
        dq, dk, dv = cuda(
            grad, q, k, v, out, normaliser, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset, scale=scale
        )
    return dq, dk, dv
