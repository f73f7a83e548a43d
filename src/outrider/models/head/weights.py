"""A head's weights as decoders use them: read from a checkpoint, matrices in bf16 or fp32, or in int8 with scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import DrafterError
from outrider.models.head.config import HeadConfig
from outrider.models.precision import blocks, dequantised, quantise
from outrider.models.weights import LayerWeights

SCALES = ".scales"
"""Suffix of the fp32 scales [out] that make an int8 matrix whole."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A matrix [out, in]: as it is, or int8 with a scale per row or per block of one (`quantise`)."""

    values: Tensor
    scales: Tensor | None = None

    def wide(self, dtype: torch.dtype) -> Tensor:
        if self.scales is None:
            return self.values.to(dtype)
        return dequantised(self.values, self.scales).to(dtype)

    def narrow(self) -> Scaled:
        """In int8."""
        if self.scales is not None:
            return self
        values = torch.empty(self.values.shape, dtype=torch.int8)
        rows, columns = self.values.shape
        scales = torch.empty(rows, blocks(columns), dtype=torch.float32)
        quantise(self.values.float(), values, scales)
        return Scaled(values, scales)

    @staticmethod
    def stacked(parts: list[Scaled]) -> Scaled:
        """Rows one below the other; all parts in one form."""
        scales = [part.scales for part in parts if part.scales is not None]
        return Scaled(torch.cat([part.values for part in parts]), torch.cat(scales) if scales else None)


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Layer 0's qkv is [q + 2 kv, 2 * hidden]: the embedding's half, normalised by `attention_norm`, then the state's,
    normalised by `hidden_norm`."""

    fc: Scaled
    """[hidden, layers * target_hidden]"""
    hidden_norm: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    lm_head: Scaled
    """[draft_vocab, hidden]"""
    ids: Tensor
    """[draft_vocab] int64: the target's id of each draft id, rising."""

    @property
    def matrix_bytes(self) -> int:
        matrices = [self.fc.values, self.lm_head.values]
        for layer in self.layers:
            matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
        return sum(matrix.nbytes for matrix in matrices)

    @staticmethod
    def of(
        config: HeadConfig, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype | None
    ) -> HeadWeights:
        """`dtype` None: matrices in int8. Norms are fp32."""

        def matrix(name: str) -> Scaled:
            found = Scaled(tensors[f"{name}.weight"], tensors.get(f"{name}{SCALES}"))
            if dtype is None:
                narrow = found.narrow()
                assert narrow.scales is not None
                return Scaled(narrow.values.to(device), narrow.scales.to(device))
            return Scaled(found.wide(dtype).to(device))

        def norm(name: str) -> Tensor:
            return tensors[f"{name}.weight"].float().to(device)

        def layer(i: int) -> LayerWeights:
            at = f"layers.{i}."
            qkv = Scaled.stacked([matrix(f"{at}self_attn.{part}_proj") for part in "qkv"])
            gate_up = Scaled.stacked([matrix(f"{at}mlp.{part}_proj") for part in ("gate", "up")])
            o, down = matrix(f"{at}self_attn.o_proj"), matrix(f"{at}mlp.down_proj")
            return LayerWeights(
                qkv=qkv.values,
                o=o.values,
                gate_up=gate_up.values,
                down=down.values,
                attention_norm=norm(f"{at}input_layernorm"),
                mlp_norm=norm(f"{at}post_attention_layernorm"),
                qkv_scales=qkv.scales,
                o_scales=o.scales,
                gate_up_scales=gate_up.scales,
                down_scales=down.scales,
            )

        count = len(config.architecture.layers)
        return HeadWeights(
            fc=matrix("fc"),
            hidden_norm=norm("layers.0.hidden_norm"),
            layers=[layer(i) for i in range(count)],
            norm=norm("norm"),
            lm_head=matrix("lm_head"),
            ids=target_ids(tensors["d2t"]).to(device),
        )


def target_ids(d2t: Tensor) -> Tensor:
    """`d2t` holds offsets: target id = draft id + d2t[draft id]."""
    return torch.arange(len(d2t)) + d2t.to(torch.int64).cpu()


def check_shapes(config: HeadConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise `DrafterError` naming the first tensor that is missing or has another shape than the config says."""
    wanted = tensor_shapes(config)
    for name, shape in list(wanted.items()):
        if name in tensors and tensors[name].dtype == torch.int8:
            wanted[name.removesuffix(".weight") + SCALES] = shape[:1]
    for name, shape in wanted.items():
        if name not in tensors:
            raise DrafterError(f"the head in {where} lacks the tensor {name!r}; is the download complete?")
        if (found := tuple(tensors[name].shape)) != shape:
            raise DrafterError(
                f"the head in {where} has {name!r} of shape {list(found)}, its config.json asks for {list(shape)}"
            )
    ids = target_ids(tensors["d2t"])
    if int(ids.min()) < 0 or int(ids.max()) >= config.target_vocab or len(set(ids.tolist())) < len(ids):
        raise DrafterError(f"the head in {where} maps draft ids outside the target's vocabulary or twice to one token")


def tensor_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """What a checkpoint must hold (beside `t2d`, which follows from `d2t`)."""
    a = config.architecture
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (a.hidden, config.feature_width),
        "norm.weight": (a.hidden,),
        "lm_head.weight": (a.vocab_size, a.hidden),
        "d2t": (a.vocab_size,),
        "layers.0.hidden_norm.weight": (a.hidden,),
    }
    for i in range(len(a.layers)):
        width = a.hidden * (2 if i == 0 else 1)
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (a.hidden,),
            f"layers.{i}.post_attention_layernorm.weight": (a.hidden,),
            f"layers.{i}.self_attn.q_proj.weight": (a.q_width, width),
            f"layers.{i}.self_attn.k_proj.weight": (a.kv_width, width),
            f"layers.{i}.self_attn.v_proj.weight": (a.kv_width, width),
            f"layers.{i}.self_attn.o_proj.weight": (a.hidden, a.q_width),
            f"layers.{i}.mlp.gate_proj.weight": (a.mlp, a.hidden),
            f"layers.{i}.mlp.up_proj.weight": (a.mlp, a.hidden),
            f"layers.{i}.mlp.down_proj.weight": (a.hidden, a.mlp),
        }
    return shapes
