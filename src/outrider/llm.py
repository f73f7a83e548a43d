"""The facade: a model, a drafter and an engine behind `generate`, `stream` and `chat`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from outrider import __version__, asked
from outrider.checks import flag, whole
from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import CostTable
from outrider.drafters.model import check_vocabularies
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import available, build, build_router
from outrider.drafters.router import RouterDrafter
from outrider.engine.costs import Costs
from outrider.engine.engine import Engine
from outrider.engine.sequence import Sequence as Running
from outrider.engine.text import TextStream
from outrider.engine.turns import Turns
from outrider.errors import DrafterError, InvalidRequest, shown
from outrider.models.checkpoints.catalog import cache_root
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import Progress, SilentProgress
from outrider.models.cpu import cpu_name
from outrider.models.head.load import can_read, load_head
from outrider.models.head.shipped import shipped_head
from outrider.models.load import (
    Placement,
    beside,
    described,
    left_quantised,
    load_model,
    missing_kernels,
    placement,
    settled,
)
from outrider.models.native.decoder import NativeDecoder
from outrider.models.native.library import built
from outrider.sampling.grammar import Grammars
from outrider.sampling.history import History
from outrider.sampling.params import SamplingParams
from outrider.types import Chunk, Completion, Drafter, DraftHead, HasNetworks, LanguageModel, Speculation

if TYPE_CHECKING:
    import torch

Prompt = str | Sequence[int]
Message = Mapping[str, str]


class LLM:
    """A language model that decodes speculatively and exactly.

    >>> llm = LLM("smollm2-135m", drafter="suffix")
    >>> llm.generate(["The capital of France is"], SamplingParams(max_tokens=16))[0].text

    `drafter`: none, ngram, suffix, model:PATH, head[:PATH], auto, or a `Drafter` of your own. `draft_length`: nodes per
    draft, or "auto" to stop when it does not pay. Neither changes the text. `dtype`: auto, bf16, fp16, fp32, int8 or
    native, or as PyTorch names or gives them ("bfloat16", torch.bfloat16). `bitwise` None: on where it is nearly free.
    `also`: further drafters that a request may name (`Speculation.drafter`), or "available" for all that need no path;
    given at all, even empty, requests may also bring a prediction. `kv_tokens`: the most tokens that running sequences
    may have together (None: what the cache has room for); more wait. `remember`: lookup may draft from the answers to
    earlier requests; not for requests of different owners, who could tell by the time it takes. `quiet`: a context in
    which nothing else runs; what passes cost is then measured at once, inside of it, unless an earlier process has.

    Any number of threads may use one LLM, and streams may be read by turns: everybody gets what they would get alone.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2-135m",
        *,
        drafter: str | Drafter = "auto",
        also: Sequence[str] | Literal["available"] | None = None,
        draft_length: int | Literal["auto"] = "auto",
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        threads: int | None = None,
        bitwise: bool | None = None,
        max_batch: int = 8,
        max_context: int | None = None,
        kv_tokens: int | None = None,
        remember: bool = True,
        progress: Progress | None = None,
        quiet: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        drafter = asked.drafter(drafter)
        wanted = also if also is None or also == "available" else asked.names("also", also)
        flag("remember", remember)
        if kv_tokens is not None:
            whole("kv_tokens", kv_tokens, 1)
        progress = asked.progress(progress)
        place = placement(
            device=device,
            dtype=dtype,
            bitwise=bitwise,
            threads=threads,
            max_batch=max_batch,
            max_context=max_context,
        )
        length = _length(draft_length)
        checkpoint = open_checkpoint(_name(model), progress)
        self.tokenizer = checkpoint.tokenizer
        self.generation_config = checkpoint.generation_config

        wished, place = place, settled(checkpoint, place)
        for note in (missing_kernels(place), left_quantised(checkpoint, wished, place)):
            if note:
                progress.note(note)
        self.model = load_model(checkpoint, place)
        self.about = described(place, self.model)
        """What runs here, in a line."""
        self._parts = _Parts(checkpoint, place, self.model, remember)
        self._costs = Costs(cache_root() / "costs", _facts(self._parts))
        self._quiet = quiet
        if wanted is not None:
            others = available(self._parts) if wanted == "available" else wanted
            self.drafter: Drafter = build_router(drafter, others, self._parts)
        else:
            self.drafter = build(drafter, self._parts) if isinstance(drafter, str) else drafter
        controller = self._auto(self.drafter) if length is None else FixedLength(length)
        self._engine = Engine(self.model, self.drafter, controller, kv_tokens=kv_tokens)
        self._plain = Engine(self.model, NoDrafter(), FixedLength(0), kv_tokens=kv_tokens)
        self._prepare(progress, self._engine, self._plain)
        self._turns = Turns()
        self._ids = count()
        self._grammars = Grammars(self.tokenizer, self.model.vocab_size)

    def with_model(self, model: LanguageModel) -> LLM:
        """The same tokenizer and defaults over another model of the same vocabulary, decoding plainly."""
        plain = Engine(model, NoDrafter(), FixedLength(0))
        self._prepare(SilentProgress(), plain)
        other = self.with_engine(plain)
        other._plain = plain
        other._costs = Costs(None, {})  # another model's, and nobody knows which
        return other

    def with_drafter(self, drafter: str | Drafter, controller: Controller | Literal["auto"] = "auto") -> LLM:
        """Another way to decode with the same weights and cache slots; the two take turns where both are used."""
        drafter = asked.drafter(drafter)
        if isinstance(drafter, str):
            drafter = build(drafter, self._parts)
        decides = self._auto(drafter) if controller == "auto" else asked.controller(controller)
        engine = Engine(self.model, drafter, decides)
        self._prepare(SilentProgress(), engine)
        return self.with_engine(engine)

    def with_engine(self, engine: Engine) -> LLM:
        """The same over an engine made elsewhere, with its model and drafter."""
        other = copy(self)
        other.model, other.drafter = engine.model, engine.drafter
        other._engine = engine
        if engine.model is not self.model:
            other._turns = Turns()
        return other

    def costs(self) -> CostTable:
        """What passes and drafts cost here, measured now; what later processes begin with. Takes a second or so."""
        survey = self._costs.survey(self.model, self.drafter)
        if survey is None:
            raise InvalidRequest(f"what passes of a {type(self.model).__name__} cost cannot be measured beforehand")
        return survey.whole()

    def _auto(self, drafter: Drafter) -> AutoLength:
        """A controller that knows what passes cost here, or finds out between the first steps."""
        table = self._costs.load(self.model, drafter)
        survey = None if table else self._costs.survey(self.model, drafter)
        if survey is not None and self._quiet is not None:
            with self._quiet():
                table, survey = survey.whole(), None
        return AutoLength(
            table=table, survey=survey, acceptance=drafter.acceptance if isinstance(drafter, HasNetworks) else None
        )

    @staticmethod
    def _prepare(progress: Progress, *engines: Engine) -> None:
        """What is compiled and recorded on a GPU is so before the first request, not while it waits."""
        parts = {id(part): part for engine in engines for part in engine.prepares}  # engines share networks
        recordings = list(chain(*(part.recordings() for part in parts.values())))
        if not recordings:  # on a CPU there are none
            return
        from outrider.models.cuda.compiling import compile_kernels  # needs Triton, which is not everywhere

        with progress.task("Compiling for the GPU", None) as advance:
            for _ in compile_kernels(recordings):
                advance(1)
        with progress.task("Preparing the GPU", len(recordings)) as advance:
            for recording in recordings:
                recording.record()
                advance(1)
            for _ in chain(*(engine.measure() for engine in engines)):
                pass

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculate: bool = True,
        trace: bool = False,
    ) -> list[Completion]:
        """Complete every prompt (text, or token ids) in one ragged batch; results in the order of the prompts.

        `speculate=False` decodes plainly: the same tokens (coupled rule), later. `RequestFailed` where a grammar turns
        out to be too large on the way; most that are, are refused at once (`InvalidRequest`).
        """
        chunks = self.stream(prompts, params, speculate=speculate, trace=trace)
        done = {chunk.index: chunk.completion for chunk in chunks if chunk.completion is not None}
        return [done[index] for index in sorted(done)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculate: bool = True,
        trace: bool = False,
    ) -> Iterator[Chunk]:
        """As `generate`, one `Chunk` per sequence and step as it happens; `chunk.index` is the prompt's index.

        Closing the iterator early, or losing it (or Ctrl-C), lets go of everything still running. What others ask for
        meanwhile runs in the same batch, and this one's chunks wait to be read.
        """
        batch = asked.prompts(prompts)
        each = asked.params(params, len(batch))
        flag("speculate", speculate)
        sequences = [self.sequence(prompt, p, trace=trace) for prompt, p in zip(batch, each, strict=True)]
        return self._run(self._engine if speculate else self._plain, sequences)

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation ([{"role": "user", "content": …}, …]) through the model's chat template."""
        return self.generate([self.encode_chat(messages)], params)[0]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The conversation as the token ids the model is asked to continue."""
        return self.tokenizer.apply_chat_template(asked.messages(messages))

    @property
    def engine(self) -> Engine:
        """What runs sequences; for those who step it themselves, such as the server. Leave `generate` alone then."""
        return self._engine

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names a request may give as `Speculation.drafter`."""
        names = self.drafter.names if isinstance(self.drafter, RouterDrafter) else (self.drafter.name,)
        return names if "none" in names else (*names, "none")

    @property
    def place(self) -> Placement:
        """Where and how the model runs."""
        return self._parts.place

    def _run(self, engine: Engine, sequences: list[Running]) -> Iterator[Chunk]:
        return self._turns.read(engine, sequences)

    def sequence(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        choice: int = 0,
        speculation: Speculation | None = None,
        cache_salt: str | None = None,
        principal: str = "",
        priority: int = 0,
        trace: bool = False,
        shown: Collection[int] = (),
    ) -> Running:
        """A sequence for `engine`, checked and ready to be added. `choice`: which of several drawn with one seed.
        `cache_salt`: work is shared with sequences of the same salt alone. `principal`: whose it is; principals take
        turns, and of each those of the lowest `priority` are begun first. `shown`: control tokens that are written
        out in the text, by their names."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else asked.token_ids("prompt", prompt)
        if not tokens:
            raise InvalidRequest("prompt: it is empty; give at least one token of text")
        self._known("prompt", tokens)
        if len(tokens) >= self.model.max_context:
            raise InvalidRequest(
                f"prompt: {len(tokens)} tokens leave no room in a context of {self.model.max_context}; shorten it"
            )
        resolved = asked.params(params, 1)[0].resolve(
            self.generation_config,
            self.tokenizer.eos_token_ids,
            self.model.vocab_size,
            whole("choice", choice, 0),
            self._grammars,
        )
        sequence = Running(
            id=next(self._ids),
            tokens=tokens,
            prompt_length=len(tokens),
            params=resolved,
            limit=min(resolved.max_tokens, self.model.max_context - len(tokens)),
            stream=TextStream(self._bytes(shown), resolved.stop, self.tokenizer.strips_leading_space),
            history=History(tokens),
            keep_trace=flag("trace", trace),
            speculation=self._checked(Speculation() if speculation is None else speculation),
            cache_salt=cache_salt,
            principal=principal,
            priority=whole("priority", priority),
        )
        if (limit := sequence.grammar_limit) is not None:
            raise InvalidRequest(f"grammar: {limit}")
        if sequence.stuck:
            raise InvalidRequest("grammar: nothing can be written under it with these stop tokens and min_tokens")
        return sequence

    def _bytes(self, shown: Collection[int]) -> Callable[[int], bytes]:
        """What each token adds to a text."""
        if not shown:
            return self.tokenizer.token_bytes
        named = {token: (self.tokenizer.token(token) or "").encode() for token in shown}
        return lambda token: named.get(token) or self.tokenizer.token_bytes(token)

    def _known(self, name: str, tokens: Sequence[int]) -> None:
        size = self.model.vocab_size
        if bad := [token for token in tokens if not 0 <= token < size]:
            raise InvalidRequest(f"{name}: token id {shown(bad[0])} is outside the vocabulary of {size}")

    def _checked(self, speculation: Speculation) -> Speculation:
        """What was asked for, in terms of the drafters there are; "none" is a budget of no nodes."""
        if not isinstance(speculation, Speculation):
            raise InvalidRequest(f"speculation must be a Speculation(…), not {shown(speculation)}")
        name = speculation.drafter
        if speculation.max_nodes is not None:
            whole("max_nodes", speculation.max_nodes, 0)
        if name is not None and not (isinstance(name, str) and name in self.drafters):
            raise InvalidRequest(f"drafter: there is no {shown(name)} here; choose {', '.join(self.drafters)}")
        speculation = replace(speculation, prediction=tuple(asked.token_ids("prediction", speculation.prediction)))
        self._known("prediction", speculation.prediction)
        routed = isinstance(self.drafter, RouterDrafter)
        if speculation.prediction and not routed:
            raise InvalidRequest("prediction: this LLM takes none; make it with also=() or more drafters")
        if name == "none":
            return replace(speculation, drafter=None, prediction=(), max_nodes=0)
        return speculation if routed else replace(speculation, drafter=None)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a drafter of this target can be made of."""

    target: Checkpoint
    place: Placement
    model: LanguageModel
    remember: bool

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def has_head(self) -> bool:
        return shipped_head(self.target.name) is not None and can_read(self.model)

    def draft_model(self, path: str) -> LanguageModel:
        draft = open_checkpoint(path, self.target.progress)
        check_vocabularies(self.target.tokenizer.vocabulary(), draft.tokenizer.vocabulary())
        return load_model(draft, beside(self.place, draft))

    def head(self, path: str) -> DraftHead:
        folder = Path(path).expanduser() if path else shipped_head(self.target.name)
        if folder is None:
            raise DrafterError(
                f"no head for {self.target.name} comes with Outrider; name one (head:PATH) or train it: outrider train"
            )
        return load_head(folder, self.model, self.target.tokenizer)


def _name(model: object) -> str:
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"model must be a known name, a model folder, a GGUF file or a hub id, not {shown(model)}")
    return name


def _length(draft_length: int | Literal["auto"]) -> int | None:
    """None: auto."""
    if isinstance(draft_length, str) and draft_length == "auto":
        return None
    if isinstance(draft_length, bool) or not isinstance(draft_length, int) or draft_length < 0:
        raise InvalidRequest(f'draft_length must be "auto" or a whole number from 0 on, got {shown(draft_length)}')
    return draft_length


def _facts(parts: _Parts) -> dict[str, object]:
    """What the cost of a pass depends on."""
    path = parts.target.path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {
        "version": __version__,
        "weights": [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files],
        "precision": parts.place.precision.name,
        "kernels": parts.model.kernels if isinstance(parts.model, NativeDecoder) else type(parts.model).__name__,
        "built": built(),
        "threads": parts.place.threads,
        "machine": [platform.machine(), cpu_name(), os.cpu_count()],
    }
