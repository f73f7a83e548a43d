"""The real parts of a run: the target, what it writes, and the student made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from outrider.errors import TrainingError
from outrider.models.architecture import Architecture, UnsupportedArchitecture
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import Progress
from outrider.models.head.config import HeadConfig, spread_aux_hidden_layers
from outrider.models.head.module import HeadModule
from outrider.models.load import load_model, placement
from outrider.models.weights import DecoderWeights, LayerWeights, load_weights
from outrider.train.batch import NARROWEST
from outrider.train.card import UNKNOWN, short_name
from outrider.train.corpus import Corpus
from outrider.train.data_loader import CorpusLoader
from outrider.train.divergence import LOSSES
from outrider.train.draft_student import DraftStudent, draft_from_target
from outrider.train.engine_writer import EngineWriter
from outrider.train.gather import gather
from outrider.train.grow import most_written
from outrider.train.head_student import HeadStudent, Unroll, start_from_target
from outrider.train.jobs import BulkWriter
from outrider.train.loop import DataLoader, Stop
from outrider.train.plan import WritingPlan
from outrider.train.prompts import Frame, read_prompts
from outrider.train.recipe import Recipe
from outrider.train.run import Open, Tell
from outrider.train.settings import TrainConfig
from outrider.train.start import DraftStart, HeadStart
from outrider.train.student import Student
from outrider.train.teacher import Teacher
from outrider.train.writer import Writer, check, fitting_lanes

_GPU_LANES, _CPU_LANES = 4096, 32
_FLUSH = 30.0
"""Seconds of writing that a kill may lose."""


def opener(progress: Progress) -> Open:
    """Opens the context of a run; nothing is written yet."""

    def opened(settings: TrainConfig, data: Path, device: torch.device) -> TargetContext:
        return TargetContext(settings, data, device, progress)

    return opened


class TargetContext:
    def __init__(self, settings: TrainConfig, folder: Path, device: torch.device, progress: Progress) -> None:
        if settings.loss not in LOSSES:
            raise TrainingError(f"--loss must be one of {', '.join(LOSSES)}, got {settings.loss!r}")
        if settings.data is not None and not folder.is_dir():
            raise TrainingError(f"--data: {folder} is no folder that a run wrote its data to")
        self._settings, self._folder, self._device = settings, folder, device
        self._prompts = read_prompts(Path(settings.prompts)) if settings.prompts and not settings.data else []
        self._target: Checkpoint = open_checkpoint(settings.model, progress)
        self._architecture = _readable(self._target)
        self._recipe = _recipe(settings.seed, self._architecture.max_context)
        check(self._architecture, self._recipe.context)
        if not settings.draft_model:  # layers that it does not have are refused before anything is written
            HeadConfig.beside(self._architecture, settings.draft_vocab, settings.layers, settings.tapped)
        self._head_start = self._draft_start = None
        if settings.start_from is not None and settings.draft_model:
            self._draft_start = DraftStart(settings, self._target, self._architecture)
        elif settings.start_from is not None:
            self._head_start = HeadStart(settings, self._target, self._architecture)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._weights: DecoderWeights[LayerWeights] = load_weights(
            self._architecture, self._target.tensors(dtype), dtype, device, lambda layer: layer
        )
        self._corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        """Opened, or made, when first asked for."""
        if self._corpus is None:
            s = self._settings
            named = None if s.prompts is None else {"file": Path(s.prompts).name, "sha256": s.prompts_sha256}
            made = {"target": short_name(s.model), "recipe": self._recipe.to_json(), "prompts": named}
            about = made if s.data is None else None
            self._corpus = Corpus(self._folder, self._architecture.vocab_size, about)
        return self._corpus

    def write(self, tell: Tell, stop: Stop, seconds: float | None) -> None:
        corpus, wanted, device = self.corpus, self._settings.tokens, self._device
        tell(corpus.tokens, wanted)
        if corpus.tokens >= wanted:
            return
        frame = Frame.of(self._target.tokenizer)
        writer = self._writer(frame, max(1, wanted // (self._recipe.context // 2)))
        plan = WritingPlan(self._recipe, frame, self._prompts, skip=corpus.families)
        started = flushed = monotonic()
        for tokens in gather(writer, plan, corpus, wanted):
            now = monotonic()
            tell(tokens, wanted)
            if now - flushed > _FLUSH:
                corpus.flush()
                flushed = now
            if stop.asked or (seconds is not None and now - started > seconds):
                break
        corpus.flush()
        del writer
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def _writer(self, frame: Frame, most: int) -> BulkWriter:
        """For at most so many sequences at once."""
        context, seed = self._recipe.context, self._settings.seed
        if self._device.type != "cuda":
            place = placement(
                device=str(self._device),
                dtype="auto",
                bitwise=False,
                threads=None,
                max_batch=min(_CPU_LANES, most),
                max_context=context,
            )
            return EngineWriter(load_model(self._target, place), frame.stops, seed=seed)
        a, weights, most = self._architecture, self._weights, min(_GPU_LANES, most)
        lanes = fitting_lanes(a, weights.embedding.dtype, self._device, context=context, most=most)
        return Writer(a, weights, frame.stops, lanes=lanes, context=context, seed=seed)

    @property
    def data(self) -> Mapping[str, Any]:
        corpus = self.corpus
        held_out = sum(corpus.held_out(i) for i in range(len(corpus)))
        return {
            "samples": len(corpus),
            "tokens": corpus.tokens,
            "answer tokens": corpus.answer_tokens,
            "answers cut where they loop": corpus.loops,
            "held-out samples": held_out,
            "samples by kind": corpus.tags(),
            "recipe": corpus.about.get("recipe", {}),
            "target": corpus.about.get("target"),
            "prompts": corpus.about.get("prompts", UNKNOWN),
        }

    @property
    def start(self) -> Mapping[str, Any] | None:
        started = self._head_start or self._draft_start
        return None if started is None else started.about

    def loader(self) -> DataLoader:
        loader = CorpusLoader(self.corpus, self._settings.batch_tokens, self._settings.seed)
        if loader.steps(1) < 1 or not any(any(batch.greedy) for batch in loader.held_out()):
            raise TrainingError(
                f"{self.corpus.tokens} tokens are too little to learn from and to hold some out; "
                "start anew with more --tokens or --minutes"
            )
        return loader

    def student(self) -> Student:
        s = self._settings
        longest = int(self.corpus.lengths().max(initial=NARROWEST))
        teacher = Teacher(self._architecture, self._weights, longest)
        divergence = LOSSES[s.loss]
        if s.draft_model:
            if self._draft_start is not None:
                draft = self._draft_start.module(longest)
            else:
                draft = draft_from_target(self._architecture, self._weights, s.layers, longest)
            return DraftStudent(draft, teacher, divergence, self._target)
        counts = torch.from_numpy(self.corpus.counts())
        if self._head_start is not None:
            ids = self._head_start.ids(counts)
            module = self._head_start.module(ids, self._weights)
        else:
            ids = most_written(counts, s.draft_vocab)
            read = s.tapped or spread_aux_hidden_layers(len(self._architecture.layers))
            module = HeadModule(HeadConfig.beside(self._architecture, len(ids), s.layers, read))
            start_from_target(module, self._weights, ids)
        vocabulary = self._target.tokenizer.fingerprint()
        return HeadStudent(module, ids, teacher, divergence, Unroll(), longest, vocabulary)


def _readable(target: Checkpoint) -> Architecture:
    try:
        architecture = Architecture.from_config(target.config)
        if unknown := architecture.lacking(Teacher.known):
            raise UnsupportedArchitecture(f"training does not do {unknown}")
        return architecture
    except UnsupportedArchitecture as reason:
        raise TrainingError(
            f"the hidden states of {target.name} cannot be read ({reason}); "
            "train for a model that Outrider's own decoder runs"
        ) from reason


def _recipe(seed: int, max_context: int) -> Recipe:
    """The standard one, made shorter for a target with little context."""
    recipe = Recipe(seed=seed)
    if recipe.context <= max_context:
        return recipe
    share = max_context / recipe.context

    def fewer(tokens: int) -> int:
        return max(1, int(tokens * share))

    return replace(
        recipe,
        max_prompt=fewer(recipe.max_prompt),
        max_new=fewer(recipe.max_new),
        max_words=fewer(recipe.max_words),
        max_passage=fewer(recipe.max_passage),
    )
