"""Model shapes without a model: what speed depends on is the size of the weights, so random ones measure it.

Only plain Llama-like models (no biases, no extra norms): the shapes worth measuring, and all a cost twin can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.architecture import LLAMA, Architecture, LayerShape, Rope
from outrider.sampling.noise import hash64

Axis = Literal["vocab", "hidden", "query", "key_value", "mlp"]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

LAYER: Mapping[str, tuple[Axis, ...]] = {
    "input_layernorm": ("hidden",),
    "self_attn.q_proj": ("query", "hidden"),
    "self_attn.k_proj": ("key_value", "hidden"),
    "self_attn.v_proj": ("key_value", "hidden"),
    "self_attn.o_proj": ("hidden", "query"),
    "post_attention_layernorm": ("hidden",),
    "mlp.gate_proj": ("mlp", "hidden"),
    "mlp.up_proj": ("mlp", "hidden"),
    "mlp.down_proj": ("hidden", "mlp"),
}
"""Axes of the tensors of a layer."""

STD = 0.02
"""Standard deviation of random weights: a row of any usual width then keeps the size of what it reads, so nothing
overflows in any dtype."""


def _llama(vocab: int, hidden: int, layers: int, mlp: int, heads: tuple[int, int, int], tied: bool) -> Architecture:
    """`heads`: query heads, key-value heads, width of each."""
    query, key_value, head_dim = heads
    return Architecture(
        family="llama",
        vocab_size=vocab,
        hidden=hidden,
        heads=query,
        kv_heads=key_value,
        head_dim=head_dim,
        mlp=mlp,
        norm_eps=1e-5,
        max_context=8192,
        layers=(LayerShape(rope=0, window=0),) * layers,
        ropes=(Rope(theta=500_000.0, dim=head_dim),),
        tied=tied,
        attention_scale=1 / math.sqrt(head_dim),
    )


SHAPES: Mapping[str, Architecture] = {
    "8b": _llama(128_256, 4096, 32, 14_336, (32, 8, 128), tied=False),
    "1b": _llama(128_256, 2048, 16, 8192, (32, 8, 64), tied=True),
    "135m": _llama(49_152, 576, 30, 1536, (9, 3, 64), tied=True),
}
"""Llama 3.1 8B, Llama 3.2 1B (its usual draft model) and SmolLM2 135M."""


def check_llama_like(a: Architecture) -> None:
    """Raise `ModelError` for what these shapes cannot say."""
    if extras := a.lacking(LLAMA | {"activation", "layers.window"}):
        raise ModelError(
            f"cost twins and random weights are made for plain Llama-like models, and this {a.family} model has "
            f"{extras}; choose a Llama, SmolLM2 or Mistral model"
        )


def sizes(a: Architecture, axis: Axis) -> tuple[int, ...]:
    """How long an axis is, taken apart into what it is made of: query rows are [groups, heads of a group, width]."""
    match axis:
        case "vocab":
            return (a.vocab_size,)
        case "hidden":
            return (a.hidden,)
        case "query":
            return (a.kv_heads, a.heads // a.kv_heads, a.head_dim)
        case "key_value":
            return (a.kv_heads, a.head_dim)
        case "mlp":
            return (a.mlp,)


def tensor_axes(a: Architecture) -> Iterator[tuple[str, tuple[Axis, ...]]]:
    """Name and axes of every tensor of a checkpoint, in its order; vectors are the norms."""
    check_llama_like(a)
    yield EMBEDDING, ("vocab", "hidden")
    for i in range(len(a.layers)):
        for part, axes in LAYER.items():
            yield f"model.layers.{i}.{part}.weight", axes
    yield "model.norm.weight", ("hidden",)
    if not a.tied:
        yield HEAD, ("vocab", "hidden")


def tensor_shape(a: Architecture, axes: tuple[Axis, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes(a, axis)) for axis in axes)


def normal(
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    *,
    mean: float = 0.0,
    std: float = STD,
) -> Tensor:
    """Random numbers made where they will be used, and the same whatever was made before: keyed by name and seed."""
    generator = torch.Generator(device).manual_seed(hash64(name, seed))
    return torch.empty(shape, device=device, dtype=dtype).normal_(mean, std, generator=generator)


def random_weights(
    architecture: Architecture, device: torch.device, dtype: torch.dtype, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """A model of this shape that says nothing: checkpoint tensors one at a time, made on `device`, norms in fp32.

    What a layer adds to the residual is made small, so that activations stay of size one through any depth.
    """
    quiet = STD / math.sqrt(2 * len(architecture.layers))
    for name, axes in tensor_axes(architecture):
        shape = tensor_shape(architecture, axes)
        if len(axes) == 1:
            yield name, normal(name, shape, device, torch.float32, seed, mean=1.0)
        else:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            yield name, normal(name, shape, device, dtype, seed, std=quiet if adds else STD)
