"""Silence: steps in a row without a draft, and how long it may last before drafting is tried again."""

from __future__ import annotations

SOONEST, LATEST = 10, 256
"""Steps without a draft after which one is tried, whatever is believed of it: at the soonest, and at the latest."""


class Silence:
    """Of all requests together, whoever drafts for them, the host or a device."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0
        """Since the last draft."""

    def step(self, drafted: bool) -> None:
        self.steps = 0 if drafted else self.steps + 1

    @property
    def settled(self) -> bool:
        """Whether no draft is soon expected."""
        return self.steps > SOONEST
