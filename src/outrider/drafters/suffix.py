"""Suffix lookup: every earlier continuation of every suffix of the text, as one tree, the likeliest first.

How it is estimated says `suffix_search`; where there was a C compiler, `native.texts` finds the same sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.core.draft import Budget, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.native.texts import NativeTexts, library
from outrider.drafters.suffix_search import ReferenceTexts
from outrider.drafters.suffix_texts import NAME, SuffixConfig, SuffixTexts

__all__ = ["SuffixConfig", "SuffixDrafter"]

_LEAD = 16
"""Prompt tokens kept before a finished output, so that the beginning of a reply finds its match."""


class SuffixDrafter(LookupDrafter):
    """Trees of earlier continuations, best first; confidences are calibrated probabilities, not mere
    scores."""

    name = NAME
    continues = True

    def __init__(self, config: SuffixConfig | None = None, texts: SuffixTexts[Any, Any] | None = None) -> None:
        """`texts`: what is searched (None: the fastest form there is here)."""
        self.config = config or SuffixConfig()
        self.texts = texts or (NativeTexts if library() is not None else ReferenceTexts)(self.config)

    @property
    def held(self) -> int:
        return self.texts.held

    def open(self, request: RequestView) -> None:
        self.texts.open(request)

    def continuation(self, request: RequestView, count: int) -> Draft:
        return self.texts.continuation(request, count)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        return self.texts.propose(requests, budgets)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        """What is new is taken in when something is looked up, which where it never pays is never."""

    def close(self, request: RequestView) -> None:
        """Where nothing is looked up, nothing is remembered either."""
        looked_up = self.texts.close(request)
        if looked_up and self.config.shared_history and len(request.tokens) > request.prompt_length:
            self.texts.learn(request.cache_salt, request.tokens[max(0, request.prompt_length - _LEAD) :])
