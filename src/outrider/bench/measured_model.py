"""The model under measurement: found once for all arms, loaded once per number format for our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.bench.names import AUTO, ArmName
from outrider.bench.twin import twin_shape
from outrider.bench.twin_model import CutVocabulary, load_twin, load_twin_head
from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.core.model import DraftHead, LanguageModel
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.drafters.mix import MixDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.prepare import prepare
from outrider.errors import DrafterError
from outrider.llm import LLM, Message, over_engine
from outrider.models.architecture import Architecture
from outrider.models.backend import Placement
from outrider.models.checkpoints import catalog, manifest
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.convert import GGUF_NAME
from outrider.models.checkpoints.progress import Progress
from outrider.models.head.checkpoint import HeadCheckpoint
from outrider.models.head.load import load_head
from outrider.models.head.shipped import shipped_head
from outrider.models.load import placement
from outrider.provenance import provenance


@dataclass
class MeasuredModel:
    """`dtype` is the run's own; an arm may ask for another (`plain@fp32`)."""

    model: str
    dtype: str
    device: str
    threads: int | None
    progress: Progress
    max_context: int | None = None
    """Tokens to make room for; None: as many as usual."""
    max_batch: int = 1
    """Requests to make room for."""
    twin: str | None = None
    """Measure the model's cost twin of this name instead: the same text at the cost of a larger model."""
    checkpoint: Checkpoint = field(init=False)
    _loaded: dict[str, LLM] = field(init=False, default_factory=dict)
    _heads: dict[tuple[Path, str], DraftHead] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.checkpoint = open_checkpoint(self.model, self.progress)

    def load(self, dtype: str | None) -> LLM:
        """Our decoder over the model; arms in one number format share it."""
        wanted = dtype or self.dtype
        if wanted not in self._loaded:
            llm = LLM(
                self.model,
                drafter="none",
                draft_length=0,
                dtype=wanted,
                device=self.device,
                threads=self.threads,
                max_batch=self.max_batch,
                max_context=self.max_context,
                progress=self.progress,
            )
            self._loaded[wanted] = self._grown(llm, wanted) if self.twin else llm
        return self._loaded[wanted]

    def provenance(self, threads: int) -> dict[str, Any]:
        """Taken before the run; `arms` fills as they come up, with what each runs on."""
        found = provenance()
        return found | {
            "gpu": None if self.device == "cpu" else found["gpu"],
            "threads": threads,
            "dtype": self.dtype,
            "device": self.device,
            "model": self.model,
            "model_sha256": self.checksum,
            "arms": {},
        }

    def drafter(self, arm: ArmName, llm: LLM) -> str | Drafter:
        """What `llm`, loaded here, drafts with in this arm. A head drafts trees where the arm asks for them; it is made
        here, alone or in a mix, because a twin's grows with it. `auto` is the `LLM`'s own choice, as for everybody."""
        if arm.method == AUTO and self.twin:
            return build(AUTO, _TwinParts(self, llm, arm.dtype))
        if arm.method not in ("head", "head+suffix"):
            return f"{arm.method}:{arm.path}" if arm.path else arm.method
        branching = 1 if arm.length.isdigit() else 8 if arm.length.startswith("tree") else None
        head = HeadDrafter(self.head(arm.path, arm.dtype, llm), llm.model.vocab_size, HeadDrafterConfig(branching))
        return head if arm.method == "head" else MixDrafter(head, SuffixDrafter())

    def head(self, path: str, dtype: str | None, llm: LLM) -> DraftHead:
        """The head at a path (empty: the one that comes with the package); arms with one head share it."""
        folder = Path(path).expanduser() if path else shipped_head(self.checkpoint.name)
        if folder is None:
            raise DrafterError(f"arms: no head for {self.checkpoint.name} comes with Outrider; name one: head:PATH")
        wanted = (folder, dtype or self.dtype)
        if wanted not in self._heads:
            if self.twin is None:
                self._heads[wanted] = load_head(folder, llm.model, llm.tokenizer)
            else:
                assert isinstance(llm.model, CutVocabulary)
                source = HeadCheckpoint.read(folder).for_target(Architecture.from_config(self.checkpoint.config))
                place = self._place(dtype or self.dtype)
                self._heads[wanted] = load_twin_head(source, twin_shape(self.twin), llm.model, place)
        return self._heads[wanted]

    def _grown(self, llm: LLM, dtype: str) -> LLM:
        """The twin in the model's stead, decoding plainly."""
        assert self.twin is not None
        twin = load_twin(self.checkpoint, twin_shape(self.twin), self._place(dtype))
        engine = Engine(twin, NoDrafter(), FixedLength(0))
        prepare(engine, self.progress)
        return over_engine(llm, engine)

    def _place(self, dtype: str) -> Placement:
        return placement(
            device=self.device,
            dtype=dtype,
            bitwise=None,
            threads=self.threads,
            max_batch=self.max_batch,
            max_context=self.max_context,
        )

    def encode(self, conversation: Sequence[Message]) -> list[int]:
        """The token ids every arm is given: through the chat template, or the bare text where there is none."""
        tokenizer = self.checkpoint.tokenizer
        if tokenizer.chat_template is not None:
            return tokenizer.apply_chat_template(list(conversation))
        return tokenizer.encode("\n\n".join(turn["content"] for turn in conversation))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of an answer, up to where the model meant to end it."""
        tokenizer = self.checkpoint.tokenizer
        ends = set(tokenizer.eos_token_ids)
        kept = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
        return b"".join(map(tokenizer.token_bytes, tokens[:kept])).decode("utf-8", errors="replace").strip()

    @property
    def gguf(self) -> Path | None:
        """The weights as one GGUF file, for the programs that read those."""
        path = self.checkpoint.path
        found = path / GGUF_NAME if path.is_dir() else path
        return found if found.is_file() else None

    @property
    def folder(self) -> Path | None:
        """The weights as a Hugging Face folder, for the programs that read those."""
        path = self.checkpoint.path
        return path if (path / "config.json").is_file() else None

    @property
    def checksum(self) -> str | None:
        """sha256 of the GGUF file, where it is known or quickly found out."""
        if self.model in catalog.CATALOG:
            return catalog.find(self.model).gguf.sha256
        return manifest.sha256(self.gguf) if self.gguf else None


@dataclass(frozen=True, slots=True)
class _TwinParts:
    """What `auto` is made of beside a cost twin: the packaged head, grown with it, and lookup."""

    target: MeasuredModel
    llm: LLM
    dtype: str | None
    remember: bool = True

    @property
    def vocab_size(self) -> int:
        return self.llm.model.vocab_size

    @property
    def has_head(self) -> bool:
        return shipped_head(self.target.checkpoint.name) is not None

    def draft_model(self, path: str) -> LanguageModel:
        raise DrafterError(f"auto takes no draft model ({path})")

    def head(self, path: str) -> DraftHead:
        return self.target.head(path, self.dtype, self.llm)
