"""The target as a teacher: whole texts at once, its hidden states and distributions read out, nothing cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from outrider.models import rotary
from outrider.models.architecture import USUAL, Architecture
from outrider.models.weights import DecoderWeights, LayerWeights
from outrider.train.arithmetic import Arithmetic, arithmetic_for


@dataclass(frozen=True, slots=True)
class TeacherOutput:
    """What the target computes over texts [B, T]."""

    features: Tensor
    """[B, T, layers * hidden]"""
    final: Tensor
    """[B, T, hidden], normalised: `Teacher.logits` turns rows of it into logits for the token that follows."""


class Teacher:
    """Texts are padded on the right; attention is causal, so padding changes nothing before it."""

    known = USUAL | {"sandwich_norms"}
    """Options of an architecture that it computes."""

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[LayerWeights],
        max_length: int,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        """arithmetic: the best for the device, if not given."""
        self.architecture = architecture
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self.arithmetic = arithmetic or arithmetic_for(self.device)
        self._add_norm = self.arithmetic.add_norm
        self._rotations = [rotary.rotation_table(rope, max_length, self.device) for rope in architecture.ropes]

    @torch.no_grad()
    def read(self, tokens: Tensor, aux_hidden_layers: Sequence[int]) -> TeacherOutput:
        # Everything has its precision already: looking for what to cast would take the host longer than launching.
        with torch.autocast(self.device.type, enabled=False):
            return self._read(tokens, aux_hidden_layers)

    def _read(self, tokens: Tensor, aux_hidden_layers: Sequence[int]) -> TeacherOutput:
        eps, hidden = self.architecture.norm_eps, self.architecture.hidden
        x = self.embed(tokens)
        features = x.new_empty(*tokens.shape, len(aux_hidden_layers) * hidden)

        def keep(layers: int) -> None:
            for place, layer in enumerate(aux_hidden_layers):
                if layer == layers:
                    features[..., place * hidden : (place + 1) * hidden] = x

        # What a layer adds to x is added by the norm after it, which has to read x anyway.
        keep(0)
        normed = self._norm(x, self.weights.layers[0].attention_norm)
        for i, layer in enumerate(self.weights.layers):
            normed = self._add_norm(x, self._attention(i, layer, normed), layer.mlp_norm, eps)
            last = i + 1 == len(self.weights.layers)
            after = self.weights.norm if last else self.weights.layers[i + 1].attention_norm
            normed = self._add_norm(x, self._mlp(layer, normed), after, eps)
            keep(i + 1)
        return TeacherOutput(features, normed)

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
        qkv = linear(x, w.qkv, _typed(w.qkv_bias, x)).view(batch, length, -1, a.head_dim)
        cos, sin = (table[:length] for table in self._rotations[a.layers[index].rope])
        turned = qkv[:, :, : a.heads + a.kv_heads]
        if w.q_norm is not None and w.k_norm is not None:
            q, k = torch.split(turned, [a.heads, a.kv_heads], 2)
            q.copy_(self._norm(q, w.q_norm))
            k.copy_(self._norm(k, w.k_norm))
        self.arithmetic.rotate(turned, cos, sin, turned)
        q, k, v = torch.split(qkv, [a.heads, a.kv_heads, a.kv_heads], 2)
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
        gate, up = linear(x, w.gate_up, _typed(w.gate_up_bias, x)).chunk(2, dim=-1)
        active = self.arithmetic.gated(gate, up, gelu=self.architecture.activation != "silu")
        out = linear(active, w.down, _typed(w.down_bias, x))
        return out if w.mlp_out_norm is None else self._norm(out, w.mlp_out_norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.arithmetic.norm(x, weight, self.architecture.norm_eps)


def _typed(bias: Tensor | None, x: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(x.dtype)


def _sliding(length: int, window: int, device: torch.device) -> Tensor:
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (distance >= 0) & (distance < window)
