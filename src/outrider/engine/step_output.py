"""What one step decided, before any of it is carried out."""

from __future__ import annotations

from typing import NamedTuple

from outrider.core.draft import Draft, Verdict
from outrider.engine.request import Request
from outrider.sampling.target import TargetRows


class VerifiedDraft(NamedTuple):
    """A request, its draft and the verdict on it. `target` None: the step was taken on the device, which has already
    kept the accepted rows."""

    request: Request
    draft: Draft
    verdict: Verdict
    target: TargetRows | None


class StepOutput(NamedTuple):
    """All requests of one step, and what it took: `rows` verified, and the time of drafting and of the rest."""

    verified: list[VerifiedDraft]
    rows: int
    draft_seconds: float
    target_seconds: float
