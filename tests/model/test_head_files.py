"""Heads on disk: what is written is what is read, in the layout that others read too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_head import config_of, random_head
from tiny_models import architecture, reference, target_of

from outrider.errors import DrafterError
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.config import HeadConfig, default_aux_hidden_layers
from outrider.models.head.load import place_head
from outrider.models.head.torch_head import as_module
from outrider.models.head.weights import SCALES
from outrider.train.quantize import narrowed

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def written(folder: Path, head: HeadCheckpoint | None = None) -> HeadCheckpoint:
    head = head or random_head(config_of(architecture(), draft_vocab=40, layers=2))
    head.write(folder)
    return head


def config_in(folder: Path, change: Callable[[dict[str, Any]], object] = lambda config: None) -> dict[str, Any]:
    """The config.json, after a change to it."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_what_is_written_is_read(tmp_path: Path, compact: bool, norm: bool) -> None:
    config = config_of(architecture(), draft_vocab=40, layers=2, norm=norm)
    head = replace(random_head(config), about={"target": "tiny", "vocabulary": "abc"})
    head.write(tmp_path, narrowed(head.tensors, {}) if compact else None)
    found = HeadCheckpoint.read(tmp_path)
    assert found.config == config
    assert found.about == {**head.about, "target_layers": 3}
    ours, theirs = as_module(head).state_dict(), as_module(found).state_dict()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, atol=0.1 * tensor.abs().max() if compact else 0, rtol=0.01)
    assert torch.equal(found.tensors["d2t"].long(), head.tensors["d2t"])


def test_the_older_compact_form_is_still_read(tmp_path: Path) -> None:
    head = written(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if name.endswith(".weight") and tensor.dim() == 2:
            scales = tensor.float().abs().amax(1) / 127
            values = (tensor / scales[:, None]).round().to(torch.int8)
            tensors |= {name: values, name.removesuffix(".weight") + SCALES: scales}
    save_file(tensors, tmp_path / "model.safetensors")
    ours, theirs = as_module(head).state_dict(), as_module(HeadCheckpoint.read(tmp_path)).state_dict()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, atol=0.01, rtol=0.01)


def test_readable_by_others_in_the_house(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        written(tmp_path)
    finally:
        os.umask(before)
    assert {(path.name, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {
        ("config.json", 0o644),
        ("model.safetensors", 0o644),
    }


def test_the_layout_vllm_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    head = written(tmp_path)
    config = config_in(tmp_path)
    layers = config["transformer_layer_config"]
    assert "model_type" not in config
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3]
    assert layers["num_aux_hidden_states"] == 3
    assert layers["vocab_size"] == 97
    assert config["draft_vocab_size"] == 40
    tensors = load_file(tmp_path / "model.safetensors")
    ids = torch.arange(40) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)
    assert torch.equal(ids, torch.arange(40) + head.tensors["d2t"])
    assert all(t.dtype == torch.bfloat16 for name, t in tensors.items() if name not in ("d2t", "t2d"))
    assert not [name for name in tensors if name.startswith("model.")]


@pytest.mark.parametrize(
    "rope",
    [{"rope_theta": 5e5}, {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}, {"rope_theta": 5e5, **LLAMA3}],
)
def test_rotary_embeddings_survive(tmp_path: Path, rope: dict[str, Any]) -> None:
    target = architecture(rope_parameters=rope)
    head = written(tmp_path, random_head(config_of(target, draft_vocab=40)))
    assert head.config.architecture.ropes == target.ropes
    assert HeadCheckpoint.read(tmp_path).config.architecture.ropes == target.ropes
    layers = config_in(tmp_path)["transformer_layer_config"]
    assert layers["rope_theta"] == rope["rope_theta"]
    assert layers.get("rope_parameters", rope) == rope


@pytest.mark.parametrize("layers", range(1, 12))
def test_default_aux_hidden_layers_rise(layers: int) -> None:
    read = default_aux_hidden_layers(layers)
    assert list(read) == sorted(set(read))
    assert 0 <= min(read) <= max(read) <= layers
    assert default_aux_hidden_layers(30) == (2, 15, 27)
    assert HeadConfig.beside(architecture(num_hidden_layers=layers), 40, 1).aux_hidden_layers == read


@pytest.mark.parametrize("read", [(2, 1), (1, 1, 2), (4,), (-1, 2), ()])
def test_other_layers_are_refused(read: tuple[int, ...]) -> None:
    with pytest.raises(DrafterError, match="layers"):
        HeadConfig.beside(architecture(), 40, 1, read)


def by_others(config: dict[str, Any]) -> None:
    del config["outrider"]


def test_a_head_by_others_runs(tmp_path: Path) -> None:
    """Nothing of ours in its config, a tensor that we do not need, and the layer's other name."""
    from safetensors.torch import load_file, save_file

    head = written(tmp_path)
    config_in(tmp_path, by_others)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    save_file({**tensors, "embed_tokens.weight": torch.zeros(97, 48)}, tmp_path / "model.safetensors")
    found = HeadCheckpoint.read(tmp_path)
    assert found.config.target_layers == 0
    for kind in ("native", "torch"):
        assert place_head(found, target_of(reference("llama"), kind)).aux_hidden_layers == head.config.aux_hidden_layers


def test_a_missing_list_of_taps_means_the_usual_ones(tmp_path: Path) -> None:
    eight = architecture(num_hidden_layers=8)
    head = written(tmp_path, random_head(config_of(eight, draft_vocab=40, aux_hidden_layers=(1, 2, 3))))

    def unsaid(config: dict[str, Any]) -> None:
        by_others(config)
        del config["eagle_aux_hidden_state_layer_ids"]

    config_in(tmp_path, unsaid)
    found = HeadCheckpoint.read(tmp_path)
    assert found.for_target(eight).config.aux_hidden_layers == (2, 4, 5)
    assert found.for_target(eight).config.feature_width == head.config.feature_width
    with pytest.raises(DrafterError, match="another target"):
        found.for_target(architecture(num_hidden_layers=4))  # has not three of them


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen3"}, "qwen3"),
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu_new"}, "gelu"),
        ({"attention_bias": True}, "bias"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"num_hidden_layers": "many"}, "does not describe a head"),
    ],
)
def test_layers_of_other_kinds_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    written(tmp_path)
    config_in(tmp_path, lambda config: config["transformer_layer_config"].update(change))
    with pytest.raises(DrafterError, match=said):
        HeadCheckpoint.read(tmp_path)


def test_further_norms_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    config_in(tmp_path, lambda config: config.update(norm_before_fc=True))
    with pytest.raises(DrafterError, match="norm_before_fc"):
        HeadCheckpoint.read(tmp_path)
