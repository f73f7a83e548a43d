"""What a step of the bulk writer does beside multiplying matrices, in plain PyTorch: the reference, and the CPU's."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from outrider.models.architecture import Architecture
from outrider.models.rotary import rotation_table
from outrider.models.weights import LayerWeights
from outrider.sampling.noise import STEP, mix
from outrider.train.lanes import WriterLanes


class Operations(Protocol):
    """Row i of every tensor belongs to lane i."""

    recordable: bool
    """Whether launches and shapes are the same in every step, so that a GPU can replay them."""

    def norm(self, x: Tensor, gain: Tensor) -> Tensor: ...
    def add_norm(self, x: Tensor, update: Tensor, gain: Tensor) -> Tensor:
        """Adds `update` to the residual stream x in place; returns the sum's RMSNorm."""
        ...

    def attend(self, layer: int, w: LayerWeights, qkv: Tensor) -> Tensor:
        """Rotates queries and keys (qkv [lanes, q + 2 kv]), appends keys and values to the cache, attends over it:
        [lanes, q]."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """[lanes, 2 mlp] → [lanes, mlp]"""
        ...

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen token [lanes] int32 and the score it won by [lanes] of fp32 logits [lanes, vocab].

        argmax of logit / T - log E, E exponential noise: a sample of softmax(logit / T). T = 0: argmax of the logit.
        """
        ...


class TorchOperations:
    """Attention looks at as many positions as the longest lane has."""

    recordable = False

    def __init__(self, architecture: Architecture, cache: Tensor, lanes: WriterLanes) -> None:
        self._a, self._cache, self._lanes = architecture, cache, lanes
        self._tables = [rotation_table(rope, lanes.context, lanes.device) for rope in architecture.ropes]

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._a.norm_eps) * gain).to(x.dtype)

    def add_norm(self, x: Tensor, update: Tensor, gain: Tensor) -> Tensor:
        return self.norm(x.add_(update), gain)

    def attend(self, layer: int, w: LayerWeights, qkv: Tensor) -> Tensor:
        a, shape, lanes = self._a, self._a.layers[layer], qkv.shape[0]
        q, k, v = torch.split(qkv, [a.q_width, a.kv_width, a.kv_width], dim=-1)
        q, k, v = q.view(lanes, a.heads, -1), k.view(lanes, a.kv_heads, -1), v.view(lanes, a.kv_heads, -1)
        if w.q_norm is not None and w.k_norm is not None:
            q, k = self.norm(q, w.q_norm), self.norm(k, w.k_norm)
        position = self._lanes.position.long()
        keys, values = self._cache[layer]  # [lanes, kv_heads, context, dim] each
        every = torch.arange(lanes, device=qkv.device)
        keys[every, :, position] = self._rotate(shape.rope, position, k)
        values[every, :, position] = v
        longest = int(position.max()) + 1
        place = torch.arange(longest, device=qkv.device)
        seen = place <= position[:, None]  # [lanes, longest]
        if shape.window:
            seen &= place > position[:, None] - shape.window
        out = scaled_dot_product_attention(
            self._rotate(shape.rope, position, q)[:, :, None],
            keys[:, :, :longest],
            values[:, :, :longest],
            attn_mask=seen[:, None, None],
            scale=a.attention_scale,
            enable_gqa=True,
        )
        return out.reshape(lanes, a.q_width)

    def _rotate(self, rope: int, position: Tensor, x: Tensor) -> Tensor:
        cos, sin = (table[position][:, None] for table in self._tables[rope])
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return (silu(gate) if self._a.activation == "silu" else gelu(gate, approximate="tanh")) * up

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        lanes = self._lanes
        low, high = lanes.words[:, :1], lanes.words[:, 1:]
        step = (lanes.position + 1)[:, None] * STEP  # of the position chosen for; wraps
        low, high = mix(low ^ step), mix(high + step)
        token = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
        word = mix(mix(token * STEP ^ low) + high).long() & 0xFFFFFFFF
        u = (word.float() + 0.5) * 2.0**-32  # in (0, 1]
        noise = torch.where(u < 2.0**-12, u + u * u / 2, -torch.log(1 - u))  # -log(1 - u) without losing small u
        temperature = lanes.temperature[:, None]
        sampled = logits / temperature.clamp(min=1e-6) - torch.log(noise)
        best = torch.where(temperature > 0, sampled, logits).max(dim=1)
        return best.indices.to(torch.int32), best.values
