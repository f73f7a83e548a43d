"""The head as a `DraftHead` in PyTorch, on any device: `HeadModule` over a static cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outrider.core.model import DraftHead, HeadOutput, Rows
from outrider.kvcache.slots import Span, StaticCache, wanted_rows
from outrider.models.attention import masked, visibility
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig
from outrider.models.head.module import HeadModule
from outrider.models.head.weights import SCALES, Scaled, tensor_shapes
from outrider.models.memory import lazy_zeros
from outrider.models.rotary import rotated, rotation_table


class TorchHead(StaticCache, DraftHead):
    supports_trees = True
    chunk = 512

    def __init__(
        self,
        module: HeadModule,
        ids: Tensor,
        embed: Callable[[Tensor], Tensor],
        *,
        max_batch: int,
        max_context: int,
    ) -> None:
        """`embed`: the target's embedding of token ids [rows] → [rows, hidden]."""
        super().__init__(max_batch, max_context)
        self.config: HeadConfig = module.config
        self.aux_hidden_layers = self.config.aux_hidden_layers
        self.acceptance = self.config.acceptance
        self.ids = ids
        self._module = module.eval()
        self._embed = embed
        a = self.config.architecture
        weight = module.fc.weight
        self._device, self._dtype = weight.device, weight.dtype
        shape = (len(a.layers), max_batch, a.kv_heads, max_context, a.head_dim)
        self._keys = lazy_zeros(shape, self._dtype, self._device)
        self._values = lazy_zeros(shape, self._dtype, self._device)
        self._rotations = rotation_table(a.ropes[0], max_context, self._device)

    @torch.inference_mode()
    def forward(
        self, batch: Sequence[Rows], *, features: Tensor | None = None, states: Tensor | None = None
    ) -> HeadOutput:
        spans = [self._slots.extend(rows) for rows in batch]
        tokens = torch.tensor([t for rows in batch for t in rows.tokens], device=self._device)
        if features is not None:
            states = self._module.fuse(features.to(self._device, self._dtype))
        assert states is not None, "features or states"
        states = self._module(self._embed(tokens).to(self._dtype), states.to(self._dtype), _Cached(self, spans))
        wanted = torch.tensor(wanted_rows(batch), dtype=torch.long, device=self._device)
        return HeadOutput(self._module.logits(states[wanted]).float(), states)

    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = (torch.tensor(side, device=self._device) for side in (sources, targets))
        for cache in (self._keys, self._values):
            cache[:, slot].index_copy_(2, target, cache[:, slot].index_select(2, source))

    def _copy(self, source: int, target: int, length: int) -> None:
        for cache in (self._keys, self._values):
            cache[:, target, :, :length] = cache[:, source, :, :length]


class _Cached:
    """Attention of one pass over the head's cache."""

    def __init__(self, head: TorchHead, spans: list[Span]) -> None:
        self._head = head
        self._spans = spans
        positions = torch.tensor([s.base + len(p) - 1 for s in spans for p in s.paths], device=head._device)
        cos, sin = head._rotations
        self._rotation = cos[positions][:, None], sin[positions][:, None]
        self._masks = [visibility(span, 0, head._device) for span in spans]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._head._keys[layer], self._head._values[layer]
        q, k = rotated(q, *self._rotation), rotated(k, *self._rotation)
        start = 0
        for span in self._spans:
            stop = start + len(span.paths)
            keys[span.slot, :, span.first : span.end] = k[start:stop].transpose(0, 1)
            values[span.slot, :, span.first : span.end] = v[start:stop].transpose(0, 1)
            start = stop
        scale = self._head.config.architecture.attention_scale
        return masked(q, keys, values, self._spans, self._masks, scale).flatten(1)


def as_module(checkpoint: HeadCheckpoint) -> HeadModule:
    """In fp32."""
    with torch.device("meta"):
        module = HeadModule(checkpoint.config)
    tensors = {
        name: Scaled(tensor, checkpoint.tensors.get(name.removesuffix(".weight") + SCALES)).wide(torch.float32)
        for name, tensor in checkpoint.tensors.items()
        if name in tensor_shapes(checkpoint.config) and name != "d2t"
    }
    module.load_state_dict(tensors, assign=True)
    return module
