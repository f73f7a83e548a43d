"""GGUF tensors under their Hugging Face names and in Hugging Face's layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.models.checkpoints.gguf_config import architecture, biases
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.stored import KINDS, Stored

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_OUT_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_SANDWICH = {**_OUT_NORMS, "ffn_norm": "pre_feedforward_layernorm"}
_OTHER = {
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "olmo2": _OUT_NORMS,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
"""What some architectures have beside these or call otherwise."""

_PERMUTED = frozenset({"llama", "smollm3", "granite"})
"""Architectures whose query and key rows llama.cpp's converter reorders."""

_NUMBERS = frozenset({"F32", "F16", "BF16"})
"""Types that are not quantised."""


class GGUFWeights:
    """The weights of a GGUF model. `names` maps Hugging Face's names to the file's own, in file order.

    Every bias the config speaks of is there: one that the file leaves out is zero (files may have biases on queries,
    keys and values alone, Hugging Face's Llama has them on the output too or not at all).
    """

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        self._file = file
        self._arch = architecture(file)
        self._heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        layers = _LAYER | _OTHER.get(self._arch, {})
        self.names = {_translate(file, name, layers): name for name in file.tensors if name != "rope_freqs.weight"}
        parts = [part for option, parts in biases(self._arch).items() if config.get(option) for part in parts]
        self._zeros = {
            name: (file.tensors[f"blk.{i}.{part}.weight"].shape[0],)
            for i in range(config["num_hidden_layers"])
            for part in parts
            if (name := f"model.layers.{i}.{layers[part]}.bias") not in self.names
        }

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, in the order in which `tensors` gives them."""
        return self._zeros | {name: self._file.tensors[source].shape for name, source in self.names.items()}

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in self._zeros.items():  # first, so that a layer is complete with the last of its tensors
            yield name, torch.zeros(shape, dtype=dtype)
        for name, source in self.names.items():
            yield name, self._read(source, dtype)

    def unread(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return self.tensors(dtype)

    def fp8(self) -> None:
        """A GGUF file has no such."""

    def stored(self) -> Iterator[tuple[str, torch.Tensor | Stored]] | None:
        types = {self._file.tensors[source].type_name for source in self.names.values()}
        return self._as_stored() if types - _NUMBERS else None

    def _as_stored(self) -> Iterator[tuple[str, torch.Tensor | Stored]]:
        for name, shape in self._zeros.items():
            yield name, torch.zeros(shape)
        for name, source in self.names.items():
            info = self._file.tensors[source]
            matrix = len(info.shape) >= 2 and "ffn_gate_inp" not in source  # a router is small and decides much
            if matrix and info.type_name in KINDS and info.type_name != "F32":
                rows, heads = self._file.stored(source), self._reordered(source)
                yield name, rows[_unpermute(torch.arange(len(rows)), heads)] if heads else rows
            else:
                yield name, self._read(source, torch.float32)

    def _reordered(self, source: str) -> int | None:
        """Of how many heads llama.cpp's converter reordered the rows; None: it left them."""
        return self._heads.get(source.split(".")[-2]) if self._arch in _PERMUTED else None

    def _read(self, source: str, dtype: torch.dtype) -> torch.Tensor:
        # Gemma multiplies by 1 + weight; GGUF holds the sum, Hugging Face the weight.
        shift = -1.0 if self._arch.startswith("gemma") and source.endswith("norm.weight") else 0.0
        tensor = self._file.read(source, dtype, shift)
        heads = self._reordered(source)
        return _unpermute(tensor, heads) if heads else tensor


def _translate(file: GGUFFile, name: str, layers: Mapping[str, str]) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    pieces = name.split(".")
    if len(pieces) == 2 and pieces[0] in _TOP:
        return f"{_TOP[pieces[0]]}.{pieces[1]}"
    if len(pieces) == 4 and pieces[0] == "blk" and pieces[2] in layers:
        return f"model.layers.{pieces[1]}.{layers[pieces[2]]}.{pieces[3]}"
    raise ModelError(
        f"{file.path} holds a tensor {name}, which Outrider does not know in a "
        f"{file.metadata['general.architecture']} model."
    )


def _unpermute(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's reordering of query and key rows.

    It puts the two halves of a rotary pair next to each other, row 2j + h of a head; Hugging Face keeps them
    half a head apart, row j + h * head_dim/2.
    """
    pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])  # [heads, head_dim/2, 2, ...]
    return pairs.transpose(1, 2).reshape(tensor.shape)
