"""Steps that a device takes, for the automatic controller: it is told how large its drafts are (`chains`) and what was
looked up (`offers`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.control.acceptance import Acceptance
from outrider.control.chains import LEAST_OFFERED, Chains, ChainState, Issued, time_to_look_up
from outrider.control.offers import Offers
from outrider.control.silence import Silence
from outrider.control.states import State, States
from outrider.core.drafter import Drafter, VerifiedDraft
from outrider.core.request import RequestView
from outrider.core.step import PLAIN, StepPlan, StepShape


class DeviceSteps:
    def __init__(self, nodes: int, silence: Silence, acceptance: Acceptance, known: Sequence[float]) -> None:
        """With drafts of at most `nodes` nodes. `known`: beforehand, as `DraftHead.acceptance`."""
        self._nodes = nodes
        self._chains = Chains(nodes, silence, known)
        self._offers = Offers(acceptance)
        self.any = False
        """Whether there are such steps: a device that drafts has no costs in the table."""

    def newcomer(self, request: RequestView) -> ChainState:
        return self._chains.newcomer(guided=request.params.grammar is not None)

    def plan(
        self,
        requests: Sequence[RequestView],
        states: States,
        seconds: Mapping[StepShape, float],
        limit: int,
        lookup: Drafter | None,
    ) -> StepPlan:
        """As `Controller.plan`."""
        self.any = True
        if lookup is not None and not time_to_look_up(len(requests), seconds[PLAIN]):
            lookup = None
        allowed = [s.speculation.max_nodes for s in requests if s.speculation.max_nodes is not None]
        most = min([limit, self._nodes, *allowed])
        walks = [s.walk for s in requests if s.params.grammar is not None]
        forced = any(walk is not None and walk.forced().tokens for walk in walks)
        if lookup is None and not forced and (shape := self._chains.again(len(requests), most)) is not None:
            return StepPlan(shape)
        given = states.of(requests)
        chains, ledgers, found = [state.chain for state in given], [state.ledger for state in given], {}
        longest = max([shape.verified for shape in seconds if not shape.nodes and shape.verified <= most], default=0)
        if longest >= LEAST_OFFERED and (lookup is not None or forced):
            reach = [self._chains.ahead(chain) + longest for chain in chains]
            found = self._offers.step(lookup, requests, [state.leanings for state in given], reach)
        return self._chains.plan(chains, ledgers, seconds, most, found)

    @property
    def under_way(self) -> int:
        """Steps that have not been observed."""
        return self._chains.under_way

    def over(self) -> Issued | None:
        """The oldest step under way is; None, if nothing was thought about it."""
        return self._chains.over()

    def observe(self, issued: Issued, states: Sequence[State], verified: Sequence[VerifiedDraft]) -> None:
        """What came of it."""
        ledgers = [state.ledger for state in states]
        self._chains.observe(issued, [state.chain for state in states], ledgers, verified)

    def reads(self) -> bool:
        """Whether the drafter is to read the prompts of the next newcomers."""
        return self._chains.reads()

    def abandon(self) -> None:
        """No step under way will be observed."""
        self._chains.abandon()

    def forget(self, request: RequestView) -> None:
        self._offers.forget(request)
