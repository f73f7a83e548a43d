"""Drafters by name: one line each. `build` turns what a user wrote ("suffix", "model:PATH") into a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from outrider.core.drafter import Drafter
from outrider.core.model import DraftHead, LanguageModel
from outrider.drafters.head import HeadDrafter
from outrider.drafters.mix import MixDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.router import RouterDrafter
from outrider.drafters.suffix import SuffixConfig, SuffixDrafter
from outrider.errors import DrafterError


class Parts(Protocol):
    """What drafters are made of that they cannot make themselves: they know no models."""

    @property
    def vocab_size(self) -> int:
        """Width of the target's logits."""
        ...

    @property
    def has_head(self) -> bool:
        """Whether a head for this target comes with the package."""
        ...

    @property
    def remember(self) -> bool:
        """Whether one request may be drafted for from the answers to others."""
        ...

    def draft_model(self, path: str) -> LanguageModel:
        """The language model at a path, checked to share the target's vocabulary."""
        ...

    def head(self, path: str) -> DraftHead:
        """The head at a path (empty: the one that comes with the package), reading the target from now on."""
        ...


DRAFTERS: Mapping[str, Callable[[str, Parts], Drafter]] = {
    "none": lambda _path, _parts: NoDrafter(),
    "ngram": lambda _path, _parts: NgramDrafter(),
    "suffix": lambda _path, parts: _suffix(parts),
    "model": lambda path, parts: ModelDrafter(parts.draft_model(path), vocab_size=parts.vocab_size),
    "head": lambda path, parts: HeadDrafter(parts.head(path), parts.vocab_size),
    "head+suffix": lambda path, parts: MixDrafter(HeadDrafter(parts.head(path), parts.vocab_size), _suffix(parts)),
}

HEADS = {"auto", "head", "head+suffix"}
NEEDS_PATH, MAY_HAVE_PATH = {"model"}, {"model", "head", "head+suffix"}


def check(spec: str) -> None:
    """Raises `DrafterError` where no drafter is called so, whatever the target is."""
    name, _, path = spec.partition(":")
    if name not in DRAFTERS and spec != "auto":
        raise DrafterError(f"unknown drafter {spec!r}; choose auto, {', '.join(DRAFTERS)} (model:PATH, head:PATH)")
    if name in NEEDS_PATH and not path:
        raise DrafterError(f"drafter {spec!r} is not complete: {name}:PATH names the draft model")
    if path and name not in MAY_HAVE_PATH:
        raise DrafterError(f"drafter {spec!r} is not complete: {name} takes no path")


def build(spec: str, parts: Parts) -> Drafter:
    check(spec)
    name, _, path = spec.partition(":")
    return _best(parts) if name == "auto" else DRAFTERS[name](path, parts)


def takes_own_head(spec: str | Drafter) -> bool:
    """Whether a drafter so named takes the head that comes with the package, where one does."""
    return isinstance(spec, str) and spec.partition(":")[0] in HEADS and not spec.partition(":")[2]


def available(parts: Parts) -> tuple[str, ...]:
    """The drafters that can be had without naming a path."""
    return ("ngram", "suffix", *(("head", "head+suffix") if parts.has_head else ()))


def build_router(default: str | Drafter, also: Sequence[str], parts: Parts) -> RouterDrafter:
    """Drafters that requests choose among by name (that of a spec without its path), and a default. Those that need a
    head or a draft model share it, so there can be one of each."""
    shared = _SharedParts(parts)
    first = build(default, shared) if isinstance(default, str) else default
    named = {default.partition(":")[0]: first} if isinstance(default, str) else {}
    named.setdefault(first.name, first)
    for spec in also:
        name = spec.partition(":")[0]
        if name in named and spec not in (default, first.name):
            raise DrafterError(f"drafter {spec!r}: requests could not tell it from the other {name!r}; leave one out")
        if name not in named:
            named[name] = build(spec, shared)
    return RouterDrafter(first, named, None if isinstance(default, str) else parts.vocab_size)


class _SharedParts:
    """Gives every drafter the same head and the same draft model: the target is read by one head only."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._heads: dict[str, DraftHead] = {}
        self._models: dict[str, LanguageModel] = {}

    @property
    def vocab_size(self) -> int:
        return self._parts.vocab_size

    @property
    def remember(self) -> bool:
        return self._parts.remember

    @property
    def has_head(self) -> bool:
        return self._parts.has_head

    def draft_model(self, path: str) -> LanguageModel:
        if path not in self._models:
            self._models[path] = self._parts.draft_model(path)
        return self._models[path]

    def head(self, path: str) -> DraftHead:
        if self._heads and path not in self._heads:
            raise DrafterError(f"head:{path}: only one head can read the target at a time; give all drafters the same")
        if path not in self._heads:
            self._heads[path] = self._parts.head(path)
        return self._heads[path]


def _best(parts: Parts) -> Drafter:
    """What `auto` stands for: a head where one comes with the package, and lookup beside it; else lookup alone."""
    if not parts.has_head:
        return _suffix(parts)
    return MixDrafter(HeadDrafter(parts.head(""), parts.vocab_size), _suffix(parts))


def _suffix(parts: Parts) -> SuffixDrafter:
    return SuffixDrafter(SuffixConfig(shared_history=parts.remember))
