"""Outrider: exact speculative decoding. The text your model would have written, sooner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outrider.version import __version__

if TYPE_CHECKING:
    from outrider.async_llm import AsyncLLM
    from outrider.core.draft import Budget, Draft, Speculation
    from outrider.core.drafter import Drafter, VerifiedDraft
    from outrider.core.request import Chunk, Completion, RequestView, StepTrace, TokenLogprob
    from outrider.errors import (
        Busy,
        DrafterError,
        InvalidRequest,
        ModelError,
        OutriderError,
        RequestFailed,
        Unavailable,
    )
    from outrider.llm import LLM
    from outrider.sampling.grammar import Grammar
    from outrider.sampling.params import SamplingParams

_ERRORS = ("Busy", "DrafterError", "InvalidRequest", "ModelError", "OutriderError", "RequestFailed", "Unavailable")
_REQUEST = ("Chunk", "Completion", "RequestView", "StepTrace", "TokenLogprob")

_HOME = {
    "LLM": "outrider.llm",
    "AsyncLLM": "outrider.async_llm",
    "Grammar": "outrider.sampling.grammar",
    "SamplingParams": "outrider.sampling.params",
    **dict.fromkeys(("Budget", "Draft", "Speculation"), "outrider.core.draft"),
    **dict.fromkeys(("VerifiedDraft", "Drafter"), "outrider.core.drafter"),
    **dict.fromkeys(_REQUEST, "outrider.core.request"),
    **dict.fromkeys(_ERRORS, "outrider.errors"),
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "Budget",
    "Busy",
    "Chunk",
    "Completion",
    "Draft",
    "Drafter",
    "DrafterError",
    "Grammar",
    "InvalidRequest",
    "ModelError",
    "OutriderError",
    "RequestFailed",
    "RequestView",
    "SamplingParams",
    "Speculation",
    "StepTrace",
    "TokenLogprob",
    "Unavailable",
    "VerifiedDraft",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Public names on first use, so that `import outrider` (and `outrider --help`) does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
