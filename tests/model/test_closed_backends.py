"""An option of architectures that is in no list: every decoder declines it, and the next backend is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gguf import bpe_metadata, write_hf_model
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.errors import InvalidRequest
from outrider.models import load
from outrider.models.architecture import LLAMA, Architecture, LayerShape, Rope
from outrider.models.backend import DecoderBackend, Placement
from outrider.models.backends import BACKENDS
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.hf import HFModel
from outrider.models.native.decoder import NativeDecoder
from outrider.models.precision import FP32, INT8
from outrider.models.torch_decoder import TorchDecoder
from outrider.train.teacher import Teacher

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
PLACE = Placement(torch.device("cpu"), FP32, None, 1, 2, 64)
from_config = Architecture.from_config


@dataclass(frozen=True, slots=True)
class NovelArchitecture(Architecture):
    clamp: float = 0.0
    """What a family of models has tomorrow."""


@dataclass(frozen=True, slots=True)
class NovelRope(Rope):
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class NovelLayer(LayerShape):
    gated: bool = False


def values(described: Any) -> dict[str, Any]:
    return {f.name: getattr(described, f.name) for f in fields(described)}


def clamped(config: Mapping[str, Any], clamp: float = 1.0) -> Architecture:
    return NovelArchitecture(**values(from_config(config)), clamp=clamp)


def stretched(config: Mapping[str, Any]) -> Architecture:
    known = from_config(config)
    return replace(known, ropes=tuple(NovelRope(**values(rope), stretch=2.0) for rope in known.ropes))


def gated(config: Mapping[str, Any]) -> Architecture:
    known = from_config(config)
    return replace(known, layers=(*known.layers[1:], NovelLayer(**values(known.layers[0]), gated=True)))


NOVEL = {"clamp": clamped, "ropes.stretch": stretched, "layers.gated": gated}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    torch.manual_seed(0)
    config = {name: value for name, value in CONFIG.items() if name != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **config))
    write_hf_model(tmp_path / "model.gguf", model, bpe_metadata())
    return open_checkpoint(str(tmp_path / "model.gguf"), SilentProgress())


def decoders() -> list[DecoderBackend]:
    found = [backend for backend in BACKENDS if isinstance(backend, DecoderBackend)]
    assert len(found) == 3
    return found


@pytest.mark.parametrize("name", NOVEL)
def test_every_decoder_declines_an_option_it_does_not_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Architecture, "from_config", staticmethod(NOVEL[name]))
    for backend in decoders():
        assert backend.unsupported_reason(CONFIG, PLACE) == f"it does not do {name}"
    for known in (LLAMA, Teacher.known):  # cost twins, drafts cut from targets, heads; and training
        assert Architecture.from_config(CONFIG).lacking(known) == name


def test_a_neutral_value_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clamped(CONFIG, 0.0).features == from_config(CONFIG).features == {"attention_scale"}


@pytest.mark.parametrize("name", NOVEL)
def test_the_next_backend_is_taken(name: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load.load_model(checkpoint, PLACE), NativeDecoder)
    monkeypatch.setattr(Architecture, "from_config", staticmethod(NOVEL[name]))
    assert isinstance(load.load_model(checkpoint, PLACE), HFModel)
    torch_backend = decoders()[2]
    monkeypatch.setattr(type(torch_backend), "known", torch_backend.known | {name})  # until their kernels learn it
    assert isinstance(load.load_model(checkpoint, PLACE), TorchDecoder)


def test_where_nobody_is_left_one_sentence_says_why(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Architecture, "from_config", staticmethod(clamped))
    with pytest.raises(InvalidRequest, match="int8 weights need the compiled CPU decoder, but it does not do clamp"):
        load.load_model(checkpoint, replace(PLACE, precision=INT8))
    with pytest.raises(InvalidRequest, match="bitwise: it does not do clamp, and transformers' own"):
        load.load_model(checkpoint, replace(PLACE, bitwise=True))


def test_pytorch_knows_every_option() -> None:
    """The reference: what it does not compute is no option that we describe."""
    names = {f.name for f in fields(Architecture)} - Architecture.COMMON
    names |= {f"ropes.{f.name}" for f in fields(Rope) if f.name not in Rope.COMMON}
    names |= {f"layers.{f.name}" for f in fields(LayerShape) if f.name not in LayerShape.COMMON}
    assert decoders()[2].known == names
