"""Acceptance rules by name."""

from outrider.verify.coupled import coupled
from outrider.verify.rejection import rejection
from outrider.verify.rule import Rule, Rules, Target

RULES: Rules = {"coupled": coupled, "rejection": rejection}

__all__ = ["RULES", "Rule", "Rules", "Target", "coupled", "rejection"]
