"""A head on disk: the `speculators` EAGLE-3 layout (config.json, model.safetensors), so that vLLM loads it as it is.

The compact form is the same folder with matrices in a few bits (packed.py); only Outrider reads that one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from outrider.errors import DrafterError, ModelError
from outrider.models.architecture import LLAMA, Architecture, Rope
from outrider.models.checkpoints.safetensors_file import SafetensorsFile
from outrider.models.head.config import HeadConfig
from outrider.models.head.packed import Packed, widened
from outrider.models.head.weights import check_shapes

CONFIG, WEIGHTS = "config.json", "model.safetensors"
VOCABULARY = "vocabulary"
"""In `about`: `Tokenizer.fingerprint` of the target's."""


@dataclass(frozen=True)
class HeadCheckpoint:
    """`tensors` under their checkpoint names, `d2t` among them; shapes are checked."""

    config: HeadConfig
    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]
    """Where it comes from: target, data, settings, measured acceptance."""

    @staticmethod
    def read(folder: Path) -> HeadCheckpoint:
        config, about = _read_config(folder)
        try:
            file = SafetensorsFile.open(folder / WEIGHTS)
        except ModelError as error:
            raise DrafterError(f"the head in {folder} cannot be read: {error}") from error
        tensors = {name: file.read(name) for name in file.entries}
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        try:
            tensors = widened(tensors)
        except (KeyError, ValueError) as error:
            raise DrafterError(f"the head in {folder} lacks a part of a matrix ({error}); fetch it again") from error
        check_shapes(config, tensors, str(folder))
        return HeadCheckpoint(config, tensors, about)

    def for_target(self, target: Architecture) -> HeadCheckpoint:
        """As read beside this target; `DrafterError` where the two do not fit."""
        return replace(self, config=self.config.for_target(target))

    def write(self, folder: Path, packed: Mapping[str, Packed] | None = None) -> None:
        """In bf16; or in the compact form, if all matrices are `packed`. Each file appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        packed = packed or {}
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            if (matrix := name.removesuffix(".weight")) in packed:
                tensors |= packed[matrix].tensors(matrix)
            elif name not in ("d2t", "t2d"):
                tensors[name] = tensor.to(torch.bfloat16)
        d2t = self.tensors["d2t"].to(torch.int64)
        tensors["d2t"] = d2t.to(torch.int32) if packed else d2t
        if not packed:
            t2d = torch.zeros(self.config.target_vocab, dtype=torch.bool)
            t2d[torch.arange(len(d2t)) + d2t] = True
            tensors["t2d"] = t2d
        data = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
        _replace(folder / WEIGHTS, lambda path: path.write_bytes(data))
        text = json.dumps(_config_json(self.config, self.about), indent=2) + "\n"
        _replace(folder / CONFIG, lambda path: path.write_text(text))


def _config_json(config: HeadConfig, about: Mapping[str, Any]) -> dict[str, Any]:
    a = config.architecture
    layers = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": a.hidden,
        "intermediate_size": a.mlp,
        "num_hidden_layers": len(a.layers),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_eps,
        "max_position_embeddings": a.max_context,
        **_rope_json(a.ropes[0]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.target_vocab,
        "num_aux_hidden_states": len(config.aux_hidden_layers),
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_hidden_layers),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "transformer_layer_config": layers,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 5,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "name_or_path": about.get("target", ""),
                "architectures": ["LlamaForCausalLM"],
            },
        },
        "outrider": {**about, "target_layers": config.target_layers},
    }


def _rope_json(rope: Rope) -> dict[str, Any]:
    """As `Architecture.from_config` reads it, and vLLM: a scaled rotary embedding is told by `rope_parameters`."""
    if rope.llama3 is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.llama3.low_freq_factor,
            "high_freq_factor": rope.llama3.high_freq_factor,
            "original_max_position_embeddings": int(rope.llama3.original_context),
        }
    elif rope.factor != 1.0:
        scaling = {"rope_type": "linear", "factor": rope.factor}
    else:
        return {"rope_theta": rope.theta}
    return {"rope_theta": rope.theta, "rope_parameters": {"rope_theta": rope.theta, **scaling}}


def _read_config(folder: Path) -> tuple[HeadConfig, Mapping[str, Any]]:
    try:
        raw = json.loads((folder / CONFIG).read_text())
    except OSError as error:
        raise DrafterError(f"no head in {folder}: its config.json cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DrafterError(f"{folder / CONFIG} is not valid JSON ({error}); fetch the head again") from error
    if not isinstance(raw, dict) or raw.get("speculators_model_type") != "eagle3":
        raise DrafterError(
            f"{folder} holds no EAGLE-3 head: its config.json does not say speculators_model_type eagle3"
        )
    try:
        layers = dict(raw["transformer_layer_config"])
        vocab = int(layers["vocab_size"])
        layers |= {"vocab_size": raw["draft_vocab_size"], "tie_word_embeddings": False}
        architecture = Architecture.from_config(layers)
        about = dict(raw.get("outrider") or {})
        _check_kind(raw, architecture, folder)
        return HeadConfig(
            architecture=architecture,
            aux_hidden_layers=tuple(int(layer) for layer in raw.get("eagle_aux_hidden_state_layer_ids") or ()),
            target_hidden=int(raw.get("target_hidden_size") or architecture.hidden),
            target_vocab=vocab,
            target_layers=int(about.get("target_layers", 0)),
            norm_before_residual=bool(raw.get("norm_before_residual", True)),
            acceptance=_acceptance(about),
        ), about
    except ModelError as error:
        raise DrafterError(f"the head in {folder} cannot be run: {error}; use another drafter") from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise DrafterError(f"{folder / CONFIG} does not describe a head ({error!r}); fetch it again") from error


def _acceptance(about: Mapping[str, Any]) -> tuple[float, ...]:
    """What training has measured."""
    found = tuple(float(each) for each in dict(about.get("held_out") or {}).get("per_position") or ())
    if not all(0 <= each <= 1 for each in found):
        raise ValueError(f"held_out.per_position {found}")
    return found


def _check_kind(raw: Mapping[str, Any], architecture: Architecture, folder: Path) -> None:
    """Refuse heads that compute something else than ours, whatever their tensors are called."""
    a = architecture
    others = [name for name in ("norm_before_fc", "fc_norm", "norm_output") if raw.get(name)]
    if extras := a.lacking(LLAMA | {"activation"}):
        others.append(extras)
    if a.family != "llama" or a.activation != "silu":
        others.insert(0, f"layers of the kind {a.family} ({a.activation})")
    if others:
        raise DrafterError(
            f"the head in {folder} has {', '.join(others)}, which Outrider does not run; use another drafter"
        )


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    half = path.with_name(path.name + ".part")
    make(half)
    os.replace(half, path)
