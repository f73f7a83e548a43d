"""Drafters by name: one line each. `build` turns what a user wrote ("suffix", "model:PATH") into a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import DrafterError
from outrider.types import Drafter, LanguageModel

LoadDraftModel = Callable[[str], LanguageModel]
"""Loads the language model at a path, checked to share the target's vocabulary; handed in, drafters know no models."""

DRAFTERS: Mapping[str, Callable[[str, LoadDraftModel, int], Drafter]] = {
    "none": lambda _path, _load, _vocab: NoDrafter(),
    "ngram": lambda _path, _load, _vocab: NgramDrafter(),
    "suffix": lambda _path, _load, _vocab: SuffixDrafter(),
    "model": lambda path, load, vocab: ModelDrafter(load(path), vocab_size=vocab),
}

AUTO = "suffix"
"""What `auto` stands for until a better drafter is configured."""


def build(spec: str, load_model: LoadDraftModel, vocab_size: int) -> Drafter:
    """`vocab_size`: width of the target's logits."""
    name, _, path = spec.partition(":")
    name = AUTO if name == "auto" else name
    if name not in DRAFTERS:
        raise DrafterError(f"unknown drafter {spec!r}; choose auto, {', '.join(DRAFTERS)} (model:PATH)")
    if (name == "model") != bool(path):
        hint = "model:PATH names the draft model" if name == "model" else f"{name} takes no path"
        raise DrafterError(f"drafter {spec!r} is not complete: {hint}")
    return DRAFTERS[name](path, load_model, vocab_size)
