"""The target as a teacher: whole texts at once, its hidden states and distributions read out, nothing cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from outrider.models import rotary
from outrider.models.architecture import Architecture
from outrider.models.weights import DecoderWeights, LayerWeights
from outrider.train.fused import fused

rotated = fused(rotary.rotated)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target computes over texts [B, T]."""

    features: Tensor
    """[B, T, taps * hidden]"""
    final: Tensor
    """[B, T, hidden], normalised: `Teacher.logits` turns rows of it into logits for the token that follows."""


class Teacher:
    """Texts are padded on the right; attention is causal, so padding changes nothing before it."""

    def __init__(self, architecture: Architecture, weights: DecoderWeights[LayerWeights], max_length: int) -> None:
        self.architecture = architecture
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._rotations = [rotary.rotation_table(rope, max_length, self.device) for rope in architecture.ropes]

    @torch.no_grad()
    def read(self, tokens: Tensor, taps: Sequence[int]) -> Reading:
        x = self.embed(tokens)
        states = {0: x}
        for i, layer in enumerate(self.weights.layers):
            x = x + self._attention(i, layer, self._norm(x, layer.attention_norm))
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
            if i + 1 in taps:
                states[i + 1] = x
        features = torch.cat([states[tap] for tap in taps], dim=-1) if taps else x[..., :0]
        return Reading(features, self._norm(x, self.weights.norm))

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        x = self.weights.embedding[tokens]
        return x if self.architecture.embed_scale == 1.0 else x * self.architecture.embed_scale

    @torch.no_grad()
    def logits(self, final: Tensor, ids: Tensor | None = None) -> Tensor:
        """[rows, vocab], or the columns `ids` of it."""
        return linear(final, self.weights.head if ids is None else self.weights.head[ids])

    def _attention(self, index: int, w: LayerWeights, x: Tensor) -> Tensor:
        a = self.architecture
        batch, length, _ = x.shape
        qkv = linear(x, w.qkv, _typed(w.qkv_bias, x))
        q, k, v = (
            part.view(batch, length, -1, a.head_dim)
            for part in torch.split(qkv, [a.q_width, a.kv_width, a.kv_width], -1)
        )
        if w.q_norm is not None and w.k_norm is not None:
            q, k = self._norm(q, w.q_norm), self._norm(k, w.k_norm)
        cos, sin = (table[:length, None] for table in self._rotations[a.layers[index].rope])
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        window = a.layers[index].window
        mask = _sliding(length, window, x.device) if 0 < window < length else None
        out = scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            scale=a.attention_scale,
            enable_gqa=a.heads != a.kv_heads,
        )
        out = linear(out.transpose(1, 2).reshape(batch, length, a.q_width), w.o, _typed(w.o_bias, x))
        return out if w.attention_out_norm is None else self._norm(out, w.attention_out_norm)

    def _mlp(self, w: LayerWeights, x: Tensor) -> Tensor:
        active = _gated(linear(x, w.gate_up, _typed(w.gate_up_bias, x)), self.architecture.activation == "silu")
        out = linear(active, w.down, _typed(w.down_bias, x))
        return out if w.mlp_out_norm is None else self._norm(out, w.mlp_out_norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return _rms_norm(x, weight, self.architecture.norm_eps)


@fused
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


@fused
def _gated(gate_up: Tensor, by_silu: bool) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (silu(gate) if by_silu else gelu(gate, approximate="tanh")) * up


def _typed(bias: Tensor | None, x: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(x.dtype)


def _sliding(length: int, window: int, device: torch.device) -> Tensor:
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (distance >= 0) & (distance < window)
