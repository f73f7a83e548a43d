"""A tiny model in the decoder for GPUs, and one that drafts for it; run by Triton's interpreter where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import device_requests
import torch

from outrider.bench.shapes import random_weights
from outrider.engine.request import Request
from outrider.models.architecture import Architecture, LayerShape, Rope
from outrider.models.cuda.decoder import CudaDecoder
from outrider.sampling.params import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16

VOCAB = 90

CONTEXT = 256 if DEVICE.type == "cuda" else 128
"""The interpreter runs every block of it."""

TARGET = Architecture(
    family="llama",
    vocab_size=VOCAB,
    hidden=64,
    heads=2,
    kv_heads=1,
    head_dim=16,
    mlp=96,
    norm_eps=1e-5,
    max_context=512,
    layers=(LayerShape(0, 0), LayerShape(0, 0)),
    ropes=(Rope(10_000.0, 16),),
    tied=True,
    attention_scale=0.25,
)

DRAFT = replace(TARGET, layers=TARGET.layers[:1])


def gpu_decoder(architecture: Architecture, max_batch: int = 3) -> CudaDecoder:
    """The draft's layer is the target's first: it agrees now and then. Weights large enough for layers to matter."""
    weights = random_weights(architecture, DEVICE, DTYPE, seed=1)
    tensors = ((name, tensor * 8 if tensor.dim() > 1 else tensor) for name, tensor in weights)
    return CudaDecoder.load(architecture, tensors, DTYPE, DEVICE, max_batch=max_batch, max_context=CONTEXT)


def request(number: int, prompt: Sequence[int], params: SamplingParams) -> Request:
    return device_requests.made(number, prompt, params, VOCAB, trace=False)
