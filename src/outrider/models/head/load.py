"""From a head on disk to a `DraftHead` beside its target."""

from __future__ import annotations

from pathlib import Path

from outrider.core.model import DraftHead, LanguageModel
from outrider.errors import DrafterError
from outrider.models.backend import Backend, PlaceHead
from outrider.models.backends import backend_of
from outrider.models.checkpoints.tokenizer import Tokenizer
from outrider.models.head.checkpoint import VOCABULARY, HeadCheckpoint


def load_head(folder: Path, target: LanguageModel, tokenizer: Tokenizer | None = None) -> DraftHead:
    """The head in `folder`, reading `target` from now on; `DrafterError` where the two do not fit. `tokenizer`: the
    target's, which tells vocabularies of one size apart where the head says for which it was trained."""
    return place_head(read_head(folder, tokenizer), target)


def read_head(folder: Path, tokenizer: Tokenizer | None) -> HeadCheckpoint:
    """Checked against the vocabulary, not yet against the target's shape."""
    checkpoint = HeadCheckpoint.read(folder)
    made_for = checkpoint.about.get(VOCABULARY)
    if tokenizer is not None and made_for is not None and made_for != tokenizer.fingerprint():
        raise DrafterError(
            f"the head in {folder} was trained for a target with another vocabulary; "
            "train a head for this target with `outrider train`"
        )
    return checkpoint


def prepared_head(folder: Path, tokenizer: Tokenizer, backend: Backend) -> PlaceHead:
    """As far as `load_head` comes without a target, for one that this backend loads meanwhile."""
    return backend.prepared_head(read_head(folder, tokenizer))


def can_read(target: LanguageModel) -> bool:
    """Whether a head can be placed beside this kind of target at all."""
    return (backend := backend_of(target)) is not None and backend.places_heads


def place_head(checkpoint: HeadCheckpoint, target: LanguageModel) -> DraftHead:
    backend = backend_of(target)
    if backend is None or not backend.places_heads:
        raise DrafterError(
            f"a head reads the target's hidden states, which {type(target).__name__} does not give; "
            "use another drafter (suffix needs nothing from the model)"
        )
    return backend.load_head(checkpoint, target)
