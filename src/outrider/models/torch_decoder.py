"""The decoder in PyTorch: every device, every dtype, and the reference for the compiled one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from outrider.core.model import LanguageModel, Rows
from outrider.kvcache.slots import Span, StaticCache, wanted_rows
from outrider.models.architecture import Architecture
from outrider.models.attention import blocked, capped, masked, path_index, visibility
from outrider.models.faults import recovered
from outrider.models.memory import lazy_zeros
from outrider.models.rotary import rotated, rotation_table
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights

BITWISE_ROWS = 32
"""Rows of every sum in bitwise mode: libraries choose kernels, and so the order of summation, by shape alone."""


class TorchDecoder(StaticCache, LanguageModel):
    """A `LanguageModel` over a static cache [layers][slots, kv_heads, capacity, head_dim].

    With `bitwise`, a row's logits do not depend on which rows share the pass, on tree or chain, or on the cache layout.
    """

    supports_trees = measurable = gives_features = True

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[LayerWeights],
        *,
        max_batch: int,
        max_context: int,
        bitwise: bool,
    ) -> None:
        self.architecture = architecture
        self.vocab_size = architecture.vocab_size
        super().__init__(max_batch, max_context)
        self.bitwise = bitwise
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self.chunk = 64 if bitwise else 512
        self._weights = weights
        a = architecture
        shape = (len(a.layers), max_batch, a.kv_heads, max_context, a.head_dim)
        # Zeros, not empty: a masked key's value is multiplied by zero, and zero times a stray NaN is not zero.
        self._keys = lazy_zeros(shape, self.dtype, self.device)
        self._values = lazy_zeros(shape, self.dtype, self.device)
        self._rotations = [rotation_table(rope, max_context, self.device) for rope in a.ropes]
        self._kept_layers: tuple[int, ...] = ()
        self._measured = 0
        """The layer that was timed last."""
        self.features = torch.empty(0, 0, dtype=self.dtype, device=self.device)

    @staticmethod
    def load(
        architecture: Architecture,
        tensors: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_batch: int,
        max_context: int,
        bitwise: bool,
    ) -> TorchDecoder:
        weights = load_weights(architecture, tensors, dtype, device, lambda layer: layer)
        return TorchDecoder(architecture, weights, max_batch=max_batch, max_context=max_context, bitwise=bitwise)

    @property
    def cost_key(self) -> str:
        return f"{self.dtype} {self.architecture}"

    def _move(self, slot: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = (torch.tensor(side, device=self.device) for side in (sources, targets))
        for cache in (self._keys, self._values):
            cache[:, slot].index_copy_(2, target, cache[:, slot].index_select(2, source))

    def _copy(self, source: int, target: int, length: int) -> None:
        for cache in (self._keys, self._values):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> Tensor:
        spans = [self._slots.extend(rows) for rows in batch]
        tokens = torch.tensor([t for rows in batch for t in rows.tokens], device=self.device)
        positions = torch.tensor([s.base + len(p) - 1 for s in spans for p in s.paths], device=self.device)
        step = _Step(self.architecture, spans, positions, self._rotations, self.bitwise)
        x = self.embed(tokens)
        states = {0: x}  # by the layers before
        for i in range(len(self._weights.layers)):
            x = self._layer(i, x, step, self._keys[i], self._values[i])
            if i + 1 in self._kept_layers:
                states[i + 1] = x
        if self._kept_layers:
            self.features = torch.cat([states[layer] for layer in self._kept_layers], dim=-1)
        wanted = wanted_rows(batch)
        x = x[torch.tensor(wanted, dtype=torch.long, device=self.device)]
        return self._logits(self._norm(x, self._weights.norm, self._weights.norm_bias))

    @torch.inference_mode()
    def measure(self, rows: int, context: int) -> float:
        """Seconds of a pass, from another of its layers every time and a part of the vocabulary."""
        a = self.architecture
        context = min(context, self.max_context - rows)
        span = Span(0, context, context, [[context + i] for i in range(rows)])  # siblings, right behind the context
        positions = torch.full((rows,), context, device=self.device)
        keys = torch.zeros(1, a.kv_heads, context + rows, a.head_dim, dtype=self.dtype, device=self.device)
        step = _Step(a, [span], positions, self._rotations, self.bitwise)
        x = self.embed(torch.arange(rows, device=self.device) % a.vocab_size)  # others, so that they choose experts
        self._measured = (self._measured + 1) % len(a.layers)
        part = self._weights.head[:: len(a.layers)].contiguous()
        started = self._now()
        self._layer(self._measured, x, step, keys, keys.clone())
        self._linear(self._norm(x, self._weights.norm), part, None)
        return (self._now() - started) * len(a.layers)

    def _now(self) -> float:
        """The time, once the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def recovers(self, error: Exception) -> bool:
        if not recovered(error, self.device):
            return False
        self._slots.forget()
        return True

    def keep_hidden_layers(self, layers: Sequence[int]) -> None:
        self._kept_layers = tuple(layers)

    def embed(self, tokens: Tensor) -> Tensor:
        """[rows] → [rows, hidden]"""
        x = self._weights.embedding[tokens]
        if self.architecture.embed_scale != 1.0:
            x = x * torch.tensor(self.architecture.embed_scale, dtype=self.dtype)
        return x

    def _layer(self, index: int, x: Tensor, step: _Step, keys: Tensor, values: Tensor) -> Tensor:
        """[rows, hidden] → the same; `keys` and `values`: its cache [slots, kv_heads, capacity, head_dim]."""
        w = self._weights.layers[index]
        normed = self._norm(x, w.attention_norm, w.attention_norm_bias)
        x = x + self._scaled(self._attention(index, w, normed, step, keys, values))
        return x + self._scaled(self._mlp(w, self._norm(x, w.mlp_norm, w.mlp_norm_bias)))

    def _scaled(self, update: Tensor) -> Tensor:
        scale = self.architecture.residual_scale
        return update if scale == 1.0 else update * scale

    def _attention(self, index: int, w: LayerWeights, x: Tensor, step: _Step, keys: Tensor, values: Tensor) -> Tensor:
        a, rows = self.architecture, x.shape[0]
        q, k, v = torch.split(self._linear(x, w.qkv, w.qkv_bias), [a.q_width, a.kv_width, a.kv_width], dim=-1)
        if a.qk_norm and a.qk_norm_wide:
            q, k = self._norm(q, w.q_norm), self._norm(k, w.k_norm)
        q, k = q.view(rows, a.heads, a.head_dim), k.view(rows, a.kv_heads, a.head_dim)
        if a.qk_norm and not a.qk_norm_wide:
            q, k = self._norm(q, w.q_norm), self._norm(k, w.k_norm)
        q, k = step.rotate(index, q), step.rotate(index, k)
        start = 0
        for span in step.spans:
            stop = start + len(span.paths)
            keys[span.slot, :, span.first : span.end] = k[start:stop].transpose(0, 1)
            values[span.slot, :, span.first : span.end] = v[start:stop].view(-1, a.kv_heads, a.head_dim).transpose(0, 1)
            start = stop
        out = step.attend(index, q, keys, values).reshape(rows, a.q_width)
        out = self._linear(out, w.o, w.o_bias)
        return out if w.attention_out_norm is None else self._norm(out, w.attention_out_norm)

    def _mlp(self, w: LayerWeights, x: Tensor) -> Tensor:
        if w.router is None:
            out = self._linear(self._gated(self._linear(x, w.gate_up, w.gate_up_bias)), w.down, w.down_bias)
        else:
            out = self._experts(w, w.router, x)
        return out if w.mlp_out_norm is None else self._norm(out, w.mlp_out_norm)

    def _gated(self, gate_up: Tensor) -> Tensor:
        def gated(rows: Tensor) -> Tensor:
            gate, up = rows.chunk(2, dim=-1)
            return (silu(gate) if self.architecture.activation == "silu" else gelu(gate, approximate="tanh")) * up

        return self._in_fixed_rows(gate_up, gated)  # PyTorch's gelu of one row may be another function than of several

    def _experts(self, w: LayerWeights, router: Tensor, x: Tensor) -> Tensor:
        """Every row through its own experts, added up in the order of their numbers whatever other rows chose."""
        a = self.architecture
        shares, chosen = self._linear(x.float(), router, None).softmax(-1).topk(a.experts_used)
        if a.experts_normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            y = self._gated(self._linear(x[rows], w.gate_up[expert], None))
            out[rows] += self._linear(y, w.down[expert], None) * shares[rows, place, None].to(x.dtype)
        return out

    def _logits(self, x: Tensor) -> Tensor:
        """fp32, of normalised states."""
        a, logits = self.architecture, self._head(x)
        if a.logit_scale != 1.0:
            logits = logits * a.logit_scale
        return self._in_fixed_rows(logits, lambda rows: capped(rows, a.logit_cap)) if a.logit_cap else logits

    def _head(self, x: Tensor) -> Tensor:
        """In fp32. bf16 logits tie exactly at one position in sixty; accumulating into fp32 keeps them apart."""
        if self.device.type == "cuda" and self.dtype != torch.float32:
            weight = self._weights.head.t()
            return self._in_fixed_rows(x, lambda rows: torch.mm(rows, weight, out_dtype=torch.float32))
        return self._linear(x, self._weights.head, None).float()

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        typed = None if bias is None else bias.to(x.dtype)
        return self._in_fixed_rows(x, lambda rows: linear(rows, weight, typed))

    def _norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """RMSNorm, LayerNorm where there is a bias, nothing where there is no weight."""
        if weight is None or not len(weight):
            return x

        def norm(rows: Tensor) -> Tensor:
            wide = rows.float()
            if bias is not None:
                wide = wide - wide.mean(-1, keepdim=True)
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.architecture.norm_eps)
            scaled = wide * scale * weight
            return (scaled if bias is None else scaled + bias).to(x.dtype)

        return self._in_fixed_rows(x, norm)

    def _in_fixed_rows(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """function(x) for a row-wise function; in bitwise mode always on BITWISE_ROWS rows, the last ones padding."""
        if not self.bitwise:
            return function(x)
        return torch.cat([function(part) for part in fixed_rows(x)])[: x.shape[0]]


class _Step:
    """What all layers of one pass share: where rows lie, their rotations and what they may see."""

    def __init__(
        self, a: Architecture, spans: list[Span], positions: Tensor, tables: list[tuple[Tensor, Tensor]], bitwise: bool
    ) -> None:
        self.spans = spans
        self._a = a
        self._bitwise = bitwise
        self._rotations = [(cos[positions][:, None], sin[positions][:, None]) for cos, sin in tables]
        windows = {layer.window for layer in a.layers}
        device = positions.device
        if bitwise:
            self._indices = {window: _fixed_index(path_index(spans, window, device)) for window in windows}
        else:
            self._masks = {window: [visibility(s, window, device) for s in spans] for window in windows}

    def rotate(self, layer: int, x: Tensor) -> Tensor:
        cos, sin = self._rotations[self._a.layers[layer].rope]
        return rotated(x, cos, sin)

    def attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        window, scale, cap = self._a.layers[layer].window, self._a.attention_scale, self._a.attention_cap
        if self._bitwise:
            parts = zip(fixed_rows(q), self._indices[window], strict=True)
            return torch.cat([blocked(part, keys, values, index, scale, cap) for part, index in parts])[: q.shape[0]]
        return masked(q, keys, values, self.spans, self._masks[window], scale, cap)


def fixed_rows(x: Tensor) -> tuple[Tensor, ...]:
    """x cut into parts of exactly BITWISE_ROWS rows, zeros at the end."""
    extra = x.new_zeros(-x.shape[0] % BITWISE_ROWS, *x.shape[1:])
    return torch.split(torch.cat([x, extra]), BITWISE_ROWS)


def _fixed_index(index: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, ...]]:
    """`path_index` cut likewise; a padding row looks at one key, so that its softmax is defined."""
    slots, positions, seen = (fixed_rows(part) for part in index)
    seen[-1][:, 0] |= ~seen[-1].any(dim=1)
    return list(zip(slots, positions, seen, strict=True))
