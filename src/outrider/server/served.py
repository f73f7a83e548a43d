"""A model that is loaded, and what the server asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from outrider.engine.service import Service
from outrider.llm import LLM
from outrider.server.tools.dialect import Dialect, dialect_of


@dataclass(frozen=True)
class Served:
    """A model that answers. `name` is what clients call it."""

    name: str
    llm: LLM
    service: Service

    @property
    def drafters(self) -> Sequence[str]:
        """What a request may name: `auto` is the server's own choice, `none` drafts nothing."""
        return ["auto", *(name for name in self.llm.drafters if name != "auto")]

    @property
    def default_drafter(self) -> str:
        """Who `auto` is."""
        return self.llm.drafter.name

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes function calls."""
        return dialect_of(self.llm.tokenizer.tool_template)

    @cached_property
    def longest_text(self) -> int:
        """Bytes no prompt can have more of and still fit: every token at its longest."""
        longest = max(len(token.encode()) for token in self.llm.tokenizer.vocabulary())
        return longest * self.llm.model.max_context
