"""Outrider: exact speculative decoding. The text your model would have written, several times sooner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.errors import DrafterError, InvalidRequest, ModelError, OutriderError, RequestFailed
    from outrider.llm import LLM
    from outrider.sampling.grammar import Grammar
    from outrider.sampling.params import SamplingParams
    from outrider.types import Chunk, Completion

__version__ = "0.1.0"

_HOME = {
    "LLM": "outrider.llm",
    "Grammar": "outrider.sampling.grammar",
    "SamplingParams": "outrider.sampling.params",
    "Chunk": "outrider.types",
    "Completion": "outrider.types",
    "DrafterError": "outrider.errors",
    "InvalidRequest": "outrider.errors",
    "ModelError": "outrider.errors",
    "OutriderError": "outrider.errors",
    "RequestFailed": "outrider.errors",
}

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "DrafterError",
    "Grammar",
    "InvalidRequest",
    "ModelError",
    "OutriderError",
    "RequestFailed",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    """Public names on first use, so that `import outrider` (and `outrider --help`) does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
