"""`--start-from`: a head or draft model that there is already, to be trained further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.model import check_vocabularies
from outrider.errors import TrainingError
from outrider.models.architecture import Architecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.hf_folder import read_json
from outrider.models.head.checkpoint import CONFIG, WEIGHTS, HeadCheckpoint
from outrider.models.head.load import read_head
from outrider.models.head.module import HeadModule
from outrider.models.head.shipped import shipped_head
from outrider.models.head.weights import target_ids
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights
from outrider.train.draft_student import DraftModule, draft_from_target
from outrider.train.grow import grown, most_written
from outrider.train.settings import SHIPPED, Start, TrainConfig, as_text, checksum, other_shape

_PASSED_ON = ("command", "trained", "data", "held_out", "started_from")
"""Of what a start says about itself."""


def look(start_from: str, model: str, draft_model: bool) -> Start:
    """What settings follow from it. Whether it fits the target is checked when that is open."""
    folder = folder_of(start_from, model)
    name = start_from if start_from == SHIPPED else str(folder.resolve())
    if not draft_model:
        head = HeadCheckpoint.read(folder).config
        return Start(name, checksum(folder / WEIGHTS), len(head.architecture.layers), head.draft_vocab)
    config = read_json(folder / CONFIG)
    if "speculators_model_type" in config:
        raise TrainingError(f"--start-from: {start_from} holds a head; leave --draft-model out to train it further")
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        raise TrainingError(f"--start-from: {start_from} holds no draft model that `outrider train` made")
    return Start(name, checksum(folder / WEIGHTS), layers, None)


def folder_of(start_from: str, model: str) -> Path:
    if start_from != SHIPPED:
        return Path(start_from).expanduser()
    folder = shipped_head(model)
    if folder is None:
        raise TrainingError(f"--start-from: no head for {model} comes with Outrider; name a folder, or leave it out")
    return folder


class HeadStart:
    """A head that fits the target. What it has it keeps; it may be given more to draft and more to read."""

    def __init__(self, settings: TrainConfig, target: Checkpoint, architecture: Architecture) -> None:
        assert settings.start_from is not None
        folder = folder_of(settings.start_from, settings.model)
        self._head = read_head(folder, target.tokenizer).for_target(architecture)
        self.about = _about(settings, self._head.about)
        has = self._head.config.aux_hidden_layers
        self._wanted, self._reads = settings.draft_vocab, settings.tapped or has
        if not set(has) <= set(self._reads):
            raise other_shape("taps", as_text(has), settings.taps)

    def ids(self, counts: Tensor) -> Tensor:
        """What it drafts, rising; new tokens are those of which there are most."""
        return most_written(counts, self._wanted, keep=target_ids(self._head.tensors["d2t"]))

    def module(self, ids: Tensor, target: DecoderWeights[LayerWeights]) -> HeadModule:
        has = self._head.config
        wider = replace(has, architecture=replace(has.architecture, vocab_size=len(ids)), aux_hidden_layers=self._reads)
        return grown(self._head, wider, ids, target)


class DraftStart:
    """A stand-alone model of the target's own shape, but for the number of layers."""

    def __init__(self, settings: TrainConfig, target: Checkpoint, architecture: Architecture) -> None:
        assert settings.start_from is not None
        self._draft = open_checkpoint(settings.start_from, target.progress)
        check_vocabularies(target.tokenizer.vocabulary(), self._draft.tokenizer.vocabulary())
        self._architecture = Architecture.from_config(self._draft.config)
        if replace(self._architecture, layers=()) != replace(architecture, layers=()):
            raise TrainingError(
                f"--start-from: the model in {settings.start_from} was not cut from this target (its layers have "
                "another shape); start from one that `outrider train --draft-model` made for it"
            )
        self.about = _about(settings, self._draft.config.get("outrider") or {})

    def module(self, max_length: int) -> DraftModule:
        a, dtype = self._architecture, torch.float32
        weights = load_weights(a, self._draft.tensors(dtype), dtype, torch.device("cpu"), lambda layer: layer)
        return draft_from_target(a, weights, len(a.layers), max_length)


def _about(settings: TrainConfig, before: Mapping[str, Any]) -> dict[str, Any]:
    """For the card and the config of what comes out: no paths of the machine."""
    return {
        "name": settings.shown()["start_from"],
        "sha256": settings.start_from_sha256,
        **{name: before[name] for name in _PASSED_ON if name in before},
    }
