"""`Arithmetic` on a GPU: every operation one kernel of our own, sums in fp32."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from outrider.train.arithmetic import Mix
from outrider.train.kernels.divergence import judge_kernel, normaliser_kernel
from outrider.train.kernels.rows import (
    gate_backward_kernel,
    gate_kernel,
    norm_backward_kernel,
    norm_kernel,
    rotate_rows_kernel,
)
from outrider.train.kernels.unroll import fold_kernel, join_backward_kernel, join_kernel
from outrider.train.kernels.writing import add_norm_kernel

_COLUMNS = 1024
"""Of an MLP that a program gates."""
_CELLS = 2048
"""Numbers of a tensor that a program of the attention's kernels holds."""
_PROGRAMS = 1056
"""Of a norm's backward, each with its own share of the weight's gradient: as many as run at once on a large GPU."""
_TOKENS = 4096
"""Of a vocabulary that a program reads at a time."""


class FastArithmetic:
    def norm(self, x: Tensor, weight: Tensor, eps: float, rows: Tensor | None = None) -> Tensor:
        out: Tensor = _Norm.apply(x, weight, eps, rows)  # type: ignore[no-untyped-call]
        return out

    def gated(self, gate: Tensor, up: Tensor, gelu: bool = False) -> Tensor:
        out: Tensor = _Gated.apply(gate, up, gelu)  # type: ignore[no-untyped-call]
        return out

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        out: Tensor = _Rotated.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return out

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        assert x.is_contiguous()
        hidden = x.shape[-1]
        out = torch.empty_like(x)
        add_norm_kernel[(x.numel() // hidden,)](
            x, update.contiguous(), weight, out, eps,
            HIDDEN=hidden, WIDTH=triton.next_power_of_2(hidden), ADD=True,
        )  # fmt: skip
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, *, back: bool = False) -> None:
        _rotate(x, cos, sin, out, back)

    def join(
        self, q: Tensor, keys: Tensor, values: Tensor, part: Tensor, normaliser: Tensor, step: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        batch, rows, heads, dim = q.shape
        kv = keys.shape[3]
        out, joint = torch.empty_like(q), normaliser.new_empty(batch, heads, rows - step)
        tile = _tile(heads // kv, dim)
        join_kernel[(triton.cdiv(rows, tile["TOGETHER"]), batch, kv)](
            q, keys, values, part, normaliser.contiguous(), out, joint, batch, rows, step, *part.stride()[:3], scale,
            HEADS=heads, KV_HEADS=kv, DIM=dim, **tile,
        )  # fmt: skip
        return out, joint

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
        batch, rows, heads, dim = q.shape
        kv = keys.shape[3]
        d_q = torch.empty_like(q)
        tile = _tile(heads // kv, dim)
        join_backward_kernel[(triton.cdiv(rows, tile["TOGETHER"]), batch, kv)](
            grad.contiguous(), q, out, keys, values, joint, part, d_q, d_keys, d_values, batch, rows, step,
            *part.stride()[:3], scale, HEADS=heads, KV_HEADS=kv, DIM=dim, **tile,
        )  # fmt: skip
        return d_q

    def fold(self, x: Tensor, into: Tensor) -> None:
        batch, heads, rows, dim = x.shape
        kv = into.shape[2]
        tile = _tile(heads // kv, dim)
        fold_kernel[(triton.cdiv(rows, tile["TOGETHER"]), batch, kv)](
            x, into, rows, into.shape[1], *x.stride()[:3], HEADS=heads, KV_HEADS=kv, DIM=dim, **tile
        )

    def normaliser(self, logits: Tensor) -> Tensor:
        rows, vocab = logits.shape
        out = torch.empty(rows, device=logits.device)
        if rows:
            normaliser_kernel[(rows,)](logits, out, vocab, BLOCK=_block(vocab), num_warps=8)
        return out

    def judge(
        self, logits: Tensor, target: Tensor, normaliser: Tensor, token: Tensor, weight: Tensor, mix: Mix
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert logits.is_contiguous()
        assert target.is_contiguous()
        rows, vocab = logits.shape
        losses = torch.empty(rows, device=logits.device)
        chosen = torch.empty(rows, dtype=torch.long, device=logits.device)
        if rows:
            judge_kernel[(rows,)](
                logits, target, normaliser, token, weight, losses, chosen, vocab, mix.ce, mix.kl, mix.tv,
                VARIATION=mix.tv != 0, BLOCK=_block(vocab), num_warps=8,
            )  # fmt: skip
        return losses, logits, chosen


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, rows: Tensor | None) -> Tensor:
        hidden = x.shape[-1]
        x = x.contiguous()
        ctx.save_for_backward(x, weight, rows)
        ctx.eps = eps
        shape = x.shape if rows is None else (len(rows), hidden)
        out = x.new_empty(shape)
        if out.numel():
            norm_kernel[(out.numel() // hidden,)](
                x, rows, weight, out, eps,
                HIDDEN=hidden, WIDTH=triton.next_power_of_2(hidden), PICK=rows is not None,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, rows = ctx.saved_tensors
        hidden = x.shape[-1]
        grad = grads[0].reshape(-1, hidden)
        if grad.stride(1) != 1:
            grad = grad.contiguous()
        programs = min(len(grad), _PROGRAMS)
        inner = ctx.needs_input_grad[0]
        d_x = (torch.empty_like(x) if rows is None else torch.zeros_like(x)) if inner else None
        shares = torch.empty(programs, hidden, device=x.device)
        if programs:
            norm_backward_kernel[(programs,)](
                grad, x, rows, weight, d_x, shares, len(grad), grad.stride(0), ctx.eps,
                HIDDEN=hidden, WIDTH=triton.next_power_of_2(hidden), PICK=rows is not None, INNER=inner,
            )  # fmt: skip
        return d_x, shares.sum(0).to(weight.dtype), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
        mlp = gate.shape[-1]
        ctx.save_for_backward(gate, up)
        ctx.gelu = gelu
        flat = gate.reshape(-1, mlp), up.reshape(-1, mlp)
        out = gate.new_empty(gate.shape)
        gate_kernel[(len(flat[0]), triton.cdiv(mlp, _COLUMNS))](
            *flat, out, flat[0].stride(0), flat[1].stride(0), MLP=mlp, GELU=gelu, BLOCK=_COLUMNS
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        assert not ctx.gelu, "only silu is trained"
        gate, up = (x.contiguous() for x in ctx.saved_tensors)
        mlp = gate.shape[-1]
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        gate_backward_kernel[(gate.numel() // mlp, triton.cdiv(mlp, _COLUMNS))](
            grads[0].contiguous(), gate, up, d_gate, d_up, MLP=mlp, BLOCK=_COLUMNS
        )
        return d_gate, d_up, None


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        out = x.new_empty(x.shape)
        _rotate(x, cos, sin, out, back=False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].contiguous()
        d_x = torch.empty_like(grad)
        cos, sin = ctx.saved_tensors
        _rotate(grad, cos, sin, d_x, back=True)
        return d_x, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, back: bool) -> None:
    batch, rows, heads, dim = x.shape
    assert x.stride(3) == 1
    assert out.stride()[2:] == (dim, 1)
    widths = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    together = max(1, _CELLS // 2 // (widths[0] * widths[1]))
    rotate_rows_kernel[(triton.cdiv(rows, together), batch)](
        x, cos, sin, out, rows, *x.stride()[:3], *out.stride()[:2],
        HEADS=heads, HALF=dim // 2, HEADS_WIDTH=widths[0], HALF_WIDTH=widths[1], TOGETHER=together, BACK=back,
    )  # fmt: skip


def _tile(group: int, dim: int) -> dict[str, int]:
    widths = triton.next_power_of_2(group), triton.next_power_of_2(dim)
    together = max(1, _CELLS // (widths[0] * widths[1]))
    return {"GROUP_WIDTH": widths[0], "DIM_WIDTH": widths[1], "TOGETHER": together}


def _block(vocab: int) -> int:
    return min(_TOKENS, int(triton.next_power_of_2(vocab)))
