"""The head itself, in PyTorch: one definition for training and for reference inference.

Only attention differs between the two (training unrolls drafts over whole texts, inference keeps a cache), so it is
handed in. Parameters carry the names they have in a checkpoint.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from outrider.models.architecture import Architecture
from outrider.models.head.config import HeadConfig


class Attend(Protocol):
    """q [..., heads, dim], k and v [..., kv_heads, dim], not yet rotated, of layer `layer` → [..., heads * dim]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Elementwise(Protocol):
    """What lies between the matrix products; training brings faster ones for GPUs."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, rows: Tensor | None = None) -> Tensor:
        """RMSNorm of x [..., size], summed in fp32; with `rows`, of those rows of x [any, size] (each at most once)."""
        ...

    def gated(self, gate: Tensor, up: Tensor, gelu: bool = False) -> Tensor:
        """silu(gate) * up, or by the tanh form of gelu."""
        ...


class PlainElementwise:
    def norm(self, x: Tensor, weight: Tensor, eps: float, rows: Tensor | None = None) -> Tensor:
        x = x if rows is None else x[rows]
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def gated(self, gate: Tensor, up: Tensor, gelu: bool = False) -> Tensor:
        return (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * up


class Norm(nn.Module):
    """RMSNorm."""

    elementwise: Elementwise = PlainElementwise()

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.elementwise.norm(x, self.weight, self._eps, rows)


class HeadModule(nn.Module):
    """States go in and states come out: what `forward` returns for a row is the state of the row after it."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        a = config.architecture
        self.fc = nn.Linear(config.feature_width, a.hidden, bias=False)
        self.layers = nn.ModuleList([_Layer(a, first=i == 0) for i in range(len(a.layers))])
        self.norm = Norm(a.hidden, a.norm_eps)
        self.lm_head = nn.Linear(a.hidden, a.vocab_size, bias=False)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [..., layers * target_hidden] as states [..., hidden]."""
        fused: Tensor = self.fc(features)
        return fused

    def forward(self, embeds: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """embeds: the token after each state, [..., hidden] both → the states after, [..., hidden]."""
        x = states
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            inner = layer.input_layernorm(embeds if i == 0 else x)
            if i == 0:
                normed = layer.hidden_norm(x)
                x = normed if self.config.norm_before_residual else x
                inner = torch.cat([inner.to(normed.dtype), normed], dim=-1)
            x = x + layer.self_attn(inner, i, attend)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x

    def logits(self, states: Tensor) -> Tensor:
        """[..., draft_vocab] for what follows the token after."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


class _Layer(nn.Module):
    def __init__(self, a: Architecture, first: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(a.hidden, a.norm_eps)
        if first:
            self.hidden_norm = Norm(a.hidden, a.norm_eps)
        self.self_attn = Attention(a, a.hidden * (2 if first else 1))
        self.post_attention_layernorm = Norm(a.hidden, a.norm_eps)
        self.mlp = Mlp(a)


class Attention(nn.Module):
    """Grouped-query projections around an attention that is handed in."""

    def __init__(self, a: Architecture, width: int) -> None:
        super().__init__()
        self._head_dim = a.head_dim
        self.q_proj = nn.Linear(width, a.q_width, bias=False)
        self.k_proj = nn.Linear(width, a.kv_width, bias=False)
        self.v_proj = nn.Linear(width, a.kv_width, bias=False)
        self.o_proj = nn.Linear(a.q_width, a.hidden, bias=False)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        q, k, v = (p(x).view(*x.shape[:-1], -1, self._head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        out: Tensor = self.o_proj(attend(layer, q, k, v))
        return out


class Mlp(nn.Module):
    """Gated, by silu."""

    elementwise: Elementwise = PlainElementwise()

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(a.hidden, a.mlp, bias=False)
        self.up_proj = nn.Linear(a.hidden, a.mlp, bias=False)
        self.down_proj = nn.Linear(a.mlp, a.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.elementwise.gated(self.gate_proj(x), self.up_proj(x)))
        return out
