"""What a request takes of a verified draft, and what its reader is told."""

from __future__ import annotations

from outrider.core.draft import ROOT, Draft
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import Chunk, StepKind, StepTrace
from outrider.engine.request import Request

_TARGET = ("target",)
"""Whose the token is that follows the accepted ones."""


def emit(request: Request, verified: VerifiedDraft, why: str) -> tuple[VerifiedDraft, Chunk]:
    """Give the request its tokens up to the first that ends it; the draft cut to those, and the news of it. `why`: of
    the step's drafts, where somebody wants to know."""
    _, draft, path, tokens, logprobs = verified
    text, kept = request.push(tokens[0]), 1
    while kept < len(tokens) and not request.ended:
        text += request.push(tokens[kept])
        kept += 1
    step = _trace(verified, kept, why)
    if kept < len(tokens):
        verified = verified.cut(kept)
        _, _, path, tokens, logprobs = verified
    if logprobs:
        request.logprobs += logprobs
    origins = (*_proposers(draft, path), *_TARGET[: kept - len(path)]) if path else _TARGET
    request.origins += origins
    request.history.append(tokens)
    request.count(draft, path)
    if request.keep_trace:
        request.trace.append(step)
    return verified, Chunk(request.id, text, tokens, origins, step, None, logprobs)


def _proposers(draft: Draft, path: tuple[int, ...]) -> tuple[str, ...]:
    """Who proposed each of these nodes."""
    return tuple(map(draft.proposer, path)) if draft.sources else (draft.proposer(0),) * len(path)


def _trace(verified: VerifiedDraft, kept: int, why: str) -> StepTrace:
    """Of a draft before it is cut to `kept` tokens: whether all of its path was accepted is not seen afterwards."""
    _, draft, path, tokens, _ = verified
    if not draft.tokens:
        return StepTrace(draft, (), tokens[-1], "target", why)
    kind: StepKind = "recovered" if (path[-1] if path else ROOT) in draft.parents else "bonus"
    return StepTrace(draft, path[:kept], tokens[-1] if kept > len(path) else None, kind, why)
