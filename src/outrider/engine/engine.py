"""The loop everything else is for: draft, verify, keep what the target agrees with.

Everything is a batch of trees. A chain is a tree without branches and plain decoding is an empty draft, so plain and
speculative decoding run the same code and differ by the drafter alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from outrider.control.controller import Controller
from outrider.core.draft import ROOT, Draft, Verdict
from outrider.core.drafter import Commit, Drafter, HasNetworks, ReadsFeatures
from outrider.core.model import Accountable, LanguageModel, Prepares, Rows, SteppingModel, TappedModel
from outrider.core.request import Chunk, StepKind, StepTrace, TokenLogprob
from outrider.engine.device_executor import device_executor
from outrider.engine.request import NO_SLOT, Request
from outrider.engine.scheduler import Scheduler
from outrider.engine.slot_manager import SlotManager
from outrider.engine.stats import Stats
from outrider.engine.step_output import StepOutput, VerifiedDraft
from outrider.errors import InvalidRequest
from outrider.sampling.native.sampler import LendsThreads
from outrider.sampling.random_source import KeyedRandom
from outrider.sampling.target import score, target_rows
from outrider.verify import RULES, Rules

if TYPE_CHECKING:
    from torch import Tensor


class Engine:
    """Runs requests over one target model. One thread at a time has it (`Turns`, `Service`); nothing here knows about
    text beyond stop strings."""

    def __init__(
        self,
        model: LanguageModel,
        drafter: Drafter,
        controller: Controller,
        *,
        rules: Rules = RULES,
        kv_tokens: int | None = None,
    ) -> None:
        """`rules`: what the names in sampling parameters stand for. Only benchmarks give others than the exact ones
        (`bench/synthetic.py`), and no text made with those is ever shown as the model's. `kv_tokens`: the most tokens
        that running requests may have together (None: as many as the cache has room for)."""
        if kv_tokens is not None and kv_tokens < model.max_context:
            raise InvalidRequest(
                f"kv_tokens: {kv_tokens} tokens cannot hold one request of max_context {model.max_context}; "
                "raise the first or lower the second"
            )
        self.model = model
        self.drafter = drafter
        self.controller = controller
        self.rules = rules
        self.scheduler: Scheduler[Request] = Scheduler(
            model.max_batch, kv_tokens or model.max_batch * model.max_context, model.chunk
        )
        self._places = SlotManager(model, drafter)
        self._preemptions = 0
        self.device = device_executor(model, drafter, controller) if rules is RULES else None
        self._tapped = model if isinstance(model, TappedModel) else None
        self._stepping = model if isinstance(model, SteppingModel) else None
        self._reader = drafter if isinstance(drafter, ReadsFeatures) else None
        self._runner = model.runner if isinstance(model, LendsThreads) else None
        networks = drafter.networks.values() if isinstance(drafter, HasNetworks) else ()
        self.prepares = [part for part in (model, *networks, self.device) if isinstance(part, Prepares)]
        """What is to be compiled and recorded on a device before the first request."""

    def measure(self) -> Iterator[None]:
        """What those take; yields after each."""
        return iter(()) if self.device is None else self.device.measure()

    def step(self) -> list[Chunk]:
        """Run a piece of the prompts that are not complete, then advance every other running request by one target
        pass; returns what each of those gained."""
        self._seat()
        prompts, running = self.scheduler.plan()
        prefilled = self._prefill(prompts)
        only_scored = [self._end_scored(request) for request in running if not request.limit]
        running = [request for request in running if request.limit]
        if not running:
            return only_scored
        started = perf_counter()
        step = (self.device and self.device.step(running, prefilled)) or self._judge(running)
        why = self._why(running)
        chunks = [self._commit(verified, why) for verified in step.verified]
        commits = [
            Commit(verified.request, verified.draft, verified.verdict.path, chunk.token_ids)
            for verified, chunk in zip(step.verified, chunks, strict=True)
        ]
        if commits:
            self.scheduler.gained(len(commits), sum(len(commit.tokens) for commit in commits))
        self.controller.observe(commits, step.rows, step.draft_seconds, step.target_seconds)
        self.drafter.observe(commits)
        seconds = perf_counter() - started
        for request in running:
            request.seconds += seconds
        for verified in step.verified:
            if verified.request.ended:
                self.remove(verified.request)
        return only_scored + chunks

    def _judge(self, running: list[Request]) -> StepOutput:
        """Draft, run all drafts through the target in one pass, and decide what to keep."""
        started = perf_counter()
        drafts = self.controller.draft(self.drafter, running, self.model.supports_trees, [s.room for s in running])
        drafted = perf_counter()
        if self.device and not any(drafts) and (plain := self.device.plain(running)):
            return plain._replace(draft_seconds=drafted - started)
        batch = [_rows(s, draft) for s, draft in zip(running, drafts, strict=True)]
        logits = self._forward(running, batch, soon=not self.controller.away)
        targets = target_rows(logits, running, drafts, self._runner)
        verified = []
        for request, draft, target in zip(running, drafts, targets, strict=True):
            chance = KeyedRandom(request.params.seed, request.params.choice, request.generated)
            verdict = self.rules[request.params.verify](draft, target, chance)
            verified.append(VerifiedDraft(request, draft, verdict, target))
        rows = sum(len(draft) + 1 for draft in drafts)
        return StepOutput(verified, rows, drafted - started, perf_counter() - drafted)

    def _forward(self, requests: list[Request], batch: list[Rows], *, soon: bool) -> Tensor:
        """`soon`: whether drafts are expected for them (`ReadsFeatures`)."""
        logits = self.model.forward(batch)
        if self._reader is not None and self._tapped is not None:
            self._reader.read(requests, batch, self._tapped.features, soon)
        return logits

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def remove(self, request: Request) -> None:
        """Let go of a request, finished or aborted, and of everything held for it; safe at any time and to repeat.
        One that has not finished may be added again, also after a step that failed: it goes on from its tokens."""
        self.scheduler.remove(request)
        self._unseat(request)
        self.controller.forget(request)

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    @property
    def stats(self) -> Stats:
        running, places = self.scheduler, self._places
        return Stats(
            len(running.running),
            running.waiting,
            running.kv_used,
            running.kv_tokens,
            places.kept,
            places.hits,
            places.reused,
            self._preemptions,
            sum(part.late for part in self.prepares),
        )

    def leaks(self) -> list[str]:
        """What is still held although this engine is idle, in words; nothing, unless there is a mistake somewhere (or
        another engine is running over the same model)."""
        parts = {"cache slots": self.model, "drafter": self.drafter, "controller": self.controller}
        held = {name: part.held for name, part in parts.items() if isinstance(part, Accountable)}
        return [f"{name}: {count} still held" for name, count in held.items() if count and self.idle]

    def _seat(self) -> None:
        """Who comes and goes before a step."""
        for request in self.scheduler.preempt():
            self._unseat(request)
            self._preemptions += 1
        self.scheduler.admit()
        for request in self.scheduler.running:
            if request.slot == NO_SLOT:
                asked = perf_counter()
                self._places.take(request, self.scheduler.running)
                if request.admitted is None and request.slot != NO_SLOT:
                    request.admitted = asked
        self._places.trim(self.scheduler.kv_tokens - self.scheduler.kv_used)

    def _unseat(self, request: Request) -> None:
        request.prefix_donor = None
        if request.slot != NO_SLOT:
            if self.device is not None:
                self.device.drop(request)
            self._places.leave(request)

    def _prefill(self, prompts: list[tuple[Request, int]]) -> float:
        """Run the next rows of these requests, in one pass. Every token but the last goes into the cache so; that one
        is run by the first step, like any other. Returns the seconds it took."""
        started = perf_counter()
        joining = [request for request in self.scheduler.running if request.missing]
        batch = []
        for request, count in prompts:
            start = len(request.tokens) - 1 - request.missing
            wanted = request.unscored(start, count)
            batch.append(Rows.chain(request.slot, request.tokens[start : start + count], logits=wanted))
        if batch:
            pays = self.controller.pays(len(self.scheduler.running))
            _score(prompts, batch, self._forward([request for request, _ in prompts], batch, soon=pays))
        for request, count in prompts:
            self.model.commit(request.slot, range(count))
            request.missing -= count
        seconds = perf_counter() - started
        for request in joining:
            request.prefill_seconds += seconds
        return seconds

    def _end_scored(self, request: Request) -> Chunk:
        """One that was to generate nothing: all its prompt has been run."""
        request.finish_reason = "length"
        self.remove(request)
        return Chunk(request.id, "", (), (), StepTrace(Draft(), (), None, "target"))

    def _why(self, running: list[Request]) -> str:
        """Of this step's drafts, where somebody wants to know."""
        belief = self.controller.belief if any(request.keep_trace for request in running) else None
        return belief.why if belief else ""

    def _commit(self, verified: VerifiedDraft, why: str) -> Chunk:
        """Take the verdict's tokens up to the first that ends the request; keep just those in the cache."""
        request, draft, (path, added), target = verified
        said = (*[draft.tokens[node] for node in path], added)
        text, kept = "", 0
        for token in said:
            text += request.push(token)
            kept += 1
            if request.ended:
                break
        tokens, path = said[:kept], path[:kept]
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.params.logprobs is not None and target is not None:
            logprobs = tuple(map(target.logprobs, (ROOT, *path), tokens))
            request.logprobs += logprobs
        origins = (*map(draft.proposer, path), *_TARGET[: kept - len(path)])
        request.origins += origins
        request.history.append(tokens)
        self._keep(verified, kept)
        request.count(draft, path)
        step = _trace(draft, verified.verdict, kept, why)
        if request.keep_trace:
            request.trace.append(step)
        return Chunk(request.id, text, tokens, origins, step, None, logprobs)

    def _keep(self, verified: VerifiedDraft, kept: int) -> None:
        """The cache ends up holding all tokens but the last: it has no row yet, or (cut inside the path) needs none."""
        slot = verified.request.slot
        if verified.target is None and self._stepping is not None:
            self._stepping.advance(slot, kept)
            return
        # Row 0 of the pass is the token before the draft, row 1 + i draft node i.
        self.model.commit(slot, [0, *(1 + node for node in verified.verdict.path[: kept - 1])])


_TARGET = ("target",)
"""Whose the token is that follows the accepted ones."""


def _score(prompts: list[tuple[Request, int]], batch: list[Rows], logits: Tensor) -> None:
    """Note what the logits [rows wanted, V] of a piece of prompts say of the tokens that follow its rows."""
    row = 0
    for (request, _), rows in zip(prompts, batch, strict=True):
        for _ in rows.logits or ():
            token = request.tokens[len(request.scores) + 1]
            request.scores.append(score(logits[row], token, request.params.prompt_logprobs or 0))
            row += 1


def _rows(request: Request, draft: Draft) -> Rows:
    """The last committed token, then the draft below it."""
    return Rows(request.slot, [request.tokens[-1], *draft.tokens], [ROOT, *(parent + 1 for parent in draft.parents)])


def _trace(draft: Draft, verdict: Verdict, kept: int, why: str) -> StepTrace:
    if not draft.tokens:
        return StepTrace(draft, (), verdict.token, "target", why)
    last = verdict.path[-1] if verdict.path else ROOT
    kind: StepKind = "recovered" if draft.children(last) else "bonus"
    token = verdict.token if kept > len(verdict.path) else None
    return StepTrace(draft, verdict.path[:kept], token, kind, why)
