"""The writer's operations on a GPU: every one a kernel of our own."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from outrider.models.architecture import Architecture
from outrider.models.cuda.kernels.rows import rotate_kernel
from outrider.models.rotary import rotation_table
from outrider.models.weights import LayerWeights
from outrider.train.kernels.writing import add_norm_kernel, attend_lanes_kernel, choose_lanes_kernel, gate_kernel
from outrider.train.lanes import WriterLanes

_TILE = 16
"""Query vectors per program: the fewest a matrix instruction takes."""
_POSITIONS = 64
"""Cached positions a program reads at a time."""
_TOKENS = 4096
"""Tokens of the vocabulary a program chooses among."""


class TritonOperations:
    """As `TorchOperations`; a lane's attention costs as much as that lane is long."""

    recordable = True

    def __init__(self, architecture: Architecture, cache: Tensor, lanes: WriterLanes) -> None:
        a = architecture
        self._a, self._cache, self._lanes = a, cache, lanes
        self._tables = [rotation_table(rope, lanes.context, lanes.device) for rope in a.ropes]
        self._every = torch.arange(lanes.count, dtype=torch.int32, device=lanes.device)
        blocks = -(-a.vocab_size // _TOKENS)
        self._best = torch.zeros(lanes.count, blocks, dtype=torch.float32, device=lanes.device)
        self._which = torch.zeros(lanes.count, blocks, dtype=torch.int32, device=lanes.device)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return self._norm(x, x, gain, add=False)

    def add_norm(self, x: Tensor, update: Tensor, gain: Tensor) -> Tensor:
        return self._norm(x, update, gain, add=True)

    def _norm(self, x: Tensor, update: Tensor, gain: Tensor, add: bool) -> Tensor:
        out = torch.empty_like(x)
        hidden = x.shape[1]
        width = triton.next_power_of_2(hidden)
        add_norm_kernel[(x.shape[0],)](x, update, gain, out, self._a.norm_eps, HIDDEN=hidden, WIDTH=width, ADD=add)
        return out

    def attend(self, layer: int, w: LayerWeights, qkv: Tensor) -> Tensor:
        a, shape, lanes = self._a, self._a.layers[layer], self._lanes
        keys, values = self._cache[layer]
        cos, sin = self._tables[shape.rope]
        together = min(16, triton.next_power_of_2(a.heads + 2 * a.kv_heads))
        groups = triton.cdiv(a.heads + 2 * a.kv_heads, together)
        # A lane is a slot of one block, its own.
        rotate_kernel[(lanes.count, groups)](
            qkv, cos, sin, w.q_norm, w.k_norm, keys, values, self._every, self._every, lanes.position, lanes.position,
            None, 1, a.norm_eps,
            HEADS=a.heads, KV_HEADS=a.kv_heads, DIM=a.head_dim, BLOCK=lanes.context, TOGETHER=together, DEPENDENT=False,
        )  # fmt: skip
        out = qkv.new_empty(lanes.count, a.q_width)
        attend_lanes_kernel[(lanes.count, a.kv_heads)](
            qkv, keys, values, lanes.position, out, lanes.context, shape.window, a.attention_scale * math.log2(math.e),
            HEADS=a.heads, KV_HEADS=a.kv_heads, DIM=a.head_dim, TILE=_TILE, BLOCK=_POSITIONS,
        )  # fmt: skip
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        lanes, mlp = gate_up.shape[0], self._a.mlp
        out = gate_up.new_empty(lanes, mlp)
        gelu = self._a.activation == "gelu_tanh"
        gate_kernel[(lanes, triton.cdiv(mlp, 1024))](gate_up, out, MLP=mlp, GELU=gelu, BLOCK=1024)
        return out

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        lanes = self._lanes
        choose_lanes_kernel[self._best.shape](
            logits, lanes.position, lanes.words, lanes.temperature, self._best, self._which, logits.shape[1],
            BLOCK=_TOKENS,
        )  # fmt: skip
        score, block = self._best.max(dim=1)
        return self._which.gather(1, block[:, None])[:, 0], score
