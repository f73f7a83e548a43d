"""Attention of drafts unrolled over whole texts, as they will be made when decoding.

In step j of the unroll every row r stands j drafts beyond the last state the target has run: its keys are those of step
0 (true states) up to position r - j, and then the keys of the drafts in between, one per step: step i's at position
r - j + i, its own (i = j) last. So all positions of a text are trained as if a draft had begun j rows before them.

Only answers are drafted, so steps after the first may leave out the rows before `first`, which lie in every prompt.

The keys of step 0 are a causal trapezium and go to the fused kernel; those of the other steps are one per row and are
added outside. The two parts of the softmax are joined through its normaliser, forwards and backwards: given the joint
output and normaliser, the fused kernel's own backward gives the right gradients for its part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.train.arithmetic import Arithmetic


class UnrolledAttention:
    """The `Attend` of one unroll: call the module once per step with `step` set to 0, 1, 2, …"""

    def __init__(
        self,
        layers: int,
        steps: int,
        rotation: tuple[Tensor, Tensor],
        scale: float,
        arithmetic: Arithmetic,
        first: int = 0,
    ) -> None:
        """rotation: cos and sin [length, dim/2] of the text's positions."""
        self.step = 0
        self._memories = [_Memory(steps, rotation, scale, arithmetic, first) for _ in range(layers)]
        self._links = [torch.empty(0)] * layers

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, rows, heads, dim], k and v [B, rows, kv_heads, dim] → [B, rows, heads * dim]; in step 0 all rows of the
        texts, later those from `first` on, of which the first `step` give zeros."""
        out: Tensor
        memory, link = self._memories[layer], self._links[layer]
        out, self._links[layer] = _Step.apply(q, k, v, link, memory, self.step)  # type: ignore[no-untyped-call]
        return out.flatten(2)


class _Memory:
    """Keys and values of the steps so far, in one layer, and gradients at them as they come in.

    They are not autograd's: every step uses those of all before it, so it would copy and add up slices of them for most
    of the time. Instead a step's backward adds to the gradients kept here, and hands on its own, which are complete by
    then: steps run backwards in reverse order, tied to each other by a link (an empty tensor).
    """

    def __init__(
        self, steps: int, rotation: tuple[Tensor, Tensor], scale: float, arithmetic: Arithmetic, first: int
    ) -> None:
        self.arithmetic, self.scale = arithmetic, scale
        self._steps, self._rotation, self._first = steps, rotation, first
        self.d_true: list[Tensor] = []

    def angles(self, step: int) -> tuple[Tensor, Tensor]:
        start = self._first if step else 0
        return self._rotation[0][start:], self._rotation[1][start:]

    def keep(self, step: int, k: Tensor, v: Tensor, heads: int) -> None:
        """k and v [B, rows, kv, dim], k not yet rotated."""
        if step == 0:
            turned = k.new_empty(k.shape)
            self.arithmetic.rotate(k, *self.angles(0), turned)
            group = heads // k.shape[2]
            # As the fused kernel takes them, repeated for every head of their group: [B, T, heads, dim].
            self.true_keys, self.true_values = (x.repeat_interleave(group, 2) for x in (turned, v))
            self._true_shape = k.shape
            return
        if step == 1:
            self.keys, self.values = (x.new_empty(self._steps - 1, *x.shape) for x in (k, v))
        self.arithmetic.rotate(k, *self.angles(step), self.keys[step - 1])
        self.values[step - 1].copy_(v)

    def true(self, step: int) -> tuple[Tensor, Tensor]:
        """What the fused kernel looks at in this step: [B, heads, m, dim]."""
        count = self.true_keys.shape[1] - step
        keys, values = (x[:, :count].transpose(1, 2) for x in (self.true_keys, self.true_values))
        return keys, values

    def begin_backward(self, step: int) -> None:
        """In the last step: room for gradients."""
        if self.d_true:
            return
        self.d_true = [torch.zeros(self._true_shape, device=self.true_keys.device) for _ in range(2)]
        if step:
            self.d_keys, self.d_values = (torch.zeros_like(x, dtype=torch.float32) for x in (self.keys, self.values))

    def gradients(self, step: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """At this step's k (not rotated) and v."""
        d_keys, d_values = self.d_true if step == 0 else (self.d_keys[step - 1], self.d_values[step - 1])
        turned = d_keys.new_empty(d_keys.shape, dtype=like.dtype)
        self.arithmetic.rotate(d_keys, *self.angles(step), turned, back=True)
        return turned, d_values.to(like.dtype)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, link: Tensor, memory: _Memory, step: int
    ) -> tuple[Tensor, Tensor]:
        arithmetic, scale = memory.arithmetic, memory.scale
        turned = q.new_empty(q.shape)
        arithmetic.rotate(q, *memory.angles(step), turned)
        memory.keep(step, k, v, q.shape[2])
        # [B, heads, rows - step, dim], log-normaliser [B, heads, rows - step]
        part, joint, ctx.rest = _fused(turned[:, step:].transpose(1, 2), *memory.true(step), scale=scale)
        if step == 0:
            out = part.transpose(1, 2)
        else:
            out, joint = arithmetic.join(turned, memory.keys, memory.values, part, joint, step, scale)
        ctx.save_for_backward(turned, out, joint)
        ctx.memory, ctx.step = memory, step
        return out, q.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, out, joint = ctx.saved_tensors
        memory, step, grad = ctx.memory, ctx.step, grads[0]
        arithmetic, scale = memory.arithmetic, memory.scale
        memory.begin_backward(step)
        keys, values = memory.true(step)
        d_out, drafted, seen = (x[:, step:].transpose(1, 2) for x in (grad, q, out))
        d_q, d_keys, d_values = _fused_backward(d_out, drafted, keys, values, seen, joint, ctx.rest, scale)
        arithmetic.fold(d_keys, memory.d_true[0])
        arithmetic.fold(d_values, memory.d_true[1])
        if step == 0:
            d_q = d_q.transpose(1, 2)
        else:
            d_q = arithmetic.join_backward(
                grad, q, out, memory.keys, memory.values, joint, d_q, memory.d_keys, memory.d_values, step, scale
            )
        d_x = q.new_empty(q.shape)
        arithmetic.rotate(d_q, *memory.angles(step), d_x, back=True)
        return d_x, *memory.gradients(step, q), None, None, None


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, aligned at the end, of q [B, heads, n, dim] to k, v [B, heads, m, dim]: output, log-normaliser
    [B, heads, n] fp32, what backward needs."""
    if q.device.type == "cpu":
        cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, normaliser = cpu(_full(q, k), k, v, 0.0, True, scale=scale)
        return out[:, :, -q.shape[2] :], normaliser[:, :, -q.shape[2] :], ()
    out, normaliser, *rest = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scale)
    return out, normaliser, tuple(rest[:6])


def _fused_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, normaliser: Tensor, rest: tuple[Any, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        joint = _full(normaliser[..., None], k)[..., 0].contiguous()
        dq, dk, dv = cpu(_full(grad, k), _full(q, k), k, v, _full(out, k), joint, 0.0, True, scale=scale)
        return dq[:, :, -q.shape[2] :], dk, dv
    cum_q, cum_k, max_q, max_k, seed, offset = rest
    cuda = torch.ops.aten._scaled_dot_product_flash_attention_backward
    dq, dk, dv = cuda(grad, q, k, v, out, normaliser, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset, scale=scale)
    return dq, dk, dv


def _full(x: Tensor, k: Tensor) -> Tensor:
    """x with rows of zeros before it, as many rows as keys: PyTorch's kernel for CPUs aligns causality at the start."""
    return pad(x, (0, 0, k.shape[2] - x.shape[2], 0))
