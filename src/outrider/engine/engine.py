"""The loop everything else is for: draft, verify, keep what the target agrees with.

Everything is a batch of trees. A chain is a tree without branches and plain decoding is an empty draft, so plain and
speculative decoding run the same code and differ by the drafter alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from outrider.control.controller import Controller
from outrider.core.draft import Draft
from outrider.core.drafter import Drafter
from outrider.core.model import CachedNetwork, LanguageModel, Rows
from outrider.core.request import Chunk, StepTrace
from outrider.engine.device_executor import best_executor
from outrider.engine.emit import emit
from outrider.engine.executor import NONE_BEGUN, Begun, Executor
from outrider.engine.request import NO_SLOT, Request
from outrider.engine.scheduler import Scheduler
from outrider.engine.slot_manager import SlotManager
from outrider.engine.stats import Stats
from outrider.engine.target_pass import TargetPass
from outrider.errors import InvalidRequest, NotANumber, RequestFailed
from outrider.sampling.target import score

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
        executor: Executor | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        """`executor`: takes the steps (None: the best for this model and drafter). `kv_tokens`: the most tokens that
        running requests may have together (None: as many as the cache has room for)."""
        self.networks = [model, *drafter.networks.values()]
        for network in self.networks:
            network.make_room(self.networks)
        if kv_tokens is not None and kv_tokens < model.max_context:
            raise InvalidRequest(
                f"kv_tokens: {kv_tokens} tokens cannot hold one request of max_context {model.max_context}; "
                "raise the first or lower the second"
            )
        self.model = model
        self.drafter = drafter
        self.controller = controller
        self.executor = executor or best_executor(model, drafter, controller)
        self.scheduler: Scheduler[Request] = Scheduler(
            model.max_batch, kv_tokens or model.max_batch * model.max_context, model.chunk, self._hold
        )
        self._slots = SlotManager(model, drafter)
        self._refused: list[Request] = []
        """Too long for the caches; the next step tells of it."""
        self._preemptions = 0
        self._restarts = 0
        self._target = TargetPass(model, drafter)
        self.prepares: list[CachedNetwork | Executor] = [*self.networks, self.executor]
        """What is to be compiled and recorded on a device before the first request."""

    def step(self) -> list[Chunk]:
        """Run a piece of the prompts that are not complete, then advance every other running request by one target
        pass; returns what each of those gained."""
        began = perf_counter()
        self._target.read_late()
        self._allocate()
        prompts, running = self.scheduler.schedule()
        begun = self._prefill(prompts, self._begins(prompts, running))
        joining = perf_counter() - began if prompts else 0.0
        failed = [request for request, _ in prompts if request.failure is not None]
        chunks = [self._end_failed(request) for request in (*self._refused, *failed)]
        if failed:
            running = [request for request in running if request.failure is None]
        if scored := [request for request in running if not request.limit]:
            chunks += map(self._end_scored, scored)
            running = [request for request in running if request.limit]
        if not running:
            return chunks
        started = perf_counter()
        output = self.executor.step(running, joining, begun)
        chunks += [self._end_failed(request) for request in output.failed]
        why = self._why(running)
        taken = []
        for request, verified in zip(output.requests, output.verified, strict=True):
            verified, chunk = emit(request, verified, why)
            chunks.append(chunk)
            taken.append(verified)
        output.keep(output.requests, taken)
        if taken:
            self.scheduler.gained(len(taken), sum([len(verified.tokens) for verified in taken]))
        self.controller.observe(taken, output.rows, output.draft_seconds, output.target_seconds)
        self.drafter.observe(taken)
        seconds = perf_counter() - started
        for request in running:
            request.seconds += seconds
        for request in [request for request in output.requests if request.ended]:
            self.remove(request)
        return chunks

    def add(self, request: Request) -> None:
        if self._hold([len(request.tokens)]):
            self.scheduler.add(request)
        else:
            self._refuse(request)

    def remove(self, request: Request) -> None:
        """Let go of a request, finished or aborted, and of everything held for it; safe at any time and to repeat.
        One that has not finished may be added again, also after a step that failed: it goes on from its tokens."""
        self.scheduler.remove(request)
        self._refused = [other for other in self._refused if other is not request]
        self._free(request)
        self.controller.forget(request)

    def recover(self, error: Exception) -> bool:
        """Whether a step failed because the device did. That works again then (`DeviceLost` where it does not), and
        nothing that its caches hold is reused: requests that leave and come back are computed from their tokens."""
        recovered = [network.recovers(error) for network in self.networks]
        if not any(recovered):
            return False
        self._restarts += 1
        self.executor.reset()
        self._slots.forget()
        return True

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and not self._refused

    @property
    def stats(self) -> Stats:
        running, slots = self.scheduler, self._slots
        total = min(running.kv_tokens, self.model.cache_tokens)
        return Stats(
            len(running.running),
            running.waiting,
            min(running.kv_used, total),
            total,
            slots.kept,
            slots.hits,
            slots.reused,
            self._preemptions,
            sum(part.late for part in self.prepares),
            self._restarts,
        )

    def leaks(self) -> list[str]:
        """What is still held although this engine is idle, in words; nothing, unless there is a mistake somewhere (or
        another engine is running over the same model)."""
        held = {"cache slots": self.model.held, "drafter": self.drafter.held, "controller": self.controller.held}
        return [f"{name}: {count} still held" for name, count in held.items() if count and self.idle]

    def _allocate(self) -> None:
        """Who comes and goes before a step."""
        gone = self.scheduler.preempt()
        while gone:
            for request in gone:
                self._free(request)
            self._preemptions += len(gone)
            gone = self.scheduler.shed()
        alone = self.scheduler.running if len(self.scheduler.running) == 1 else []
        for request in [each for each in alone if not self._hold([len(each.tokens)])]:
            self.remove(request)
            self._refuse(request)
        if self.scheduler.admit():
            self.executor.go_on()
        for request in self.scheduler.running:
            if request.slot == NO_SLOT:
                asked = perf_counter()
                self._slots.take(request, self.scheduler.running)
                if request.admitted is None and request.slot != NO_SLOT:
                    request.admitted = asked
        self._slots.trim(self.scheduler.kv_tokens - self.scheduler.kv_used)

    def _hold(self, lengths: Sequence[int]) -> bool:
        """Whether all caches have room for requests of so many tokens."""
        return all(network.holds(lengths) for network in self.networks)

    def _refuse(self, request: Request) -> None:
        """It fits into no cache, though nothing else were there."""
        request.failure = RequestFailed(
            f"a text of {len(request.tokens)} tokens does not fit a cache of {self.model.cache_tokens}; shorten the "
            "prompt, or raise gpu_memory"
        )
        self._refused.append(request)

    def _free(self, request: Request) -> None:
        request.prefix_donor = None
        if request.slot != NO_SLOT:
            self.executor.drop(request)
            self._slots.leave(request)

    def _begins(self, prompts: list[tuple[Request, int]], running: list[Request]) -> bool:
        """Whether the last tokens of prompts are run with them: where all that decode have just been given their
        prompts, a step then only has to choose what follows."""
        complete = [request.id for request, count in prompts if count == request.num_uncomputed_tokens]
        fit = sum([count for _, count in prompts]) + len(complete) <= self.model.chunk  # one pass
        all_begin = bool(complete) and complete == [request.id for request in running]
        asked = all_begin and all(request.limit for request in running)
        scored = self.executor.chooses_by_logits and any(request.scoring for request, _ in prompts)
        return self.executor.begins and fit and asked and not scored

    def _prefill(self, prompts: list[tuple[Request, int]], begins: bool) -> Begun:
        """Run the next rows of these requests, in one pass. Every token but the last goes into the cache so. That one
        is run by the first step, like any other, unless it `begins` here: for the books the cache does not hold it
        until that step is over."""
        if not prompts:
            return NONE_BEGUN
        started = perf_counter()
        joining = [request for request in self.scheduler.running if request.num_uncomputed_tokens]
        batch, begun, row = list[Rows](), dict[int, int](), 0
        by_logits = begins and self.executor.chooses_by_logits
        for request, count in prompts:
            start = len(request.tokens) - 1 - request.num_uncomputed_tokens
            stop = start + count
            if begins and count == request.num_uncomputed_tokens:
                stop += 1
                begun[request.id] = row + count
            wanted = [count] if by_logits and request.id in begun else request.unscored(start, count)
            batch.append(Rows.chain(request.slot, request.tokens[start:stop], logits=wanted))
            row += stop - start
        requests = [request for request, _ in prompts]
        pays = self.controller.pays(requests, len(self.scheduler.running))
        logits = self._target.forward(requests, batch, soon=pays, late=by_logits)
        if not by_logits:
            _score(prompts, batch, logits)
        for request, count in prompts:
            if not by_logits or request.id not in begun:
                self.model.commit(request.slot, range(count))
            request.num_uncomputed_tokens -= count
        seconds = perf_counter() - started
        for request in joining:
            request.prefill_seconds += seconds
        return Begun(begun, logits if by_logits else None) if begun else NONE_BEGUN

    def _end_scored(self, request: Request) -> Chunk:
        """One that was to generate nothing: all its prompt has been run."""
        request.finish_reason = "length"
        self.remove(request)
        return _nothing(request)

    def _end_failed(self, request: Request) -> Chunk:
        """One whose `failure` says why. Where scores were not numbers, what is cached that they may have come from is
        not reused."""
        if isinstance(request.failure, NotANumber):
            self._slots.forget(request)
        self.remove(request)
        return _nothing(request)

    def _why(self, running: list[Request]) -> str:
        """Of this step's drafts, where somebody wants to know."""
        belief = self.controller.belief if any(request.keep_trace for request in running) else None
        return belief.why if belief else ""


def _nothing(request: Request) -> Chunk:
    """Of a request that ends without another token."""
    return Chunk(request.id, "", (), (), StepTrace(Draft(), (), None, "target"))


def _score(prompts: list[tuple[Request, int]], batch: list[Rows], logits: Tensor) -> None:
    """Note what the logits [rows wanted, V] of a piece of prompts say of the tokens that follow its rows. A request of
    which they say nothing has failed."""
    row = 0
    for (request, _), rows in zip(prompts, batch, strict=True):
        wanted = len(rows.logits or ())
        try:
            for its in logits[row : row + wanted]:
                token = request.tokens[len(request.scores) + 1]
                request.scores.append(score(its, token, request.params.prompt_logprobs or 0))
        except NotANumber as error:
            request.failure = error
        row += wanted
