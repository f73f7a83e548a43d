"""What one step decided, before any of it is carried out."""

from __future__ import annotations

from typing import NamedTuple

from outrider.engine.sequence import Sequence
from outrider.sampling.target import TargetRows
from outrider.types import Draft, Verdict


class Judged(NamedTuple):
    """A sequence, its draft and the verdict on it. `target` None: the step was taken on the device, which has already
    kept the accepted rows."""

    sequence: Sequence
    draft: Draft
    verdict: Verdict
    target: TargetRows | None


class Round(NamedTuple):
    """All sequences of one step, and what it took: `rows` verified, and the time of drafting and of the rest."""

    judged: list[Judged]
    rows: int
    draft_seconds: float
    target_seconds: float
