"""Steps on the host: draft, one pass of the target over all drafts, and each request's acceptance rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from outrider.control.controller import Controller
from outrider.core.draft import ROOT, Draft, Verdict
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.model import LanguageModel, Rows
from outrider.core.step import StepShape
from outrider.engine.executor import NONE_BEGUN, Begun, Executor, StepOutput
from outrider.engine.request import Request
from outrider.engine.target_pass import TargetPass
from outrider.errors import DrafterError, NotANumber
from outrider.sampling.random_source import KeyedRandom
from outrider.sampling.target import TargetRows, target_rows
from outrider.verify import RULES, Rules

if TYPE_CHECKING:
    from torch import Tensor

_NO_DRAFT = Draft()


class HostExecutor(Executor):
    """Takes any step: every drafter, tree, rule and parameter. Holds nothing of a request between two steps."""

    begins = chooses_by_logits = True

    def __init__(self, model: LanguageModel, drafter: Drafter, controller: Controller, rules: Rules = RULES) -> None:
        """`rules`: what the names in sampling parameters stand for. Only benchmarks give others than the exact ones
        (`bench/synthetic.py`), and no text made with those is ever shown as the model's."""
        self.model = model
        self.drafter = drafter
        self.controller = controller
        self.rules = rules
        self._target = TargetPass(model, drafter)
        self._runner = model.runner

    def go_on(self) -> None:
        pass  # no step is under way between two

    def step(self, running: list[Request], joining: float = 0.0, begun: Begun = NONE_BEGUN) -> StepOutput:
        if begun.logits is None:
            return self.verify(running, *self.draft(running))
        # No pass: that the step took next to no time says nothing of others.
        return self._judge(running, [_NO_DRAFT] * len(running), begun.logits)._replace(keep=self._keep_prompt)

    def draft(
        self, running: list[Request], chains: Mapping[StepShape, float] | None = None
    ) -> tuple[list[Draft], float]:
        """What is to be verified, one draft per request, and the seconds it took to find. `chains`: those that a device
        verifies, and what a step of them takes; None: the target's pass verifies them."""
        started = perf_counter()
        room, trees = [s.room for s in running], self.model.supports_trees and chains is None
        if chains is not None:
            longest = max(shape.verified for shape in chains)
            room = [min(longest, most) for most in room]
        drafts = self.controller.draft(self.drafter, running, trees, room, chains)
        for draft in drafts:  # a network would look such a token up beyond its embeddings
            if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < self.model.vocab_size:
                raise DrafterError(f"drafter {draft.source!r}: {draft.fault(self.model.vocab_size, tree=True)}")
        return drafts, perf_counter() - started

    def verify(self, running: list[Request], drafts: list[Draft], draft_seconds: float) -> StepOutput:
        """All drafts in one pass, then what is accepted of each."""
        started = perf_counter()
        batch = [_rows(s, draft) for s, draft in zip(running, drafts, strict=True)]
        logits = self._target.forward(running, batch, soon=[not self.controller.away] * len(running))
        output = self._judge(running, drafts, logits)
        return output._replace(draft_seconds=draft_seconds, target_seconds=perf_counter() - started)

    def _judge(self, running: list[Request], drafts: list[Draft], logits: Tensor) -> StepOutput:
        """What is accepted of each draft, by the logits [rows, V] of all of them."""
        targets = target_rows(logits, running, drafts, self._runner)
        verdicts = [self._verdict(*each) for each in zip(running, drafts, targets, strict=True)]
        requests, verified, failed = list[Request](), list[VerifiedDraft](), list[Request]()
        for s, draft, target, verdict in zip(running, drafts, targets, verdicts, strict=True):
            if verdict is None:
                failed.append(s)
            else:
                requests.append(s)
                verified.append(_verified(s, draft, target, verdict))
        rows = sum(map(len, drafts)) + len(drafts)
        return StepOutput(requests, verified, rows, 0.0, 0.0, self._keep, failed)

    def _verdict(self, request: Request, draft: Draft, target: TargetRows) -> Verdict | None:
        """By the request's own rule; None where no token can follow, which ends that request alone."""
        p = request.params
        try:
            return self.rules[p.verify](draft, target, KeyedRandom(p.seed, p.choice, request.generated))
        except NotANumber as error:
            request.failure = error
            return None

    def drop(self, request: Request) -> None:
        pass

    def _keep(self, requests: Sequence[Request], verified: Sequence[VerifiedDraft]) -> None:
        # Row 0 of the pass is the token before the draft, row 1 + i draft node i.
        for request, each in zip(requests, verified, strict=True):
            rows = [0, *[1 + node for node in each.path[: len(each.tokens) - 1]]]
            self.model.commit(request.slot, rows)

    def _keep_prompt(self, requests: Sequence[Request], verified: Sequence[VerifiedDraft]) -> None:
        for request in requests:
            self.model.commit(request.slot, range(len(request.tokens) - 1 - self.model.length(request.slot)))


def _rows(request: Request, draft: Draft) -> Rows:
    """The last committed token, then the draft below it."""
    return Rows(request.slot, [request.tokens[-1], *draft.tokens], [ROOT, *(parent + 1 for parent in draft.parents)])


def _verified(request: Request, draft: Draft, target: TargetRows, verdict: Verdict) -> VerifiedDraft:
    path, added = verdict
    tokens = (*[draft.tokens[node] for node in path], added)
    if request.params.logprobs is None:
        return VerifiedDraft(request, draft, path, tokens)
    return VerifiedDraft(request, draft, path, tokens, tuple(map(target.logprobs, (ROOT, *path), tokens)))
