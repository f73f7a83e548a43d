"""Steps taken whole on the device, with the host one step behind.

Drafting, verification, acceptance and the cache stay on the device (`Stepper`); the host learns the tokens while the
next step is already running. What it learns may end a request: the step under way then runs for nothing in that
lane, and its tokens are dropped. And it may find how a text goes on, which it offers to the next step launched. What a
grammar lets follow a text must be known before it is verified, so it is guessed while the step before is under way
(`guesses.py`); where nothing guessed comes true, the request sits out a step, and the others go on. Only steps whose
every request asks for nothing but what the device knows go this way; the others are the host executor's, with the same
tokens, and so are those for which the host has drafted trees: its chains are verified here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

from outrider.control.controller import CLAIM, Controller
from outrider.control.steps import shapes
from outrider.core.draft import ROOT, Draft
from outrider.core.drafter import DevicePart, Drafter, VerifiedDraft
from outrider.core.model import LanguageModel
from outrider.core.request import ResolvedParams, TokenLogprob
from outrider.core.step import (
    MOST_BIASES,
    MOST_LOGPROBS,
    MOST_ROWS,
    MOST_TOP_K,
    PLAIN,
    Guide,
    Manner,
    Offer,
    Recording,
    Reported,
    SlotOutcome,
    Stepper,
    StepPlan,
    StepShape,
)
from outrider.engine.device_clock import DeviceClock
from outrider.engine.device_guides import guides_of, offers_of
from outrider.engine.device_lanes import CHANGED, DeviceLanes
from outrider.engine.executor import NONE_BEGUN, Begun, Executor, StepOutput
from outrider.engine.guesses import Guesses, under_way
from outrider.engine.host_executor import HostExecutor
from outrider.engine.request import Request
from outrider.sampling.draw import not_a_number
from outrider.sampling.target import reported
from outrider.sampling.warp import REPORTED

_PATHS = [tuple(range(length)) for length in range(MOST_ROWS + 1)]
_PARENTS = [range(-1, length - 1) for length in range(MOST_ROWS + 1)]
_CLAIMS = [tuple(CLAIM ** (level + 1) for level in path) for path in _PATHS]
"""Of chains verified on the device, by their length: the nodes down to their end, their parents, and what they
claim."""
_NO_DRAFT = Draft()
_KNOWN = CHANGED | {"temperature", "top_k", "top_p", "min_p", "verify"} | REPORTED
"""Features the device chooses tokens by, or that are none of its business."""


def best_executor(model: LanguageModel, drafter: Drafter, controller: Controller) -> Executor:
    """On the device where target and drafter can step there, else on the host."""
    host = HostExecutor(model, drafter, controller)
    part = drafter.default.device_part
    if part is not None and (stepper := model.stepper(part.network)):
        return DeviceExecutor(stepper, host, part)
    if drafter.default.reads_features:
        return host  # it must see every pass
    stepper = model.stepper(None)
    return DeviceExecutor(stepper, host) if stepper else host


class DeviceExecutor(Executor):
    """One step of the running requests at a time; at most one more is under way, and while newcomers are seen to
    another (`go_on`). Of several drafters the default one is meant here: steps in which another's request takes part
    are the host's."""

    def __init__(self, stepper: Stepper, host: HostExecutor, part: DevicePart | None = None) -> None:
        """`part` drafts on the device, where it is offered what is looked up; None: the drafter makes its drafts on the
        host, and the device verifies those that are chains. `host` takes the steps that this one cannot."""
        self._stepper = stepper
        self._host = host
        self._controller = host.controller
        self.begins = part is None or part.network is None
        self._drafts_on_host = part is None
        self._drafter = part.drafter if part else None
        self._lookup = host.drafter if part and host.drafter.continues else None
        self._shapes = shapes(
            self._controller.lengths if self._drafter else (),
            self._controller.offered_lengths if self._lookup or self._drafts_on_host else (),
            self._controller.trees if part and part.trees else (),
        )
        """Those that may be asked for."""
        self._lanes = DeviceLanes(stepper, host.model, part)
        self._clock = DeviceClock(stepper, self._shapes)
        self._guesses = Guesses(self._lookup)
        self._under_way: list[_Launched] = []
        self._burst = 0
        """Steps that may still be launched before a drafter on the host is asked again."""

    @property
    def late(self) -> int:
        return self._stepper.late

    def recordings(self) -> Iterator[Recording]:
        return self._stepper.recordings(self._shapes)

    def measure(self) -> Iterator[None]:
        return self._stepper.measure(self._shapes)

    @property
    def _plans(self) -> bool:
        """Whether the controller says how much is drafted and verified here."""
        return self._drafter is not None or self._lookup is not None

    def step(self, running: list[Request], joining: float = 0.0, begun: Begun = NONE_BEGUN) -> StepOutput:
        self._clock.elsewhere += joining
        if self._drafts_on_host:
            if not self._under_way:
                return self._step_after_drafting(running, begun)
            soon = any(s.params.grammar or s.speculation.prediction for s in self._lanes.newcomers(running))
            self._burst = 0 if soon else min(self._burst, self._controller.rest)
        return self._step(running, begun) or self._host.step(running)

    def _step_after_drafting(self, running: list[Request], begun: Begun) -> StepOutput:
        """The host drafts, and the device waits for it: as many plain steps follow unasked as the controller can do
        without. Chains are verified on the device. For trees, and what is drawn to be rejected or not, the host runs
        the target."""
        started = perf_counter() - self._clock.since_read()
        chains = None
        if self._can_take(running) and not any(s.params.judged for s in running):
            chains = self._chains(len(running))
        drafts, seconds = self._host.draft(running, chains)
        if any(drafts) and (chains is None or not all(map(_is_chain, drafts))):
            self._hand_back(running)
            return self._host.verify(running, drafts, seconds)
        self._burst = 1 + self._controller.rest
        self._clock.pause()  # what the host needs while nobody waits is not seen here
        output = self._step(running, begun, drafts)
        if output is None:
            return self._host.verify(running, drafts, seconds)
        # What it waited is what drafting has cost, beyond the step itself.
        taken = min(output.target_seconds, perf_counter() - started)
        return output._replace(draft_seconds=perf_counter() - started - taken, target_seconds=taken)

    def _chains(self, lanes: int) -> dict[StepShape, float]:
        """What steps take that verify chains made on the host; before they are measured some are too long."""
        limit, seconds = self._stepper.limit(lanes), self._clock.seconds(lanes)
        return {StepShape(0, min(shape.verified, limit)): taken for shape, taken in seconds.items()}

    def _hand_back(self, running: list[Request]) -> None:
        """The host takes the next step: nothing is under way."""
        self._lanes.hand_back(running)
        self._clock.pause()

    def go_on(self) -> None:
        """Where newcomers take the host longer than a step takes the device, that has one more to do meanwhile; the
        newcomers join the step after it."""
        seated = list(self._lanes.seats.by_lane.values())
        if self._drafts_on_host or len(self._under_way) != 1 or not seated:
            return
        idles = self._clock.idles(len(self._lanes), self._under_way[0].shape)
        if idles and self._can_take(seated) and self._ready(seated):
            with self._whole():
                self._launch_seated(seated, NONE_BEGUN)

    def _step(self, running: list[Request], begun: Begun, drafts: Sequence[Draft] = ()) -> StepOutput | None:
        """None: nothing is under way, and the host must take the next step. `begun` and `drafts`: for the first
        launch."""
        with self._whole():
            if self._can_take(running):
                ahead = len(self._under_way) > 1 and not self._lanes.newcomers(running)
                if not self._under_way:
                    self._launch(running, begun, drafts)
                    begun = NONE_BEGUN
                if (self._burst or not self._drafts_on_host) and not ahead and self._ready(running):
                    self._launch(running, begun)
            elif not self._under_way:
                self._hand_back(running)
                return None
            return self._collect(running)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever breaks it off, Ctrl-C too, nothing stays on the device that the host does not know of."""
        try:
            yield
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        self._under_way = []
        self._lanes.clear()
        self._clock.pause()
        self._controller.abandon()
        self._stepper.reset()  # the last: a device that is lost fails here as well

    def _can_take(self, running: list[Request]) -> bool:
        """Where all have grammars, what is drafted on the device would be of use to nobody: the host drafts for
        them."""
        if self._drafter is not None and all(s.params.grammar is not None for s in running):
            return False
        fit = self._stepper.limit(len(running)) >= 0 and max([len(s.tokens) for s in running]) <= self._stepper.reach
        takes = self._host.drafter.is_default
        return fit and all(steppable(s.params) and takes(s) for s in self._lanes.newcomers(running))

    def _launch(self, running: list[Request], begun: Begun, drafts: Sequence[Draft] = ()) -> None:
        """One more step, with the newcomers among these, of as few lanes as they need. `drafts`: for each of them, made
        on the host."""
        if newcomers := self._lanes.newcomers(running):
            started = perf_counter()
            self._lanes.seat(newcomers, soon=any(self._controller.pays(newcomers, len(running))))
            self._clock.elsewhere += perf_counter() - started
        self._lanes.close_up(len(running))
        self._launch_seated(running, begun, drafts)

    def _launch_seated(self, running: list[Request], begun: Begun, drafts: Sequence[Draft] = ()) -> None:
        """One more step, of everybody in lanes: what is looked up for it is offered, or what was drafted."""
        lanes, way, guided = self._lanes.seats
        ready = self._ready(running)
        shape, offered = self._plan_of(running, drafts) if any(drafts) else self._plan(ready, way)
        self._lanes.renew(sum([launched.shape.verified + 1 for launched in self._under_way]) + shape.verified + 1)
        self._lanes.reserve(MOST_ROWS * (len(self._under_way) + 1))
        found = {ready[i].id: offer for i, offer in offered.items()}
        offers, guides = offers_of(lanes, found) if found else {}, dict[int, Guide]()
        if guided:
            guides = guides_of(lanes, ready, found, shape.verified) | self._guessed(lanes, shape.verified)
        seated = self._lanes.requests.copy()
        has_run = shape == PLAIN and bool(begun) and all(s.id in begun.rows for s in lanes.values())
        run = [0 if s is None else begun.rows[s.id] for s in seated] if has_run else ()
        self._stepper.launch(len(seated), shape, way, offers, run, guides)
        sources = {number: offer.source for number, offer in offers.items()}
        sources |= {number: each.offer.source for number, each in guides.items()}
        told = {lanes[number].id: guide for number, guide in guides.items()}
        drafted = {s.id: draft for s, draft in zip(running, drafts, strict=True)} if any(drafts) else {}
        self._under_way.append(_Launched(shape, seated, sources, has_run, told, drafted))
        self._burst = max(0, self._burst - 1)

    def _ready(self, running: list[Request]) -> list[Request]:
        """Those that can take part in the next step: not those whose grammar must see first what a step under way
        gives them."""
        if not any(launched.guided for launched in self._under_way):
            return running
        return [s for s in running if self._takes_part(s) is None]

    def _takes_part(self, s: Request) -> tuple[_Launched, Guide] | None:
        """The first step under way that will give it something, as far as its grammar tells, and what that verifies:
        all steps before are known to give it nothing."""
        for launched in self._under_way:
            if now := under_way(s, launched.guided.get(s.id), launched.shape.verified):
                return launched, now
        return None

    def _guessed(self, lanes: Mapping[int, Request], length: int) -> dict[int, Guide]:
        """For those whose grammar must see first what the last step under way gives them: what may follow then. They
        take part in the next one if it comes true."""
        waiting = dict[int, tuple[Request, Guide]]()
        for number, s in lanes.items():
            part = None if s.params.grammar is None else self._takes_part(s)
            if part is not None and part[0] is self._under_way[-1]:
                waiting[number] = s, part[1]
        return self._guesses.of(waiting, length)

    def _plan(self, running: list[Request], way: Manner) -> StepPlan:
        """Near its end a request may be drafted for beyond it, which is cut off: only few lengths are recorded. Where
        the device grows no trees (among many lanes, or where scores are processed), chains are planned with."""
        if not self._plans:
            return StepPlan(PLAIN)
        lanes = len(self._lanes)
        seconds = self._clock.seconds(lanes)
        if way >= Manner.FULL or not self._stepper.trees(lanes):
            seconds = {shape: taken for shape, taken in seconds.items() if not shape.nodes}
        return self._controller.plan(running, seconds, self._stepper.limit(lanes), self._lookup)

    def _plan_of(self, running: list[Request], drafts: Sequence[Draft]) -> StepPlan:
        """What the host has drafted for these, while nothing was under way, is offered to them."""
        longest = max(map(len, drafts))
        fit = [shape for shape in self._chains(len(self._lanes)) if shape.verified >= longest]
        pairs = enumerate(zip(running, drafts, strict=True))
        offers = {i: Offer(len(s.tokens), draft.tokens, draft.source) for i, (s, draft) in pairs if draft.tokens}
        return StepPlan(min(fit, key=lambda shape: shape.verified), offers)

    def _collect(self, running: list[Request]) -> StepOutput:
        """Read the step launched first; those that run no longer gain nothing by it."""
        launched = self._under_way.pop(0)
        self._clock.waiting()
        outcome = self._stepper.collect()
        self._guesses.step_seconds = outcome.draft_seconds + outcome.target_seconds
        if launched.begun:
            self._clock.pause()
        else:
            self._clock.read(len(launched.lanes), launched.shape, outcome)
        if launched.shape.drafted:
            self._lanes.drafted(launched.lanes)
        name, drafts = self._drafter.name if self._drafter else "none", launched.drafts
        going = set(running)
        requests, verified, failed = list[Request](), list[VerifiedDraft](), list[Request]()
        for number, (s, lane) in enumerate(zip(launched.lanes, outcome.lanes, strict=True)):
            if s is None or s not in going or not lane.tokens:  # gone, or it sat out
                continue
            if -1 in lane.tokens:
                s.failure = not_a_number()
                failed.append(s)
            else:
                requests.append(s)
                each = _verified(s, lane, launched.sources[number] if lane.offered else name)
                if drafts and (drafted := drafts.get(s.id)) is not None:
                    each = each._replace(draft=drafted)
                verified.append(each)
        rows = len(verified) * (launched.shape.size + 1)
        seconds = outcome.target_seconds
        if launched.begun:  # without a pass it is no measure of others
            seconds = 0.0
        elif self._drafts_on_host:  # what drafting costs beside it is weighed against what it really takes
            seconds = max(seconds, self._clock.takes(len(launched.lanes), launched.shape))
        return StepOutput(requests, verified, rows, outcome.draft_seconds, seconds, self._keep, failed)

    def _keep(self, requests: Sequence[Request], verified: Sequence[VerifiedDraft]) -> None:
        """The device has kept the rows already; the host notes how many of them count."""
        pairs = zip(requests, verified, strict=True)
        self._host.model.advance({request.slot: len(each.tokens) for request, each in pairs})

    def drop(self, request: Request) -> None:
        for launched in self._under_way:
            launched.drop(request)
        self._lanes.drop(request)
        if not any(self._lanes.requests):
            self._clock.pause()  # nobody waits now
        self._controller.lost(request)


class _Launched:
    """A step under way: whose lanes they were, by lane who had found what was offered, whether its pass was run with
    the prompts (`begun`), and by their ids what those were sent that take part by a grammar, and what the host had
    drafted."""

    def __init__(
        self,
        shape: StepShape,
        lanes: list[Request | None],
        sources: dict[int, str],
        begun: bool,
        guided: dict[int, Guide],
        drafts: Mapping[int, Draft],
    ) -> None:
        self.shape = shape
        self.lanes = lanes
        self.sources = sources
        self.begun = begun
        self.guided = guided
        self.drafts = drafts

    def drop(self, request: Request) -> None:
        """What it gains there is of no use."""
        self.lanes = [None if lane is request else lane for lane in self.lanes]
        self.guided.pop(request.id, None)


def steppable(p: ResolvedParams) -> bool:
    """Whether the device makes the choice these parameters ask for."""
    if not p.features <= _KNOWN or p.features >= {"logprobs", "processed_logprobs"}:
        return False
    return p.top_k <= MOST_TOP_K and len(p.logit_bias) <= MOST_BIASES and (p.logprobs or 0) <= MOST_LOGPROBS


def _verified(request: Request, lane: SlotOutcome, source: str) -> VerifiedDraft:
    accepted, tokens, drafts, _, reports, parents, claims = lane
    if parents:
        draft, path = Draft(drafts, parents, claims, source), _path(lane)
    else:
        count, path = len(drafts), _PATHS[accepted]
        draft = Draft(drafts, _PARENTS[count], _CLAIMS[count], source) if count else _NO_DRAFT
    told = tuple(map(_told, tokens, reports)) if reports else ()
    return VerifiedDraft(request, draft, path, tokens, told)


def _is_chain(draft: Draft) -> bool:
    """Whether a device can verify it: a single path that was not drawn to be rejected or not."""
    return draft.q is None and list(draft.parents) == list(range(-1, len(draft) - 1))


def _path(lane: SlotOutcome) -> tuple[int, ...]:
    """The nodes of its tree that were accepted."""
    nodes, node, path = [*zip(lane.parents, lane.drafts, strict=True)], ROOT, []
    for token in lane.tokens[: lane.accepted]:
        node = nodes.index((node, token))
        path.append(node)
    return tuple(path)


def _told(token: int, report: Reported) -> TokenLogprob:
    top = zip(report.tokens, map(reported, report.logprobs), strict=True)
    return TokenLogprob(token, reported(report.logprob), tuple(top))
