"""Acceptance rules by name."""

from collections.abc import Mapping

from outrider.types import VerifyRule
from outrider.verify.coupled import coupled
from outrider.verify.rejection import rejection
from outrider.verify.rule import Rule, Target

RULES: Mapping[VerifyRule, Rule] = {"coupled": coupled, "rejection": rejection}

__all__ = ["RULES", "Rule", "Target", "coupled", "rejection"]
