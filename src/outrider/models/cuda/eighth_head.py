"""A head's matrices in 8 bits with a scale per output, in the words that kernels read (`words.py`)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outrider.models.cuda.decoder import in_words
from outrider.models.cuda.tiling import word_group
from outrider.models.cuda.words import arranged
from outrider.models.head.config import HeadConfig
from outrider.models.head.weights import HeadWeights, Scaled
from outrider.models.precision import quantise_channels
from outrider.models.weights import LayerWeights


def in_eighth(config: HeadConfig, weights: HeadWeights) -> HeadWeights:
    """As a model in fp8: layers in e4m3, the output layer in int8, which is nearer there."""

    def layer(wide: LayerWeights) -> LayerWeights:
        qkv, o, gate_up, down = (_rounded(m) for m in (wide.qkv, wide.o, wide.gate_up, wide.down))
        narrow = replace(
            wide,
            qkv=qkv.values,
            o=o.values,
            gate_up=gate_up.values,
            down=down.values,
            qkv_scales=qkv.scales,
            o_scales=o.scales,
            gate_up_scales=gate_up.scales,
            down_scales=down.scales,
        )
        return in_words(config.architecture, narrow)

    def whole(wide: Scaled, dtype: torch.dtype = torch.float8_e4m3fn) -> Scaled:
        narrow = _rounded(wide.values, dtype)
        arranged(narrow.values, word_group(*narrow.values.shape))
        return narrow

    layers = [layer(wide) for wide in weights.layers]
    return replace(weights, fc=whole(weights.fc), layers=layers, lm_head=whole(weights.lm_head, torch.int8))


def _rounded(wide: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Scaled:
    values = torch.empty(wide.shape, dtype=dtype, device=wide.device)
    scales = torch.empty(len(wide), dtype=torch.float32, device=wide.device)
    quantise_channels(wide, values, scales)
    return Scaled(values, scales)
