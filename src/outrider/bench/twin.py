"""Cost twins: a real small model grown to the shape of a big one, computing the same function in exact arithmetic.

The same text and the same acceptance at the cost of the big model. It rests on one invariant: the residual stream is
zero beyond the source's width, because nothing that writes to it (embeddings, o_proj, down_proj) has weights there.
Whatever reads it (q, k, v, gate, up, lm_head) may therefore hold anything there, and holds random numbers.

* Norms average over more numbers, all of them zero: mean square and eps shrink by source/twin width, so the weights
  are multiplied by the root of that (in fp32, not to round them).
* Heads keep their width and rotary positions. Group g of the source becomes the first heads of group g of the twin;
  other heads, and other MLP neurons, compute random things that meet zero columns of o_proj and down_proj.
* Extra layers come last and add zero: their o_proj and down_proj are zero.
* Embeddings are untied. Logits beyond the source's vocabulary are random; `twin_model.CutVocabulary` cuts them off.

A twin is not a model: whatever is reported of one must say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.bench.shapes import EMBEDDING, HEAD, Axis, check_llama_like, normal, sizes, tensor_axes, tensor_shape
from outrider.errors import InvalidRequest, ModelError
from outrider.models.architecture import Architecture

_ADDS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What adds to the residual stream; the embedding, which starts it, has its own rule."""


@dataclass(frozen=True, slots=True)
class TwinShape:
    """What to grow a model to. Heads are given by their total width: each stays as wide as the source's."""

    hidden: int
    layers: int
    mlp: int
    query_width: int
    key_value_width: int
    vocab_size: int


TWINS: Mapping[str, TwinShape] = {
    "8b": TwinShape(4096, 32, 14_336, query_width=4096, key_value_width=1024, vocab_size=128_256),
    "1b": TwinShape(2048, 30, 3584, query_width=2048, key_value_width=512, vocab_size=128_256),
    "tiny": TwinShape(768, 32, 2048, query_width=1024, key_value_width=256, vocab_size=50_304),
}
"""8b: Llama 3.1 8B's weights exactly, and its cache (64/16 heads of 64 hold as much as 32/8 of 128).
1b: the bytes of Llama 3.2 1B in 30 layers instead of 16 (a twin needs its source's 30), so the MLP is narrower.
tiny: twice the default model, for a CPU."""


def twin_shape(name: str) -> TwinShape:
    if name not in TWINS:
        raise InvalidRequest(f"twin: there is no shape {name!r}; choose {', '.join(TWINS)}")
    return TWINS[name]


def twin_architecture(architecture: Architecture, shape: TwinShape) -> Architecture:
    """The source grown to `shape`; `ModelError` names what does not fit."""
    check_llama_like(architecture)
    a, dim = architecture, architecture.head_dim
    if shape.key_value_width % dim or shape.query_width % shape.key_value_width:
        raise ModelError(
            f"a twin with {shape.query_width} query and {shape.key_value_width} key-value columns cannot be cut into "
            f"whole groups of heads {dim} wide; choose multiples of the source's"
        )
    twin = replace(
        a,
        vocab_size=shape.vocab_size,
        hidden=shape.hidden,
        heads=shape.query_width // dim,
        kv_heads=shape.key_value_width // dim,
        mlp=shape.mlp,
        norm_eps=a.norm_eps * a.hidden / shape.hidden,
        layers=a.layers + a.layers[-1:] * (shape.layers - len(a.layers)),
        tied=False,
    )
    needed = {
        "width": (shape.hidden, a.hidden),
        "layers": (shape.layers, len(a.layers)),
        "MLP width": (shape.mlp, a.mlp),
        "vocabulary": (shape.vocab_size, a.vocab_size),
        "key-value heads": (twin.kv_heads, a.kv_heads),
        "query heads per key-value head": (twin.heads // twin.kv_heads, a.heads // a.kv_heads),
    }
    for name, (given, least) in needed.items():
        if given < least:
            raise ModelError(
                f"a twin cannot be smaller than its source: {name} {given}, but the source has {least}; "
                "choose a larger shape or a smaller model"
            )
    return twin


def twin_tensors(
    architecture: Architecture,
    shape: TwinShape,
    tensors: Iterable[tuple[str, Tensor]],
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> Iterator[tuple[str, Tensor]]:
    """The twin's checkpoint tensors from its source's (`tensors`, of `architecture`, in any order), one at a time.

    Made on `device` in `dtype`, norms in fp32; the host holds no more than one tensor of the source.
    """
    twin = twin_architecture(architecture, shape)
    growth = _Growth(architecture, twin, device, dtype, seed)
    grown = dict(tensor_axes(replace(architecture, tied=False)))
    for given, tensor in tensors:
        name = given if given == HEAD else f"model.{given.removeprefix('model.')}"
        if name.endswith("rotary_emb.inv_freq") or (name == HEAD and architecture.tied):
            continue
        if name not in grown:
            raise ModelError(f"the checkpoint holds {given!r}, which a {architecture.family} model does not have")
        yield name, growth.grow(name, grown[name], tensor)
        if name == EMBEDDING and architecture.tied:
            yield HEAD, growth.grow(HEAD, grown[HEAD], tensor)
    for name, axes in tensor_axes(twin):
        if name not in grown:  # a layer the source does not have
            yield name, growth.filler(name, axes)


@dataclass(frozen=True, slots=True)
class _Growth:
    source: Architecture
    twin: Architecture
    device: torch.device
    dtype: torch.dtype
    seed: int

    def grow(self, name: str, axes: tuple[Axis, ...], tensor: Tensor) -> Tensor:
        """The twin's tensor: what an extra layer would have, and the source's numbers in their places."""
        if tuple(tensor.shape) != tensor_shape(self.source, axes):
            raise ModelError(
                f"the checkpoint's {name!r} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(tensor_shape(self.source, axes))}"
            )
        out = self.filler(name, axes)
        values = tensor.to(self.device, out.dtype)
        if len(axes) == 1:
            values = values * self._norm_scale
        # Axes taken apart (heads into groups), every part of the source's is the first of the twin's.
        places = [n for axis in axes for n in sizes(self.source, axis)]
        room = out.view([n for axis in axes for n in sizes(self.twin, axis)])
        room[tuple(slice(n) for n in places)] = values.reshape(places)
        return out

    def filler(self, name: str, axes: tuple[Axis, ...]) -> Tensor:
        """Random numbers, but zeros wherever a number would reach the residual stream."""
        size = tensor_shape(self.twin, axes)
        if len(axes) == 1:
            scale = self._norm_scale
            return normal(name, size, self.device, torch.float32, self.seed, mean=scale, std=0.1 * scale)
        if name.endswith(_ADDS):
            return torch.zeros(size, device=self.device, dtype=self.dtype)
        out = normal(name, size, self.device, self.dtype, self.seed)
        if name == EMBEDDING:
            out[:, self.source.hidden :] = 0
        return out

    @property
    def _norm_scale(self) -> float:
        return math.sqrt(self.source.hidden / self.twin.hidden)
