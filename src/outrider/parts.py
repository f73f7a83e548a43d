"""What drafters of one target can be made of, and what the cost of its passes depends on."""

from __future__ import annotations

import os
import platform
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from outrider.core.model import DraftHead, LanguageModel
from outrider.drafters.model import check_vocabularies
from outrider.errors import DrafterError
from outrider.models.backend import PlaceHead, Placement
from outrider.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from outrider.models.checkpoints.progress import Progress
from outrider.models.cpu import cpu_name
from outrider.models.head.load import can_read, load_head, prepared_head
from outrider.models.head.shipped import shipped_head
from outrider.models.load import (
    about_quantised,
    beside,
    described,
    fastest,
    load_model,
    missing_kernels,
    set_process_threads,
    settled,
    too_many_threads,
)
from outrider.models.native.library import built
from outrider.version import __version__


@dataclass(slots=True)
class TargetParts:
    """A loaded target, and the networks that are loaded to draft for it (`drafters.registry.Parts`)."""

    target: Checkpoint
    place: Placement
    model: LanguageModel
    remember: bool
    _own_head: Future[PlaceHead] | None = None
    """The head that comes with the package, read with the target, until it is placed beside it."""

    @staticmethod
    def load(name: str, place: Placement, remember: bool, progress: Progress, own_head: bool = False) -> TargetParts:
        """The target of this name, whose threads the process has from now on; `progress` is told what is not as one
        might expect. `own_head`: the one that comes with the package will be wanted, and is read meanwhile."""
        checkpoint = open_checkpoint(name, progress)
        wished, place = place, settled(checkpoint, place)
        for note in (missing_kernels(place), too_many_threads(place), about_quantised(checkpoint, wished, place)):
            if note:
                progress.note(note)
        set_process_threads(place)
        backend = fastest(checkpoint, place)
        folder = shipped_head(checkpoint.name) if own_head and backend.places_heads else None
        with ThreadPoolExecutor(1) as beside:
            head = None if folder is None else beside.submit(prepared_head, folder, checkpoint.tokenizer, backend)
            return TargetParts(checkpoint, place, backend.load(checkpoint, place), remember, head)

    @property
    def about(self) -> str:
        """What runs here, in a line."""
        return described(self.place, self.model)

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
        if not path and self._own_head is not None:
            place, self._own_head = self._own_head.result(), None
            return place(self.model)
        folder = Path(path).expanduser() if path else shipped_head(self.target.name)
        if folder is None:
            raise DrafterError(
                f"no head for {self.target.name} comes with Outrider; name one (head:PATH) or train it: outrider train"
            )
        return load_head(folder, self.model, self.target.tokenizer)

    @property
    def facts(self) -> dict[str, object]:
        """What the cost of a pass depends on."""
        path = self.target.path
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return {
            "version": __version__,
            "weights": [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files],
            "precision": self.place.precision.name,
            "kernels": self.model.kernels or type(self.model).__name__,
            "built": built(),
            "threads": self.place.threads,
            "machine": [platform.machine(), cpu_name(), os.cpu_count()],
        }
