"""How much to draft: budgets from measured costs and acceptance. No torch here."""

from outrider.control.auto import AutoLength
from outrider.control.controller import Controller, FixedLength

__all__ = ["AutoLength", "Controller", "FixedLength"]
